// SPDX-License-Identifier: Apache-2.0

package rdmadoctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmadevices"
	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor"
	"github.com/verbena-go/verbena/internal/cmd/rdmawatch"
	"github.com/verbena-go/verbena/internal/cmd/verbena"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{
		"rdmadoctor": rdmadoctor.Main, "rdmadevices": rdmadevices.Main, "rdmawatch": rdmawatch.Main,
		"rdmaclient": rdmaclient.Main, "verbena": verbena.Main,
	})
	m.Run()
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

// run runs a program, and returns its exit status and output. What comes before
// its own name in the arguments starts it.
func run(t *testing.T, program string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = process.Env(program)
	p := process.Run(t, cmd)
	return p.Wait(), p.Stdout(), p.Stderr()
}

// system runs a command of the system's, which must succeed. The kernel may hold it until a process of
// the test ends.
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

// publicSelf returns a copy of this program that every user can start.
func publicSelf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "program")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	b, err := os.ReadFile(process.Self(t))
	require.NoError(t, err)
	path := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(path, b, 0o755))
	return path
}
