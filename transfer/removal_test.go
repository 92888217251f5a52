// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/transfer"
)

// The Soft-RoCE device that a test makes for itself, beside the guest's.
const (
	ownName   = "rxe9"
	ownNetDev = "rdma9"
	ownPrefix = "203.0.113.1/24"
)

// aloneEnv is set in the process that TestSecondDeviceRemoved starts.
const aloneEnv = "VERBENA_TRANSFER_ALONE"

// The traffic is striped over two Soft-RoCE devices. It survives the removal of
// one by the kernel, and uses it again when it is back.
func TestSecondDeviceRemoved(t *testing.T) {
	testdevice.Needs(t, testdevice.Guest)
	if os.Getenv(aloneEnv) == "" {
		// Before version 52, librdmacm loses devices in a process in which others
		// have come or gone, if C's memory has several arenas.
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), aloneEnv+"=1", "MALLOC_ARENA_MAX=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		_ = exec.Command("rdma", "link", "delete", ownName).Run() // the test may have done so
		require.NoError(t, exec.Command("ip", "link", "delete", ownNetDev).Run())
		require.NoError(t, err)
		return
	}
	guest := needDevice(t) // before there is another one
	system(t, "ip", "link", "add", ownNetDev, "type", "veth", "peer", "name", "rdma10")
	system(t, "ip", "address", "add", ownPrefix, "dev", ownNetDev)
	system(t, "ip", "link", "set", "rdma10", "up")
	system(t, "ip", "link", "set", ownNetDev, "up")
	makeOwnDevice(t)
	t.Cleanup(func() { // after the engines are closed
		deleted := deleteOwnDevice()
		cmtest.Soon(t, "the device is let go", func() bool {
			_, _ = rdmacm.Devices() // closes what is not listed any more
			return len(deleted) > 0
		})
	})

	p := newPairAt(t, guest.IPv4, transfer.Config{Connections: 2, RetryTimeout: time.Minute})
	require.ElementsMatch(t, []string{guest.Name, ownName}, p.a.Devices())
	tr := p.start(t, nil)
	bothUsed := func() {
		t.Helper()
		tr.until("all connections are up", func() bool { return transfer.Paths(p.dialed) == 4 && transfer.Paths(p.accepted) == 4 })
		before := p.dialed.Stats().Devices
		tr.until("both devices are used", func() bool {
			now := p.dialed.Stats().Devices
			return now[0].Slices > before[0].Slices && now[1].Slices > before[1].Slices
		})
	}
	bothUsed()
	require.NoError(t, cmtest.Take(t, deleteOwnDevice(), "the engines let the device go"))
	t.Logf("on one device: %v", tr.goesOn())
	makeOwnDevice(t)
	bothUsed()
	tr.end()
	require.Zero(t, tr.failures())
}

// deleteOwnDevice removes the device, for which the kernel waits until all
// programs have let it go.
func deleteOwnDevice() (ended <-chan error) {
	result := make(chan error, 1)
	go func() { result <- exec.Command("rdma", "link", "delete", ownName).Run() }()
	return result
}

// system runs a command of the system that must succeed.
func system(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// makeOwnDevice makes the device, and waits until it has its address.
func makeOwnDevice(t *testing.T) {
	t.Helper()
	system(t, "rdma", "link", "add", ownName, "type", "rxe", "netdev", ownNetDev)
	ip := netip.MustParsePrefix(ownPrefix).Addr()
	cmtest.Soon(t, "the device has its address", func() bool {
		info, err := ibverbs.QueryDeviceInfo(ownName)
		require.NoError(t, err)
		for _, gid := range info.Ports[0].GIDs {
			if gid.Addr() == ip && info.Ports[0].State == link.Active {
				return true
			}
		}
		return false
	})
}
