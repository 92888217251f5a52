// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/transfer"
)

// The traffic is striped over two Soft-RoCE devices. It survives the removal of
// one by the kernel, and uses it again when it is back.
func TestSecondDeviceRemoved(t *testing.T) {
	testdevice.Needs(t, testdevice.Guest)
	if !guest.Alone(t) {
		return
	}
	first := needDevice(t) // before there is another one
	guest.Interface(t)
	guest.AddDevice(t, guest.NetDev)
	t.Cleanup(func() { // after the engines are closed
		deleted := guest.DeleteDevice(t)
		cmtest.Soon(t, "the device is let go", func() bool {
			_, _ = rdmacm.Devices() // closes what is not listed any more
			return len(deleted) > 0
		})
	})

	p := newPairAt(t, first.IPv4, transfer.Config{Connections: 2, RetryTimeout: time.Minute})
	require.ElementsMatch(t, []string{first.Name, guest.Device}, p.a.Devices())
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
	require.NoError(t, cmtest.Take(t, guest.DeleteDevice(t), "the engines let the device go"))
	t.Logf("on one device: %v", tr.goesOn())
	guest.AddDevice(t, guest.NetDev)
	bothUsed()
	tr.end()
	require.Zero(t, tr.failures())
}
