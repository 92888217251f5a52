// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// diagnosis is what verbena doctor -j prints.
type diagnosis struct {
	Works    bool      `json:"works"`
	Peer     string    `json:"peer"`
	Findings []finding `json:"findings"`
}

// finding is what a check has found.
type finding struct {
	Check    string   `json:"check"`
	Status   string   `json:"status"`
	Found    string   `json:"found"`
	Remedy   string   `json:"remedy"`
	Commands []string `json:"commands"`
}

// needGuest skips a test that changes the system, except in the VM.
func needGuest(t *testing.T) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
	return d
}

// run runs a program, whose path comes first, and returns its exit status and
// output.
func run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	p := process.Run(t, exec.Command(args[0], args[1:]...))
	return p.Wait(), p.Stdout(), p.Stderr()
}

// system runs a command of the system's, which must succeed. The kernel may
// hold it until a process of the test ends.
func system(t *testing.T, command string) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		out, err := exec.Command("sh", "-ec", command).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "the command does not end", command)
	}
}

// public returns a copy of a program of the folder cmd that every user can
// start.
func public(t *testing.T, program string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "program")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	b, err := os.ReadFile(process.CmdPath(t, program))
	require.NoError(t, err)
	path := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(path, b, 0o755))
	return path
}
