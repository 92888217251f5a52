// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/report"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// No check fails on the device of the tests, and what differs from the
// specification is known.
func TestDevice(t *testing.T) {
	d := testdevice.Require(t)
	_, err := rdmacm.Devices() // which stay open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	target := check.Target{Device: d.Name, Port: d.Port, Kind: report.KindOf(d.Name), Soak: time.Second / 2}
	runner := check.Runner{Target: target, Limit: 5 * time.Minute, Patience: time.Minute}
	for _, c := range checks {
		t.Run(c.Name, func(t *testing.T) {
			result := runner.Run(t.Context(), []check.Check{c})[0]
			require.Empty(t, ibverbs.OpenObjects())
			for _, one := range result.Cases {
				require.True(t, one.Known, "%s: %s, and expected is %q, on Soft-RoCE %q", one.Case, one.Yours, one.Specification, one.SoftRoCE)
			}
			switch result.Outcome {
			case check.OK:
			case check.Differs:
				require.NotEmpty(t, result.Cases, result.Found)
			case check.NotOffered:
				t.Logf("not offered: %s", result.Found)
			case check.NotRun:
				require.Contains(t, mayNotRun, c.Name, result.Found)
				require.Empty(t, os.Getenv("RDMA_VM"), "the guest has what %s needs, or the device lacks it: %s", c.Name, result.Found)
				t.Logf("not run: %s", result.Found)
			case check.Failed:
				if why := faults[target.Kind][c.Name]; why != "" {
					t.Logf("known: %s: %s", why, result.Found)
					return
				}
				require.Fail(t, string(result.Outcome), result.Found)
			}
		})
	}
}

// skipInVM skips a test that always uses the device in user space: in the VM,
// it only takes longer.
func skipInVM(t *testing.T) {
	t.Helper()
	if os.Getenv("RDMA_VM") != "" {
		t.Skip("is about the device in user space, not about the VM's")
	}
}

// On a device without immediate data, sockets do not work, as their errors say,
// and all else does.
func TestNoImmediateData(t *testing.T) {
	skipInVM(t)
	if !testdevice.LimitedTo(t, "ud=0,atomics=0,imm=0") {
		return
	}
	d := testdevice.Require(t)
	target := check.Target{Device: d.Name, Port: d.Port, Kind: report.KindOf(d.Name), Soak: time.Second / 10}
	runner := check.Runner{Target: target, Limit: 5 * time.Minute, Patience: time.Minute}
	for _, result := range runner.Run(t.Context(), checks) {
		if strings.HasPrefix(result.Check, "sockets.") {
			require.Equal(t, check.Failed, result.Outcome, result.Check)
			require.Contains(t, result.Found, "immediate data, which the device refuses")
			continue
		}
		require.NotContains(t, []check.Outcome{check.Failed, check.Differs}, result.Outcome, "%s: %s", result.Check, result.Found)
	}
}

// An interruption ends the checks and closes what they have opened, and there
// is no report.
func TestInterrupted(t *testing.T) {
	testdevice.Require(t)
	testdevice.NoLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "report.json")
	waits := check.Check{Name: "waits", Run: func(t *check.T) {
		d, err := ibverbs.Open(t.Target().Device)
		if err == nil {
			t.Close(d)
		}
		cancel()
		<-t.Context().Done()
		t.Failf("nothing came: %v", err)
	}}
	next := check.Check{Name: "next", Run: func(*check.T) { panic("is not run") }}
	o := &options{checks: []check.Check{waits, next}, system: system, file: file, total: time.Hour, patience: time.Minute}
	var stdout, stderr bytes.Buffer
	require.ErrorIs(t, o.run(ctx, program.Output{Stdout: &stdout, Stderr: &stderr}), context.Canceled)
	require.Empty(t, stdout.String())
	require.NoFileExists(t, file)
	require.Empty(t, ibverbs.OpenObjects())
}

// A file that cannot be written is reported before the checks are run.
func TestUnwritable(t *testing.T) {
	testdevice.Require(t)
	never := check.Check{Name: "never", Run: func(*check.T) { panic("is not run") }}
	o := &options{checks: []check.Check{never}, system: system, file: filepath.Join(t.TempDir(), "no", "report.json"), total: time.Hour, patience: time.Minute}
	var stdout, stderr bytes.Buffer
	require.ErrorIs(t, o.run(t.Context(), program.Output{Stdout: &stdout, Stderr: &stderr}), fs.ErrNotExist)
	require.Empty(t, stdout.String())
}

// The text about the libraries names the device, with an address perhaps.
func TestLibrariesPrivate(t *testing.T) {
	testdevice.Require(t)
	fine := check.Check{Name: "fine", Run: func(*check.T) {}}
	for identify, want := range map[bool]string{false: "ADDRESS", true: "192.0.2.1"} {
		o := &options{checks: []check.Check{fine}, asJSON: true, identify: identify, total: time.Hour, patience: time.Minute}
		o.system = func() report.System {
			return report.System{Libraries: "no C libraries: VERBENA_DEVICE=soft:udp=192.0.2.1"}
		}
		var stdout, stderr bytes.Buffer
		require.NoError(t, o.run(t.Context(), program.Output{Stdout: &stdout, Stderr: &stderr}))
		require.Contains(t, stdout.String(), "VERBENA_DEVICE=soft:udp="+want+`"`)
	}
}

// mayNotRun are the checks that need something of the machine.
var mayNotRun = []string{"memory.huge", "memory.dmabuf"}

// faults are what does not work on a kind of device, with the reasons.
var faults = map[check.Kind]map[string]string{
	check.SoftRoCE: {"memory.paging": "Linux 7.2's Soft-RoCE puts all that arrives at the beginning of a page"},
}

func TestChecks(t *testing.T) {
	names := map[string]bool{}
	for _, c := range checks {
		require.False(t, names[c.Name], c.Name)
		names[c.Name] = true
		require.Regexp(t, `^[a-z]+(\.[a-z0-9]+)+$`, c.Name)
		require.NotEmpty(t, c.Proves, c.Name)
		require.NotContains(t, c.Proves, ".", c.Name)
		require.NotEmpty(t, c.Features, c.Name)
		require.Subset(t, check.Features, c.Features, c.Name)
		require.NotNil(t, c.Run, c.Name)
	}
}
