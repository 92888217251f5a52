// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"context"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// testAddrInfo looks up an address for an id, both ways to work, and writes
// events, as far as the kernel can.
func testAddrInfo(t *testing.T) {
	d := testdevice.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ep, err := endpoint.New(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	defer func() { require.NoError(t, ep.Close()) }()
	hints := &rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost, PortSpace: rdmacm.PortSpaceTCP}
	_, err = ep.ID().QueryAddrInfo()
	require.ErrorIs(t, err, syscall.ENOENT, "nothing was looked up")

	infos, err := ep.ResolveAddrInfo(ctx, d.IPv4.String(), "7471", hints)
	if !kernelWritesEvents(t) {
		require.ErrorIs(t, err, syscall.EIO, "librdmacm loses the errno")
		require.ErrorContains(t, err, "rdma_resolve_addrinfo")
		require.ErrorIs(t, ep.ID().WriteUserEvent(7, 8), syscall.EINVAL)
		return
	}
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.Equal(t, netip.AddrPortFrom(d.IPv4, 7471), infos[0].Dst)
	for code, look := range map[int][2]string{-2: {"no name", "7471"}, -8: {d.IPv4.String(), "no service"}} {
		_, err = ep.ResolveAddrInfo(ctx, look[0], look[1], hints)
		var failed *rdmacm.AddrInfoError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, code, failed.Code)
	}
	infos, err = ep.ResolveAddrInfo(ctx, d.IPv4.String(), "7", hints)
	require.NoError(t, err, "once more")
	require.EqualValues(t, 7, infos[0].Dst.Port())

	require.NoError(t, ep.ID().WriteUserEvent(-7, 1<<63))
	ev, err := ep.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventUser, ev.Type)
	require.Equal(t, -7, ev.Status)
	require.Equal(t, uint64(1<<63), ev.Arg)
	require.NoError(t, ev.Err())

	// Events that were not taken move along, in order.
	const events = 100
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	defer func() { require.NoError(t, ch.Close()) }()
	id := ep.ID()
	for i := range uint64(events) {
		require.NoError(t, id.WriteUserEvent(0, i))
		if i == events/2 {
			_, err = ep.Migrate(ch)
			require.NoError(t, err)
		}
	}
	for i := range uint64(events) {
		ev, err := ch.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, i, ev.Arg)
	}
	require.NoError(t, id.ResolveAddrInfo(d.IPv4.String(), "9", hints))
	ev, err = ch.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventAddrInfoResolved, ev.Type)
	infos, err = id.QueryAddrInfo()
	require.NoError(t, err)
	require.EqualValues(t, 9, infos[0].Dst.Port())
	require.NoError(t, id.Close())
}

// testUserEventsUnderLoad moves an id to and fro while events are written.
func testUserEventsUnderLoad(t *testing.T) {
	testdevice.Require(t)
	if !kernelWritesEvents(t) {
		return // as testAddrInfo proves
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	channels := [2]*rdmacm.EventChannel{}
	for i := range channels {
		ch, err := rdmacm.NewEventChannel()
		require.NoError(t, err)
		defer func() { require.NoError(t, ch.Close()) }()
		channels[i] = ch
	}
	id, err := channels[0].NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	defer func() { require.NoError(t, id.Close()) }()
	const events = 2000
	written := make(chan error, 1)
	go func() {
		for i := range uint64(events) {
			if err := id.WriteUserEvent(0, i); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	moves := 0
	for want := uint64(0); want < events; {
		ev, ok, err := channels[moves%2].Poll()
		require.NoError(t, err)
		require.NoError(t, ctx.Err())
		if ok {
			require.Equal(t, want, ev.Arg)
			want++
		}
		if want%5 == 0 { // through the endpoint, or straight
			moves++
			if moves%3 == 0 {
				ep, err := endpoint.FromID(id)
				require.NoError(t, err)
				_, err = ep.Migrate(channels[moves%2])
				require.NoError(t, err)
			} else {
				require.NoError(t, id.Migrate(channels[moves%2]))
			}
		}
	}
	require.NoError(t, <-written)
	t.Logf("%d events in order, over %d moves", events, moves)
}
