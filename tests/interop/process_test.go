// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = cmtest.Patience

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"datagrams": datagramsMain})
	m.Run()
}

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind, in this process or in the kernel.
func needDevice(t *testing.T) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	for _, program := range []string{"rping", "rdma"} {
		_, err := exec.LookPath(program)
		require.NoError(t, err)
	}
	testdevice.NoLeaks(t)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return len(resources(t, "cm_id")) == 0 }, patience, 20*time.Millisecond)
		for _, qp := range resources(t, "qp") {
			require.NotContains(t, qp, "type RC")
			require.NotContains(t, qp, "type UD")
		}
	})
	return d
}

// resources returns what the kernel says of the objects of a kind, one line
// each.
func resources(t *testing.T, kind string) []string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", kind).Output()
	require.NoError(t, err)
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

// program is one that a test starts.
type program struct {
	name    string
	ours    bool // of the folder cmd
	command string
}

var (
	ours   = program{"Go", true, "rping"}
	theirs = program{"C", false, "rping"}
)

// start runs the program. It is killed if it outlives the test.
func (p program) start(t *testing.T, args ...string) *process.Process {
	t.Helper()
	if p.ours {
		return process.Start(t, process.Cmd(t, p.command, args...))
	}
	return process.Start(t, exec.Command(p.command, args...))
}

// run runs the program to its end.
func (p program) run(t *testing.T, args ...string) *process.Process {
	t.Helper()
	r := p.start(t, args...)
	r.Wait()
	return r
}

// serve starts the program as a server and returns when it listens.
func (p program) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	r := p.start(t, append([]string{"-s"}, args...)...)
	listens(t, r)
	return r
}

// listens waits until the process does.
func listens(t *testing.T, r *process.Process) {
	t.Helper()
	r.Eventually("listens", func() bool {
		return slices.ContainsFunc(resources(t, "cm_id"), func(id string) bool {
			_, after, _ := strings.Cut(id, " pid ")
			thread, _, _ := strings.Cut(after, " ") // the one that made it, not the process
			_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%s", r.Pid(), thread))
			return strings.Contains(id, "state LISTEN") && err == nil
		})
	})
}
