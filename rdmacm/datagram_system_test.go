package rdmacm_test

import (
	"os"
	"testing"
)

// needGuest skips the test where what it changes would stay changed.
func needGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}
