// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce"
)

// SoftRoCE reports whether the device, whatever its name, is one that rdma_rxe
// has made on a network interface: only that driver has this file. It has its
// own ideas of some mistakes: they are the third column of
// docs/proof/negative-cases.md. Every other device must do what the second
// says.
func (d Device) SoftRoCE() bool {
	_, err := os.Stat(filepath.Join("/sys/class/infiniband", d.Name, "parent"))
	return err == nil
}

// SoftRoCESince reports whether the device is of the rdma_rxe of this Linux or
// a later one.
func (d Device) SoftRoCESince(t testing.TB, major, minor int) bool {
	t.Helper()
	return d.SoftRoCE() && LinuxSince(t, major, minor)
}

// Soft reports whether the tests use the device in user space, that of package
// softroce.
func Soft() bool { return os.Getenv("VERBENA_DEVICE") == "soft" }

// LosePackets makes the device in user space lose everything until the function
// is called, at the latest by the end of the test.
func LosePackets(t testing.TB) (mend func()) {
	t.Helper()
	mend = func() { softroce.SetFaults(nil) }
	softroce.SetFaults(func(softroce.Packet) softroce.Fault { return softroce.Fault{Drop: true} })
	t.Cleanup(mend)
	return mend
}

// LoseReady makes the device in user space lose the messages that end
// handshakes until the function is called, at the latest by the end of the
// test.
func LoseReady(t testing.TB) (mend func()) {
	t.Helper()
	mend = func() { softroce.SetFaults(nil) }
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Kind == softroce.KindRTU} })
	t.Cleanup(mend)
	return mend
}

// LoseDisconnects makes the device in user space lose the first n requests to
// disconnect that it sends. The channel is closed when they are lost.
func LoseDisconnects(t testing.TB, n int) (lost <-chan struct{}) {
	t.Helper()
	all := make(chan struct{})
	left := n
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { // is called for one packet at a time
		if p.Kind != softroce.KindDREQ || left == 0 {
			return softroce.Fault{}
		}
		if left--; left == 0 {
			close(all)
		}
		return softroce.Fault{Drop: true}
	})
	t.Cleanup(func() { softroce.SetFaults(nil) })
	return all
}

// Replace removes the device in user space, calls f, and makes another one.
func Replace(t testing.TB, f func()) {
	t.Helper()
	require.NoError(t, softroce.Remove())
	f()
	require.NoError(t, softroce.Insert())
}

// Need is what a test needs besides a device.
type Need string

const (
	// Guest is a system that the test may change: tests/vm's.
	Guest Need = "changes the system: runs only in tests/vm's guest, with its device"
	// Kernel is a kernel that knows the device.
	Kernel Need = "is about what the kernel says of its devices"
	// CLibrary is librdmacm, for a peer in C.
	CLibrary Need = "has a peer of rdma-core's, which does not have the device"
	// IBAddrs are addresses of the family AF_IB.
	IBAddrs Need = "uses InfiniBand's addresses, which the device in user space does not have"
)

// Needs is Require for a test that needs more. Without that, it skips the test.
func Needs(t testing.TB, need Need) Device {
	t.Helper()
	d := Require(t)
	if Soft() || need == Guest && os.Getenv("RDMA_VM") == "" {
		t.Skip(need)
	}
	return d
}

// SoftSkips returns the tests that skip on the device in user space, each with
// its reason. A name has the package's folder before it: ibverbs.TestX.
func SoftSkips() map[string]string { return maps.Clone(softSkips) }

// checkSkip fails a test on the device in user space that skips and is not in
// the list, or is in it and runs.
func checkSkip(t testing.TB) {
	t.Helper()
	name := caller() + "." + t.Name()
	t.Cleanup(func() {
		_, listed := softSkips[name]
		switch {
		case t.Failed():
		case t.Skipped() && !listed:
			t.Errorf("%s skips on the device in user space: let it run, or add it to softSkips in internal/testutil/testdevice", name)
		case !t.Skipped() && listed:
			t.Errorf("%s runs on the device in user space: remove it from softSkips in internal/testutil/testdevice", name)
		}
	})
}

// module is the path of this module's packages, without their folders.
const module = "github.com/verbena-go/verbena/"

// caller returns the folder of the package that has the test that runs.
func caller() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	folder := ""
	for {
		frame, more := frames.Next()
		if path, ok := strings.CutPrefix(frame.Function, module); ok {
			dir, rest := path[:strings.LastIndex(path, "/")+1], path[strings.LastIndex(path, "/")+1:]
			name, _, _ := strings.Cut(rest, ".")
			folder = dir + strings.TrimSuffix(name, "_test")
		}
		if !more {
			return folder
		}
	}
}
