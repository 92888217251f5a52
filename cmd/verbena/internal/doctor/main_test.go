// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/doctor/diagnose"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var tested = programtest.Of(Program)

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena doctor", 2, map[string]string{
		"-x":                  "unknown shorthand flag",
		"-p 0 host":           "expected a number from 1 to 65535",
		"-p 7471":             "-p without a host",
		"host more":           `unexpected argument "more"`,
		"192.0.2.1:7471":      "pass the port as a flag: -p 7471 192.0.2.1",
		"[2001:db8::1]:7471":  "pass the port as a flag: -p 7471 2001:db8::1",
		"-p 1 localhost:7471": "pass the port as a flag: -p 7471 localhost",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "verbena doctor [-j] [-p port] [host]", "-p, --port port")
}

func TestJSON(t *testing.T) {
	report := diagnose.Report{Peer: "192.0.2.2", Findings: []diagnose.Finding{
		{Check: "libraries", Status: diagnose.OK, Found: "libibverbs and librdmacm from rdma-core 65.0"},
		{Check: "modules", Status: diagnose.Fail, Found: "the kernel module rdma_ucm is not loaded", Commands: []string{"modprobe rdma_ucm"}},
		{Check: "locked memory", Status: diagnose.Warn, Found: "64 KiB", Remedy: "raise the limit"},
		{Check: "devices", Status: diagnose.Skipped, Found: "not checked: no kernel modules"},
	}}
	var stdout bytes.Buffer
	require.NoError(t, write(program.Output{Stdout: &stdout}, report, true))
	golden.Compare(t, "testdata/doctor.json", stdout.String())
}
