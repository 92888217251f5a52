// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cmevent"
)

// A channel without a descriptor wakes its reader for each event, also for
// events that move to it with an id.
func TestChannelWithoutDescriptor(t *testing.T) {
	from, to := newProgram(t), newProgram(t)
	to7 := sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 7))
	var woken atomic.Int32
	wake := func() bool {
		woken.Add(1)
		return true
	}
	taken := cmevent.Take(from.channel, wake)
	require.NotNil(t, taken)
	require.Equal(t, int32(noEventfd), from.channel.Fd)
	require.False(t, taken.Pending())
	require.Nil(t, taken.Next())

	id := from.id(tcp)
	require.NoError(t, librdmacm.ResolveAddr(id, nil, to7, 1000))
	isWoken := func() bool { return woken.Load() > 0 } // after the event is pending
	require.Eventually(t, isWoken, patience, time.Millisecond)
	require.True(t, taken.Pending())
	require.Equal(t, int32(1), woken.Load())
	e := taken.Next()
	require.Equal(t, librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED, e.Event)
	require.Same(t, id, e.Id)
	require.False(t, taken.Pending())
	taken.Ack(e)

	require.NoError(t, librdmacm.ResolveRoute(id, 1000))
	require.Eventually(t, taken.Pending, patience, time.Millisecond)
	require.NoError(t, librdmacm.MigrateId(id, to.channel))
	require.False(t, taken.Pending(), "the event has moved")
	require.NoError(t, librdmacm.MigrateId(id, from.channel))
	require.True(t, taken.Pending(), "the event is back")
	require.Equal(t, int32(3), woken.Load())
	destroy(t, id)
	require.False(t, taken.Pending(), "the event is dropped")
	require.Nil(t, taken.Next())
}

func TestChannelOfNoDevice(t *testing.T) {
	self()
	require.Nil(t, cmevent.Take(new(librdmacm.EventChannel), func() bool { return false }))
}
