// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func TestPort(t *testing.T) {
	d := newNode(t, 1)
	a, err := d.PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_PORT_ACTIVE, a.State)
	require.Equal(t, libibverbs.IBV_MTU_4096, a.ActiveMtu)
	require.EqualValues(t, libibverbs.IBV_LINK_LAYER_ETHERNET, a.LinkLayer)
	for _, port := range []uint32{0, 2, math.MaxUint32} {
		require.ErrorIs(t, second(d.PortAttr(port)), syscall.EINVAL)
		require.ErrorIs(t, second(d.GID(port, 0)), syscall.EINVAL)
		require.ErrorIs(t, second(d.PKey(port, 0)), syscall.ENOENT)
	}
	key, err := d.PKey(1, 0)
	require.NoError(t, err)
	require.EqualValues(t, 0xFFFF, key)
	require.ErrorIs(t, second(d.PKey(1, 1)), syscall.ENOENT)
	require.ErrorIs(t, second(d.PKey(1, -1)), syscall.ENOENT)

	d.SetPort(true)
	d.requireEvents() // it was up
	d.SetPort(false)
	d.SetPort(false)
	a, err = d.PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_PORT_DOWN, a.State)
	d.SetPort(true)
	d.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_PORT_ERR, 1}, AsyncEvent{libibverbs.IBV_EVENT_PORT_ACTIVE, 1})
	a, err = d.PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_PORT_ACTIVE, a.State)

	small, err := New(Config{MTU: libibverbs.IBV_MTU_1024}).PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_MTU_1024, small.ActiveMtu)
	require.Equal(t, libibverbs.IBV_MTU_4096, small.MaxMtu)
}

func TestGIDTable(t *testing.T) {
	d := newNode(t, 1)
	six := wire.GID{0: 0x20, 1: 0x01, 15: 1}
	require.False(t, d.addresses[six])
	for range 2 {
		require.NoError(t, d.SetGID(255, GIDEntry{GID: six, NetDev: 7}))
	}
	require.True(t, d.addresses[six])
	require.False(t, d.addresses[wire.GID{}])
	d.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_GID_CHANGE, 1}) // only a change

	all, err := d.GIDs()
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, wire.GID(*all[0].Gid.Raw()), testGID(1))
	last := all[1]
	require.Equal(t, six, wire.GID(*last.Gid.Raw()))
	require.Equal(t, [...]uint32{255, 1, uint32(libibverbs.IBV_GID_TYPE_ROCE_V2), 7},
		[...]uint32{last.GidIndex, last.PortNum, uint32(last.GidType), last.NdevIfindex})
	one, err := d.GID(1, 255)
	require.NoError(t, err)
	require.Equal(t, last, one)

	require.NoError(t, d.SetGID(254, GIDEntry{GID: six}))
	require.NoError(t, d.SetGID(255, GIDEntry{}))
	require.True(t, d.addresses[six], "it was there twice")
	require.NoError(t, d.SetGID(254, GIDEntry{}))
	require.False(t, d.addresses[six])
	require.Len(t, d.takeEvents(), 3)
	require.ErrorIs(t, second(d.GID(1, 255)), noData)
	for _, index := range []int{-1, 256, math.MaxInt32} {
		require.ErrorIs(t, d.SetGID(index, GIDEntry{GID: six}), syscall.EINVAL)
		require.ErrorIs(t, second(d.GID(1, uint32(index))), syscall.EINVAL)
	}
	d.requireEvents()
}
