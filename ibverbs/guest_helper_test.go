package ibverbs_test

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// The device that a test makes for itself, to change what others rely on.
const (
	ownName   = "rxe9"
	ownNetDev = "rdma9"
	ownAddr   = "203.0.113.1"
)

// run runs a command of the system's, which must succeed.
func run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// needGuest skips a test that changes the system, except in the VM.
func needGuest(t testing.TB) {
	t.Helper()
	testdevice.Require(t)
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}

// openOwn makes a device for the test alone, with an interface of its own, and
// a rig on it. Both are gone after the test.
func openOwn(t testing.TB) *rig {
	t.Helper()
	needGuest(t)
	run(t, "ip", "link", "add", ownNetDev, "type", "veth", "peer", "name", "rdma10")
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/class/net/" + ownNetDev); err == nil {
			run(t, "ip", "link", "delete", ownNetDev)
		}
	})
	run(t, "ip", "address", "add", ownAddr+"/24", "dev", ownNetDev)
	for _, end := range []string{"rdma10", ownNetDev} {
		run(t, "ip", "link", "set", end, "addrgenmode", "none") // no addresses that come by themselves
		run(t, "ip", "link", "set", end, "up")
	}
	run(t, "rdma", "link", "add", ownName, "type", "rxe", "netdev", ownNetDev)
	t.Cleanup(func() {
		if ownExists(t) {
			run(t, "rdma", "link", "delete", ownName)
		}
	})
	testdevice.NoLeaks(t)
	r := &rig{t: t, c: must(ibverbs.Open(ownName))(t)}
	r.cleanup(r.c)
	r.pd = must(r.c.AllocPD())(t)
	r.cleanup(r.pd)
	r.device = testdevice.Device{Name: ownName, Port: 1, NetDev: ownNetDev, IPv4: netip.MustParseAddr(ownAddr)}
	soon(t, "the port has its address", func() bool { return r.findOwnGID() })
	return r
}

func ownExists(t testing.TB) bool {
	t.Helper()
	for _, d := range must(ibverbs.Devices())(t) {
		if d.Name == ownName {
			return true
		}
	}
	return false
}

// findOwnGID looks for the entry of the address; the kernel makes it later than
// the device.
func (r *rig) findOwnGID() bool {
	index, ok := r.gidIndex(r.device.IPv4)
	if !ok || must(r.c.QueryPort(1))(r.t).State != ibverbs.PortActive {
		return false
	}
	r.device.GIDIndex, r.device.GID = index, must(r.c.QueryGID(1, index))(r.t)
	return true
}

// gidIndex returns where an address is among the first entries of the table,
// the others of which are empty.
func (r *rig) gidIndex(addr netip.Addr) (index int, ok bool) {
	r.t.Helper()
	for i := range 8 {
		if must(r.c.QueryGID(1, i))(r.t).Addr() == addr {
			return i, true
		}
	}
	return 0, false
}

// soon waits for what must become true.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}
