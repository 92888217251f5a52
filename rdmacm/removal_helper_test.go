package rdmacm_test

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// The device that a test makes for itself, to remove it.
const (
	ownName     = "rxe9"
	ownNetDev   = "rdma9"
	ownSpareDev = "rdma11" // of two, as ownNetDev, that ownBondDev is made of
	ownBondDev  = "bond9"
	ownPrefix   = "203.0.113.1/24"
)

// aloneEnv is set in a process that alone has started.
const aloneEnv = "VERBENA_RDMACM_ALONE"

// alone runs the test again in a process of its own, as a test must that makes
// and removes devices. It returns true there, with a device that stays. It
// skips the test outside of the VM, because it changes the system.
//
// Before version 52 librdmacm loses devices in a process that has seen others
// come or go, if their records are more than 2 GiB apart, as they can be if
// several threads allocate memory. So C's all comes from one arena.
func alone(t *testing.T) (d testdevice.Device, isAlone bool) {
	t.Helper()
	d = testdevice.Require(t)
	needGuest(t)
	if os.Getenv(aloneEnv) != "" {
		return needDevice(t), true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v=true")
	cmd.Env = append(os.Environ(), aloneEnv+"=1", "MALLOC_ARENA_MAX=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	// While the process was there, deleting could have waited for it.
	if isListed(t, ownName) {
		run(t, "rdma", "link", "delete", ownName)
	}
	for _, name := range []string{ownBondDev, ownSpareDev, ownNetDev} {
		if _, err := os.Stat("/sys/class/net/" + name); err == nil {
			run(t, "ip", "link", "delete", name)
		}
	}
	require.NoError(t, err)
	return d, false
}

// run runs a command of the system's, which must succeed.
func run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// start runs a command of the system's that waits for something.
func start(t testing.TB, args ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	result := make(chan error, 1)
	go func() { result <- cmd.Wait() }()
	return result
}

// soon waits for what must become true.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}

// ownInterface makes a network interface for a test that is alone.
func ownInterface(t testing.TB) {
	t.Helper()
	run(t, "ip", "link", "add", ownNetDev, "type", "veth", "peer", "name", "rdma10")
	run(t, "ip", "address", "add", ownPrefix, "dev", ownNetDev)
	for _, end := range []string{"rdma10", ownNetDev} {
		run(t, "ip", "link", "set", end, "addrgenmode", "none") // no addresses that come by themselves
		run(t, "ip", "link", "set", end, "up")
	}
}

// ownDevice makes a device on an interface, and returns an address to listen at
// when it is ready.
func ownDevice(t testing.TB, netdev string) string {
	t.Helper()
	run(t, "rdma", "link", "add", ownName, "type", "rxe", "netdev", netdev)
	ip := netip.MustParsePrefix(ownPrefix).Addr()
	soon(t, "the device has its address", func() bool {
		c, err := ibverbs.Open(ownName)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		port, err := c.QueryPort(1)
		require.NoError(t, err)
		for i := range 8 {
			gid, err := c.QueryGID(1, i)
			require.NoError(t, err)
			if gid.Addr() == ip && port.State == ibverbs.PortActive {
				return true
			}
		}
		return false
	})
	return netip.AddrPortFrom(ip, 0).String()
}

// isListed reports whether libibverbs has a device.
func isListed(t testing.TB, name string) bool {
	t.Helper()
	devices, err := ibverbs.Devices()
	require.NoError(t, err)
	return slices.ContainsFunc(devices, func(d ibverbs.DeviceEntry) bool { return d.Name == name })
}

// find returns a device as librdmacm has it, nil if it has it not.
func find(t testing.TB, name string) *ibverbs.Device {
	t.Helper()
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(devices, func(c *ibverbs.Device) bool { return c.Name() == name })
	if i < 0 {
		return nil
	}
	return devices[i]
}
