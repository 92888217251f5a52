package testdevice

import (
	"fmt"
	"os"
	"testing"
)

// TakesDevices says whether this kernel takes a Soft-RoCE device that is removed
// from its users, as it does with most hardware: from Linux 7.3 on. Older ones
// wait until all users have closed it.
func TakesDevices(t testing.TB) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		t.Fatalf("kernel %s: %v", release, err)
	}
	return major > 7 || major == 7 && minor >= 3
}
