package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// From asynchronous to synchronous and back, with a connection up.
func TestMigrateBothWays(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connectEndpoints(t, d.IPv4)
	ch := newChannel(t)
	next1 := inBackground(func() error { _, err := client.Next(t.Context()); return err })
	id, err := client.Migrate(ch)
	require.NoError(t, err)
	require.Same(t, client.ID(), id)
	require.ErrorContains(t, <-next1, "the endpoint was migrated")
	for name, call := range map[string]func() error{
		"Migrate":    func() error { _, err := client.Migrate(ch); return err },
		"Next":       func() error { _, err := client.Next(ctx); return err },
		"Disconnect": func() error { return client.Disconnect(ctx) },
		"Connect":    func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err },
	} {
		err := call()
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "use the ID that Migrate has returned", name)
	}
	require.NoError(t, id.Disconnect())
	nextOf(t, server, rdmacm.EventDisconnected)
	require.NoError(t, server.Disconnect(ctx))
	require.Same(t, id, next(t, ch, rdmacm.EventDisconnected).ID)

	again, err := id.Endpoint()
	require.NoError(t, err)
	_, err = id.Endpoint()
	require.ErrorContains(t, err, "the id's events are read for an Endpoint")
	require.ErrorContains(t, id.Migrate(ch), "the id's events are read for an Endpoint")
	require.NoError(t, again.Disconnect(ctx), "it is over already")
	require.NoError(t, client.Close(), "closes the queue pair alone")
	require.NotZero(t, id.PortNum())
	require.NoError(t, again.Close())
	require.ErrorIs(t, id.Disconnect(), os.ErrClosed)
}

// An id goes on as an endpoint from where it is, with the queue pair that the
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

	listener, err := ln.id.Endpoint() // with a request that nobody has read
	require.NoError(t, err)
	server := getRequest(t, listener)
	_, err = server.CreateQP(nil, endpointQueues)
	require.NoError(t, err)
	accepted := inBackground(func() error { return server.Accept(ctx, rdmacm.ConnParam{}) })
	require.Eventually(t, func() bool { return rdmacm.Readable(client.ch) }, patience, time.Millisecond)
	ep, err := client.id.Endpoint() // with the answer, which nobody has read
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	nextOf(t, ep, rdmacm.EventEstablished)
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

// What a call has started goes on after the endpoint has moved.
func TestMigrateWhileResolving(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	ep := newEndpoint(t, rdmacm.PortSpaceTCP)
	resolved := inBackground(func() error {
		// Nobody has the address.
		return ep.ResolveAddr(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(d.IPv4.Next().Next(), 7))
	})
	require.Eventually(t, func() bool { return rdmacm.EndpointCalls(ep) == 1 }, patience, time.Millisecond)
	id, err := ep.Migrate(ch)
	require.NoError(t, err)
	require.ErrorContains(t, <-resolved, "the endpoint was migrated")
	require.Same(t, id, next(t, ch, rdmacm.EventAddrError).ID)
	require.NoError(t, id.Close())
}

// What is read for an id stays with who reads it.
func TestMigrateRefused(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	client, server := connect(t, d.IPv4, nil, nil)
	for name, id := range map[string]*rdmacm.ID{"dialed": client.ID(), "accepted": server.ID(), "endpoint": newEndpoint(t, rdmacm.PortSpaceTCP).ID()} {
		require.ErrorContains(t, id.Migrate(ch), "events are read for", name)
		_, err := id.Endpoint()
		require.ErrorContains(t, err, "events are read for", name)
	}
	id := newID(t, ch)
	require.ErrorIs(t, id.Migrate(nil), os.ErrInvalid)
	require.ErrorIs(t, id.Migrate(new(rdmacm.EventChannel)), os.ErrInvalid)
	require.NoError(t, id.Migrate(ch), "where it is")
	other, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.ErrorIs(t, id.Migrate(other), os.ErrClosed)
	_, err = newEndpoint(t, rdmacm.PortSpaceTCP).Migrate(other)
	require.ErrorIs(t, err, os.ErrClosed)
}

// What nobody has read moves along, in order, while others use the dispatcher.
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
				conn, err := rdmacm.Dial(ctx, busy.Addr().String(), nil)
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
		client := activeEndpoint(t, rdmacm.PortSpaceTCP, id.LocalAddr())
		connected = append(connected, inBackground(func() error {
			_, err := client.Connect(ctx, rdmacm.ConnParam{PrivateData: []byte{byte(i)}})
			return err
		}))
		require.Eventually(t, func() bool { return rdmacm.Readable(ch) }, patience, time.Millisecond)
		ep, err := id.Endpoint()
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
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	other, third := newChannel(t), newChannel(t)
	client := newEnd(t)
	client.resolve(ln.ID().LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	server := getRequest(t, ln)
	accepted := inBackground(func() error { return server.Accept(ctx, rdmacm.ConnParam{}) })
	require.Eventually(t, func() bool { return rdmacm.Readable(client.ch) }, patience, time.Millisecond)
	require.NoError(t, client.id.Migrate(other)) // which reads the answer, and so completes the handshake
	require.NoError(t, <-accepted)
	disconnected := inBackground(func() error { return server.Disconnect(ctx) })
	require.Eventually(t, func() bool { return rdmacm.Readable(other) }, patience, time.Millisecond)
	require.NoError(t, client.id.Migrate(third))
	require.Same(t, client.id, next(t, third, rdmacm.EventEstablished).ID)
	next(t, third, rdmacm.EventDisconnected)
	require.NoError(t, client.id.Disconnect())
	require.NoError(t, <-disconnected)
}

// A listener that closes takes with it what moved and nobody has read.
func TestCloseAfterMigrate(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := activeEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	require.Eventually(t, func() bool { return rdmacm.EndpointRequests(ln) == 1 }, patience, time.Millisecond)
	ch, other := newChannel(t), newChannel(t)
	id, err := ln.Migrate(ch)
	require.NoError(t, err)
	require.NoError(t, id.Migrate(other), "with the request")
	require.NoError(t, id.Close())
	require.ErrorIs(t, <-connected, syscall.ECONNREFUSED)
	ev, ok, err := other.Poll()
	require.NoError(t, err)
	require.False(t, ok, "%v", ev)
}
