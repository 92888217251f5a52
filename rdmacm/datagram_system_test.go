package rdmacm_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// needGuest skips the test where what it changes would stay changed.
func needGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}

// run runs a command of the system's.
func run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}
