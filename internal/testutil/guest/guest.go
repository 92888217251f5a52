// SPDX-License-Identifier: Apache-2.0

// Package guest changes the guest of tests/vm for tests: it makes and removes a
// Soft-RoCE device beside the guest's own.
package guest

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// The device, the interface that Interface makes for it, and the address that
// it is to have.
const (
	Device = "rxe9"
	NetDev = "rdma9"
	Prefix = "203.0.113.1/24"

	netDevPeer = "rdma10"
)

// Alone runs the test again in a process of its own, as tests that make and
// remove devices need, and returns true there. Elsewhere, it removes the device
// and the interfaces afterwards, also those with the given names. The test must
// need the guest.
//
// Before version 52 librdmacm loses devices in a process in which other devices
// have come or gone, if their records are more than 2 GiB apart. They can be
// when several threads allocate memory. So all of C's memory comes from one
// arena.
func Alone(t testing.TB, interfaces ...string) bool {
	t.Helper()
	defer func() {
		if process.IsAlone(t) {
			return
		}
		// While the process ran, deleting the device could have waited for it.
		if IsListed(t, Device) {
			Run(t, "rdma", "link", "delete", Device)
		}
		for _, name := range append(interfaces, NetDev) {
			if _, err := os.Stat("/sys/class/net/" + name); err == nil {
				Run(t, "ip", "link", "delete", name)
			}
		}
	}()
	return process.Alone(t, "MALLOC_ARENA_MAX=1")
}

// Run runs a command of the system that must succeed.
func Run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// Interface makes a network interface with the address.
func Interface(t testing.TB) {
	t.Helper()
	Run(t, "ip", "link", "add", NetDev, "type", "veth", "peer", "name", netDevPeer)
	Run(t, "ip", "address", "add", Prefix, "dev", NetDev)
	for _, end := range []string{netDevPeer, NetDev} {
		Run(t, "ip", "link", "set", end, "addrgenmode", "none") // no addresses of the kernel's own
		Run(t, "ip", "link", "set", end, "up")
	}
}

// AddDevice makes the device on an interface that has the address. It returns
// an address to listen at when the device is ready.
func AddDevice(t testing.TB, netdev string) string {
	t.Helper()
	Run(t, "rdma", "link", "add", Device, "type", "rxe", "netdev", netdev)
	ip := netip.MustParsePrefix(Prefix).Addr()
	cmtest.Soon(t, "the device has its address", func() bool {
		info, err := ibverbs.QueryDeviceInfo(Device)
		require.NoError(t, err)
		return info.Ports[0].State == link.Active &&
			slices.ContainsFunc(info.Ports[0].GIDs, func(gid ibverbs.GIDEntry) bool { return gid.Addr() == ip })
	})
	return netip.AddrPortFrom(ip, 0).String()
}

// DeleteDevice removes the device, for which the kernel waits until all
// programs have let it go.
func DeleteDevice(t testing.TB) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command("rdma", "link", "delete", Device)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	result := make(chan error, 1)
	go func() { result <- cmd.Wait() }()
	return result
}

// IsListed reports whether libibverbs lists a device.
func IsListed(t testing.TB, name string) bool {
	t.Helper()
	devices, err := ibverbs.Devices()
	require.NoError(t, err)
	return slices.ContainsFunc(devices, func(d ibverbs.DeviceEntry) bool { return d.Name == name })
}
