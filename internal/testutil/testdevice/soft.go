// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce"
)

// SoftRoCE reports whether the kernel's driver rdma_rxe has created the device;
// only this driver has the file parent. In some cases of misuse, this driver
// differs from others: the third column of docs/proof/negative-cases.md has its
// behaviour, and the second that of all other devices.
func (d Device) SoftRoCE() bool {
	_, err := os.Stat(filepath.Join("/sys/class/infiniband", d.Name, "parent"))
	return err == nil
}

// SoftRoCESince reports whether the device is one of rdma_rxe, on Linux
// major.minor or later.
func (d Device) SoftRoCESince(t testing.TB, major, minor int) bool {
	t.Helper()
	return d.SoftRoCE() && LinuxSince(t, major, minor)
}

// Soft reports whether the tests use the device in user space, of package
// softroce.
func Soft() bool { return os.Getenv("VERBENA_DEVICE") == "soft" }

// UserSpace reports whether the device is that in user space, on this machine's
// network or on that of all machines.
func UserSpace() bool {
	name, _, _ := strings.Cut(os.Getenv("VERBENA_DEVICE"), ":")
	return name == "soft"
}

// NeedsProcesses skips the test unless several processes of this machine can
// use the device at the same addresses.
func NeedsProcesses(t testing.TB) {
	t.Helper()
	if UserSpace() && !Soft() {
		t.Skip("needs two processes with the same addresses, and on the network of all machines an address belongs to one")
	}
}

// LosePackets makes the device in user space lose all packets until mend is
// called or the test ends.
func LosePackets(t testing.TB) (mend func()) {
	t.Helper()
	mend = func() { softroce.SetFaults(nil) }
	softroce.SetFaults(func(softroce.Packet) softroce.Fault { return softroce.Fault{Drop: true} })
	t.Cleanup(mend)
	return mend
}

// LoseReady makes the device in user space lose the messages that complete
// handshakes (RTU) until mend is called or the test ends.
func LoseReady(t testing.TB) (mend func()) {
	t.Helper()
	return lose(t, softroce.KindRTU)
}

// LoseReadyAndWrites is like LoseReady, and loses the packets of RDMA writes
// too. Such a packet shows that the handshake of its sender is complete.
func LoseReadyAndWrites(t testing.TB) (mend func()) {
	t.Helper()
	return lose(t, softroce.KindRTU, softroce.KindWrite)
}

// lose makes the device in user space lose the packets of some kinds until mend
// is called or the test ends.
func lose(t testing.TB, kinds ...softroce.Kind) (mend func()) {
	t.Helper()
	mend = func() { softroce.SetFaults(nil) }
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: slices.Contains(kinds, p.Kind)} })
	t.Cleanup(mend)
	return mend
}

// LoseDisconnects makes the device in user space lose the first n requests to
// disconnect (DREQ) that it sends. lost is closed when all of them are lost.
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

// Replace removes the device in user space, calls f, and inserts a new device.
func Replace(t testing.TB, f func()) {
	t.Helper()
	require.NoError(t, softroce.Remove())
	f()
	require.NoError(t, softroce.Insert())
}

// Need is what a test needs in addition to a device. Its text is the reason for
// skipping the test.
type Need string

const (
	// Guest is a system that the test may change: the guest of tests/vm.
	Guest Need = "changes the system: runs only in tests/vm's guest, with its device"
	// Kernel is a kernel that has the device.
	Kernel Need = "is about what the kernel says of its devices"
	// CLibrary is the installed librdmacm, for a peer that is a C program.
	CLibrary Need = "has a peer of rdma-core's, which does not have the device"
	// IBAddrs are addresses of the family AF_IB.
	IBAddrs Need = "uses InfiniBand's addresses, which the device in user space does not have"
)

// Needs is like Require, for a test that also needs need. If that is not there,
// Needs skips the test.
func Needs(t testing.TB, need Need) Device {
	t.Helper()
	d := Require(t)
	if Soft() || need == Guest && os.Getenv("RDMA_VM") == "" {
		t.Skip(need)
	}
	return d
}

// SoftSkips returns the tests that skip on the device in user space, with the
// reasons. A test's name is preceded by the directory of its package, as in
// ibverbs.TestX.
func SoftSkips() map[string]string { return maps.Clone(softSkips) }

// checkSkip makes a test on the device in user space fail if it skips without
// being in softSkips, or is in softSkips and does not skip. On a device with
// limits, a test may also skip for what the device lacks.
func checkSkip(t testing.TB) {
	t.Helper()
	name := caller() + "." + t.Name()
	t.Cleanup(func() {
		_, listed := softSkips[name]
		_, lacking := excused.Load(t.Name())
		switch {
		case t.Failed(), lacking && os.Getenv("VERBENA_LIMITS") != "":
		case t.Skipped() && !listed:
			t.Errorf("%s skips on the device in user space: let it run, or add it to softSkips in internal/testutil/testdevice", name)
		case !t.Skipped() && listed:
			t.Errorf("%s runs on the device in user space: remove it from softSkips in internal/testutil/testdevice", name)
		}
	})
}

// module is the prefix of the import paths of this module's packages.
const module = "github.com/verbena-go/verbena/"

// caller returns the directory of the package of the running test.
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
