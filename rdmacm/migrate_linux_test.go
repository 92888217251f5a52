// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// An id goes on as an endpoint from any state, with the queue pair that the
// caller has made.
func TestEndpointOfID(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	require.Same(t, client.qp, client.id.QP())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	require.Eventually(t, func() bool { return rdmacm.Readable(ln.ch) }, patience, time.Millisecond)

	listener, err := endpoint.FromID(ln.id) // with an unread request
	require.NoError(t, err)
	server := cmtest.GetRequest(t, listener)
	_, err = server.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	accepted := inBackground(func() error { return server.Accept(ctx, rdmacm.ConnParam{}) })
	require.Eventually(t, func() bool { return rdmacm.Readable(client.ch) }, patience, time.Millisecond)
	ep, err := endpoint.FromID(client.id) // with an unread answer
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	cmtest.NextOf(t, ep, rdmacm.EventEstablished)
	in, err := server.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, server.PostRecv(1, in.All()))
	out, err := ep.RegMsgs([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, ep.PostSend(2, 0, out.All()))
	_, err = server.RecvComp(ctx)
	require.NoError(t, err)
	_, err = ep.SendComp(ctx)
	require.ErrorContains(t, err, "made without CQConfig.Channel", "the caller's queue has none")
	require.NoError(t, client.qp.Close())
	require.NoError(t, ep.Close())
	require.NoError(t, listener.Close())
}

// Unread events move along in order, while other goroutines use the dispatcher.
func TestMigrateUnderLoad(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	busy := listenOn(t, d.IPv4)
	stop := serve(t, busy)
	var load sync.WaitGroup
	loading, done := context.WithCancel(ctx)
	for range 2 {
		load.Go(func() {
			for loading.Err() == nil {
				conn, err := rdmacm.Dial(ctx, busy.Addr().String(), inPool(nil))
				if err == nil {
					err = conn.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	const requests = 6
	ch := newChannel(t)
	id, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, id.Close()) })
	require.NoError(t, id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	require.NoError(t, id.Listen(requests))
	var connected []<-chan error
	for i := range requests {
		client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, id.LocalAddr())
		connected = append(connected, inBackground(func() error {
			_, err := client.Connect(ctx, rdmacm.ConnParam{PrivateData: []byte{byte(i)}})
			return err
		}))
		require.Eventually(t, func() bool { return rdmacm.Readable(ch) }, patience, time.Millisecond)
		ep, err := endpoint.FromID(id)
		require.NoError(t, err)
		ch = newChannel(t)
		t.Cleanup(func() { require.NoError(t, id.Close()) }) // before its channel
		_, err = ep.Migrate(ch)
		require.NoError(t, err)
	}
	for i := range requests {
		request := next(t, ch, rdmacm.EventConnectRequest)
		require.Same(t, id, request.ListenID)
		require.EqualValues(t, i, request.PrivateData[0])
		require.NoError(t, request.ID.Reject(nil))
		require.NoError(t, request.ID.Close())
		require.ErrorIs(t, <-connected[i], syscall.ECONNREFUSED)
	}
	done()
	load.Wait()
	stop()
}

// The events of a connection stay in order.
func TestMigrateKeepsOrder(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	other, third := newChannel(t), newChannel(t)
	client := newEnd(t)
	client.resolve(ln.ID().LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	server := cmtest.GetRequest(t, ln)
	accepted := inBackground(func() error { return server.Accept(ctx, rdmacm.ConnParam{}) })
	require.Eventually(t, func() bool { return rdmacm.Readable(client.ch) }, patience, time.Millisecond)
	// Migrate reads the answer, which completes the handshake.
	require.NoError(t, client.id.Migrate(other))
	require.NoError(t, <-accepted)
	disconnected := inBackground(func() error { return server.Disconnect(ctx) })
	require.Eventually(t, func() bool { return rdmacm.Readable(other) }, patience, time.Millisecond)
	require.NoError(t, client.id.Migrate(third))
	require.Same(t, client.id, next(t, third, rdmacm.EventEstablished).ID)
	next(t, third, rdmacm.EventDisconnected)
	require.NoError(t, client.id.Disconnect())
	require.NoError(t, <-disconnected)
}

// While an ID moves, the events of other IDs arrive, and its own wait.
func TestMoveDelaysNoOtherEvents(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	moving, other := newID(t, ch), newID(t, ch)
	release := rdmacm.HoldMove(moving)
	for _, id := range []*rdmacm.ID{moving, other} {
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7), patience))
	}
	require.Same(t, other, next(t, ch, rdmacm.EventAddrResolved).ID)
	require.NoError(t, other.ResolveRoute(patience))
	require.Same(t, other, next(t, ch, rdmacm.EventRouteResolved).ID)
	release()
	require.Same(t, moving, next(t, ch, rdmacm.EventAddrResolved).ID)
}

// An event that arrives while its ID moves is the one that the kernel has sent,
// whichever of the two channels it is read from.
func TestMoveWhileResolving(t *testing.T) {
	d := needDevice(t)
	here, there := newChannel(t), newChannel(t)
	events := make(chan *rdmacm.Event, 1)
	var reading sync.WaitGroup
	ctx, stop := context.WithCancel(bounded(t))
	for _, ch := range []*rdmacm.EventChannel{here, there} {
		reading.Go(func() {
			for ev, err := range ch.Events(ctx) {
				if err != nil {
					return
				}
				events <- ev
			}
		})
	}
	for range 300 {
		id, err := here.NewID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7), patience))
		require.NoError(t, id.Migrate(there))
		ev := cmtest.Take(t, events, "the event")
		require.Same(t, id, ev.ID)
		require.NoError(t, ev.Err())
		require.Equal(t, rdmacm.EventAddrResolved, ev.Type)
		require.NoError(t, id.Close())
	}
	stop()
	reading.Wait()
}

// IDs that move all the time do not keep the events of another from being read.
func TestEndlessMoves(t *testing.T) {
	d := needDevice(t)
	ch, there := newChannel(t), newChannel(t)
	resolving := newID(t, ch)
	var moves sync.WaitGroup
	moving, done := context.WithCancel(bounded(t))
	for range 8 {
		id := newID(t, ch)
		moves.Go(func() {
			for at, to := ch, there; moving.Err() == nil; at, to = to, at {
				if err := id.Migrate(to); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		require.NoError(t, resolving.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7), patience))
		next(t, ch, rdmacm.EventAddrResolved)
		require.NoError(t, resolving.Close())
		resolving = newID(t, ch)
	}
	done()
	moves.Wait()
}
