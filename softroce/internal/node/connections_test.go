// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A message that is sent again goes to this node at once, and does not wait for
// what comes next.
func TestRepeatedMessageArrives(t *testing.T) {
	w := newWired(t)
	require.NoError(t, w.devices.cards[0].current.SetGID(1, engine.GIDEntry{GID: wire.GIDOf(loopback)}))
	requests := w.listen(t, loopback, 7174, 1)
	channel := w.cm.manager.NewChannel(func(int) {})
	id, err := w.cm.manager.NewID(channel, librdmacm.RDMA_PS_TCP, 0, nil)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(loopback, 7174)))
	require.NotNil(t, channel.Next())
	require.NoError(t, id.ResolveRoute(time.Second))
	require.NotNil(t, channel.Next())

	w.SetFaults(func(*wire.Packet) Fault { return Fault{Drop: true} })
	now := w.Now()
	require.NoError(t, id.Connect(now, manager.DefaultConnParam()))
	require.Empty(t, w.cm.mads)
	w.SetFaults(nil)
	later := now + time.Minute // the request is repeated before
	require.LessOrEqual(t, w.advance(later), later)
	require.NotEmpty(t, w.cm.mads)
	require.Nil(t, requests.Next())
	w.advance(later)
	require.NotNil(t, requests.Next())
}
