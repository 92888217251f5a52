package rdmadoctor

import (
	"bytes"
	"io"
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
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// programEnv makes this program be one of those that the tests start.
const programEnv = "VERBENA_DOCTOR_PROGRAM"

func TestMain(m *testing.M) {
	program := map[string]func(args []string, stdout, stderr io.Writer) int{
		"rdmadoctor": rdmadoctor.Main, "rdmadevices": rdmadevices.Main, "rdmawatch": rdmawatch.Main,
		"rdmaclient": rdmaclient.Main,
	}[os.Getenv(programEnv)]
	if program != nil {
		os.Exit(program(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
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
	cmd.Env = append(os.Environ(), programEnv+"="+program)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// system runs a command of the system's, which must succeed.
func system(t *testing.T, command string) {
	t.Helper()
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// publicSelf returns a copy of this program that every user can start.
func publicSelf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "program")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	b, err := os.ReadFile(self(t))
	require.NoError(t, err)
	path := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(path, b, 0o755))
	return path
}
