package rdmacm_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// needGuest skips the test where what it changes would stay changed.
func needGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}

// command runs a command of the system's and returns its output.
func command(t testing.TB, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	return string(out)
}

// kernelObjects returns how many objects of each kind the kernel has for a
// device, whoever made them.
func kernelObjects(t testing.TB, device string) map[string]int {
	t.Helper()
	var all []map[string]any
	require.NoError(t, json.Unmarshal([]byte(command(t, "rdma -j resource show")), &all))
	counts := map[string]int{}
	for _, one := range all {
		if one["ifname"] != device {
			continue
		}
		for kind, n := range one {
			if n, ok := n.(float64); ok && kind != "ifindex" {
				counts[kind] = int(n)
			}
		}
	}
	require.Contains(t, counts, "cm_id")
	return counts
}

// noKernelLeaks fails the test if the kernel has other objects of the device
// after it than before. Where others may use the device it says nothing.
func noKernelLeaks(t testing.TB, d testdevice.Device) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		return
	}
	before := kernelObjects(t, d.Name)
	t.Cleanup(func() {
		t.Helper()
		var after map[string]int
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if after = kernelObjects(t, d.Name); equalCounts(before, after) {
				return
			}
		}
		t.Errorf("the kernel had %v, and has %v\n%s", before, after, command(t, "rdma resource show cm_id"))
	})
}

func equalCounts(a, b map[string]int) bool {
	for kind, n := range a {
		if b[kind] != n {
			return false
		}
	}
	return len(a) == len(b)
}

// awaitKernelID waits until the kernel has an id whose line has all the words.
func awaitKernelID(t testing.TB, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for line := range strings.Lines(command(t, "rdma resource show cm_id")) {
			found := true
			for _, w := range words {
				found = found && strings.Contains(line, w)
			}
			if found {
				return true
			}
		}
		return false
	}, patience, 5*time.Millisecond, "%v", words)
}
