// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/report"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var tested = programtest.Of(Program)

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena selftest", 2, map[string]string{
		"-x":          "unknown shorthand flag",
		"-v -j":       "-v and -j exclude each other",
		"-c A":        "-c needs two files",
		"-c -j A B":   "-c and -j exclude each other",
		"-l -j":       "-l and -j exclude each other",
		"-L -j":       "the server has no report",
		"-L -o A":     "the server has no report",
		"-W 60":       "-W is for the client: it needs HOST",
		"-L -W 60":    "-W is for the client: it needs HOST",
		"-r fly":      `no check's name begins with "fly": -l lists them`,
		"-r keys,":    `no check's name begins with ""`,
		"-t 0":        "expected seconds from 1",
		"-i 0":        "expected a number from 1 to 255",
		"one two":     `unexpected argument "two"`,
		"-L one two":  `unexpected argument "two"`,
		"-n -1 -L":    "expected a number from 0",
		"host:1":      "pass the port as a flag: -p 1 host",
		"one two six": `unexpected argument "six"`,
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "verbena selftest -c A B", "-o, --output file", "-L, --listen")
}

func TestList(t *testing.T) {
	status, stdout, stderr := tested.Run("-l -r keys.remote,requests.s")
	require.Zero(t, status, stderr)
	require.Equal(t, `keys.remote              a peer reaches no memory with a wrong remote key
requests.send            a message arrives whole, once and in its receive
requests.segments        data is gathered from and scattered to as many segments as the device says it has
`, stdout)
}

// results are those of a device that does not exist.
var results = []check.Result{
	{Check: "a.fine", Outcome: check.OK, Notes: []string{"32 segments"}, Milliseconds: 4},
	{Check: "a.other", Outcome: check.Differs, Found: "1 of 1 cases end otherwise", Cases: []check.Case{
		{Case: "write, key 0", Specification: "WCRemoteAccess", SoftRoCE: "WCRemoteAccess", UserSpace: "WCRemoteAccess", Yours: "WCRemoteOperation"},
	}},
	{Check: "b.wrong", Outcome: check.Failed, Found: "1 + 1 is 3"},
	{Check: "c.none", Outcome: check.NotOffered, Found: "memory windows"},
}

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	checks := []check.Check{{Name: "a.fine", Features: []check.Feature{check.Connections}}}
	found := report.New("verbena v1.2.3", 12.5, report.System{Kernel: "6.12.48", Processor: "amd64", Libraries: "rdma-core 65.0"},
		report.Device{Driver: "mlx5_core", Firmware: "22.41.1000", Transport: "IBV_TRANSPORT_IB", LinkLayer: "Ethernet", GIDType: "RoCE v2", RateGbps: 100, MTU: 4096},
		results)
	var stdout bytes.Buffer
	o := &options{asJSON: true, file: file}
	require.EqualError(t, o.write(program.Output{Stdout: &stdout}, found, checks), "1 check failed")
	golden.Compare(t, "testdata/report.json", stdout.String())
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, stdout.String(), string(written))

	stdout.Reset()
	o.asJSON = false
	found.Results = results[:2]
	require.NoError(t, o.write(program.Output{Stdout: &stdout}, found, checks))
	require.Contains(t, stdout.String(), "Verbena WORKS on this device.")
	require.Contains(t, stdout.String(), "send "+file+", which has no addresses")
	o.file = filepath.Join(t.TempDir(), "no", "folder")
	stdout.Reset()
	require.ErrorIs(t, o.write(program.Output{Stdout: &stdout}, found, checks), os.ErrNotExist)
	require.NotContains(t, stdout.String(), o.file)
}

func TestSideBySide(t *testing.T) {
	folder := t.TempDir()
	a, b, bad := filepath.Join(folder, "a"), filepath.Join(folder, "b"), filepath.Join(folder, "bad")
	other, next := filepath.Join(folder, "other"), filepath.Join(folder, "next")
	require.NoError(t, report.New("verbena", 1, report.System{}, report.Device{}, results).Write(a))
	require.NoError(t, report.New("verbena", 1, report.System{}, report.Device{}, results[:3]).Write(b))
	require.NoError(t, os.WriteFile(bad, []byte("no JSON"), 0o600))
	require.NoError(t, os.WriteFile(other, []byte(`{"rows": []}`), 0o600))
	require.NoError(t, os.WriteFile(next, []byte(`{"version": 2, "device": "soft0"}`), 0o600))
	for args, want := range map[string]struct {
		status         int
		stdout, stderr string
	}{
		a + " " + a:          {0, "All checks have the same outcome", ""},
		a + " " + b:          {1, "c.none", "the outcomes differ"},
		a + " " + bad:        {1, "", "is not a report of verbena selftest"},
		other + " " + a:      {1, "", "is not a report of verbena selftest: it has no version"},
		next + " " + a:       {1, "", "is a report of version 2, and this program reads version 1"},
		a + " " + a + "none": {1, "", "no such file"},
		a + " /dev/zero":     {1, "", "/dev/zero has more than 4194304 bytes"},
	} {
		status, stdout, stderr := tested.Run("-c " + args)
		require.Equal(t, want.status, status, args)
		require.Contains(t, stdout, want.stdout)
		require.Contains(t, stderr, want.stderr)
	}
}
