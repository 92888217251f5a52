// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// inside is set in a process in a root, to the version of rdma-core there.
const inside = "VERBENA_TEST_VERSION"

// TestVersions runs itself in each root, where it opens the device, makes a
// connection, and calls the functions that came late.
func TestVersions(t *testing.T) {
	if version := os.Getenv(inside); version != "" {
		t.Run("libraries", func(t *testing.T) { testLibraries(t, version) })
		t.Run("connection", testConnection)
		t.Run("functions", func(t *testing.T) { testFunctions(t, version) })
		t.Run("buffer", func(t *testing.T) { testBuf(t, version) })
		if version == "65.0" {
			t.Run("repoll", testRepoll)
			t.Run("addrinfo", testAddrInfo)
			t.Run("user events", testUserEventsUnderLoad)
		}
		return
	}
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("mounts and changes the root: runs only in tests/vm's guest")
	}
	testdevice.Require(t)
	for _, version := range []string{"44.0", "65.0"} {
		t.Run(version, func(t *testing.T) {
			out, err := runIn(t, root(t, version), version)
			t.Logf("%s", out)
			require.NoError(t, err)
		})
	}
}

// root returns the folder of a version. Without it the test is skipped, or
// fails if VERBENA_REQUIRE_ROOTS is 1.
func root(t *testing.T, version string) string {
	t.Helper()
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		_, file, _, _ := runtime.Caller(0)
		cache = filepath.Join(filepath.Dir(file), "..", "..", ".cache")
	}
	dir := filepath.Join(cache, "roots", version)
	if _, err := os.Stat(filepath.Join(dir, ".complete")); err == nil {
		return dir
	}
	if os.Getenv("VERBENA_REQUIRE_ROOTS") == "1" {
		t.Fatalf("no root in %s, and VERBENA_REQUIRE_ROOTS is 1", dir)
	}
	t.Skipf("no root in %s; scripts/fetch-roots %s brings it", dir, version)
	return ""
}

// mount puts what programs need into a root, and a folder, which is /program
// there, until the test ends.
func mount(t *testing.T, root, program string) {
	t.Helper()
	for from, to := range map[string]string{"/proc": "proc", "/sys": "sys", "/dev": "dev", program: "program"} {
		to = filepath.Join(root, to)
		require.NoError(t, syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, ""), "mount %s on %s", from, to)
		t.Cleanup(func() { require.NoError(t, syscall.Unmount(to, syscall.MNT_DETACH)) })
	}
}

// runIn runs this test binary in a root.
func runIn(t *testing.T, root, version string) ([]byte, error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	mount(t, root, filepath.Dir(self))
	cmd := exec.Command(filepath.Join("/program", filepath.Base(self)), "-test.run=^TestVersions$", "-test.v=true")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), inside+"="+version, "PATH=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	return cmd.CombinedOutput()
}
