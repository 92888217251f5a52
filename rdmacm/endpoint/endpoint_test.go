// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// The way from nothing to a connection and back, one step after the other.
func TestEndpointSteps(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	ln := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	require.NoError(t, ln.Listen(1))

	client := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, client.ResolveAddr(ctx, netip.AddrPort{}, ln.ID().LocalAddr()))
	require.NoError(t, client.ResolveRoute(ctx))
	qp, err := client.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	require.Same(t, qp, client.QP())
	require.Same(t, qp.PD(), client.PD())
	p := rdmacm.ConnParam{}
	p.PrivateData = []byte("step by step")
	answer := make(chan *rdmacm.Event, 1)
	connected := cmtest.InBackground(func() error {
		ev, err := client.Connect(ctx, p)
		answer <- ev
		return err
	})

	server, err := ln.GetRequest(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	request := server.ID().Request()
	require.Equal(t, rdmacm.EventConnectRequest, request.Type)
	require.Equal(t, cmtest.Padded(p.PrivateData, cmtest.MaxRequestData), request.PrivateData)
	require.Same(t, ln.ID(), request.ListenID)
	require.Same(t, server.ID(), request.ID)
	require.Equal(t, qp.Num(), request.QPNum)
	require.NotZero(t, request.ResponderResources, "as many as the device has")
	require.EqualValues(t, 6, request.RetryCount)
	require.Nil(t, server.QP(), "Create had no config for one")
	_, err = server.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	p.PrivateData = []byte("welcome")
	require.NoError(t, server.Accept(ctx, p))
	require.NoError(t, <-connected)
	require.Equal(t, cmtest.Padded(p.PrivateData, cmtest.MaxReplyData), (<-answer).PrivateData)
	require.Equal(t, client.ID().LocalAddr(), server.ID().RemoteAddr())
	require.Equal(t, ln.ID().LocalAddr(), server.ID().LocalAddr())

	disconnected := cmtest.InBackground(func() error { return client.Disconnect(ctx) })
	require.ErrorIs(t, cmtest.NextOf(t, server, rdmacm.EventDisconnected).Err(), syscall.ECONNRESET)
	require.NoError(t, server.Disconnect(ctx), "the peer was first, and hears of it now")
	require.NoError(t, <-disconnected)
	require.NoError(t, client.Disconnect(ctx), "again")
}

func TestEndpointRejected(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := cmtest.GetRequest(t, ln)
	require.NoError(t, server.ID().Reject([]byte("not today")))
	err := <-connected
	var rejected *rdmacm.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.ErrorContains(t, err, "rdma_connect ("+client.ID().LocalAddr().String()+" to ")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, rdmacm.ReasonConsumer, rejected.Reason)
	require.Equal(t, cmtest.Padded([]byte("not today"), cmtest.MaxRejectData), rejected.PrivateData)

	silent := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, netip.AddrPortFrom(d.IPv4, 1))
	_, err = silent.Connect(ctx, rdmacm.ConnParam{})
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, rdmacm.ReasonNoListener, rejected.Reason)
}

func TestEndpointAddrError(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	// No host has the address. Without a deadline, C gives up.
	dst := netip.AddrPortFrom(d.IPv4.Next().Next(), 7)
	err := ep.ResolveAddr(t.Context(), netip.AddrPort{}, dst)
	var failed *rdmacm.EventError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, rdmacm.EventAddrError, failed.Type)
	require.ErrorContains(t, err, "rdma_resolve_addr (")
	t.Log(err)
	// The first one failed, so there is another try, with an outcome of its
	// own.
	require.NoError(t, ep.ResolveAddr(cmtest.Bounded(t), netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7)))
	require.NoError(t, ep.ResolveRoute(cmtest.Bounded(t)))
}

func TestEndpointTransfers(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	d.Have(t, testdevice.Segments(2), testdevice.Immediate)
	two := cmtest.EndpointQueues
	two.SendSegments, two.RecvSegments = 2, 2
	client, server := cmtest.ConnectEndpointsWith(t, d.IPv4, two)

	send, recv := make([]byte, 16), make([]byte, 16)
	copy(send, "in two pieces ..")
	out, err := client.RegMsgs(send)
	require.NoError(t, err)
	require.Equal(t, ibverbs.AccessLocalWrite, out.Access())
	in, err := server.RegMsgs(recv)
	require.NoError(t, err)
	require.NoError(t, server.PostRecv(1, in.Sub(8, 8), in.Sub(0, 8)))
	require.NoError(t, client.PostSend(2, 0, out.Sub(0, 8), out.Sub(8, 8)))
	wc, err := client.SendComp(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, wc.ID())
	wc, err = server.RecvComp(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, wc.ID())
	require.Equal(t, 16, wc.ByteLen())
	require.Equal(t, "ieces ..in two p", string(recv))

	readable, err := server.RegRead([]byte("read me"))
	require.NoError(t, err)
	require.Equal(t, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead, readable.Access())
	require.NoError(t, client.PostRead(3, readable.Remote(), 0, out.Sub(0, 7)))
	wc, err = client.SendComp(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, wc.ID())
	require.Equal(t, "read me", string(send[:7]))

	writable, err := server.RegWrite(make([]byte, 7))
	require.NoError(t, err)
	require.Equal(t, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite, writable.Access())
	require.NoError(t, client.PostWrite(4, writable.Remote(), ibverbs.SendSignaled, out.Sub(0, 4), out.Sub(4, 3)))
	_, err = client.SendComp(ctx)
	require.NoError(t, err)
	require.Equal(t, "read me", string(writable.Bytes()))

	// What the peer has not allowed fails, with the completion.
	require.NoError(t, client.PostWrite(5, readable.Remote(), 0, out.Sub(0, 7)))
	wc, err = client.SendComp(ctx)
	var failed *ibverbs.WCError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, ibverbs.WCRemoteAccess, failed.Status)
	require.EqualValues(t, 5, wc.ID())
	require.NoError(t, out.Close(), "before its endpoint")
}

// When the peer leaves, nothing is waited for any more that cannot complete.
func TestEndpointPeerLeaves(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.LatePosts)
	client, server := cmtest.ConnectEndpoints(t, d.IPv4)
	in, err := server.RegMsgs(make([]byte, 16))
	require.NoError(t, err)
	require.NoError(t, server.PostRecv(1, in.All()))
	received := cmtest.InBackground(func() error { _, err := server.RecvComp(cmtest.Bounded(t)); return err })
	require.NoError(t, client.Close())
	require.ErrorIs(t, <-received, ibverbs.WCFlushed)
	require.NoError(t, server.PostSend(2, 0, in.All()))
	_, err = server.SendComp(cmtest.Bounded(t))
	require.ErrorIs(t, err, ibverbs.WCFlushed)
}

// Requests take their receives from one shared queue.
func TestEndpointSRQ(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.SRQs, testdevice.Segments(2))
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	_, err := client.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 4})
	require.ErrorContains(t, err, "rdma_create_srq (unbound id): bind or resolve the address first")
	require.NoError(t, client.ResolveAddr(ctx, netip.AddrPort{}, ln.ID().LocalAddr()))
	require.NoError(t, client.ResolveRoute(ctx))
	srq, err := client.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 4, RecvSegments: 2})
	require.NoError(t, err)
	require.Same(t, srq.PD(), client.PD())
	_, err = client.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 4})
	require.ErrorContains(t, err, "the id has a shared receive queue")
	_, err = client.CreateQP(nil, ibverbs.QPConfig{SendQueue: 1})
	require.NoError(t, err)
	in, err := client.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, client.PostRecv(9, in.Sub(0, 4), in.Sub(4, 4)))
	attr, err := srq.Query()
	require.NoError(t, err)
	require.GreaterOrEqual(t, attr.RecvQueue, 4)

	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := cmtest.GetRequest(t, ln)
	require.True(t, server.ID().Request().SRQ)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	require.NoError(t, server.PostRecv(2)) // on iWARP, the client sends first
	require.NoError(t, client.PostSend(3, 0))
	_, err = server.RecvComp(ctx)
	require.NoError(t, err)
	out, err := server.RegMsgs([]byte("shared"))
	require.NoError(t, err)
	require.NoError(t, server.PostSend(1, 0, out.All()))
	wc, err := client.RecvComp(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 9, wc.ID())
	require.Equal(t, "shared", string(in.Bytes()[:wc.ByteLen()]))
}

func TestEndpointBacklog(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	ln := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	require.NoError(t, ln.Listen(2))
	var connected []<-chan error
	for range 3 {
		client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
		connected = append(connected, cmtest.InBackground(func() error {
			_, err := client.Connect(ctx, rdmacm.ConnParam{})
			return err
		}))
	}
	// One is refused, whichever comes last; the others wait until Close.
	refused := make(chan error, len(connected))
	for _, result := range connected {
		go func() { refused <- <-result }()
	}
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
	select {
	case err := <-refused:
		t.Fatalf("a second one is refused: %v", err)
	default:
	}
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
}

// Each wait ends with its context, and with Close.
func TestEndpointWaitsEnd(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	established, _ := cmtest.ConnectEndpoints(t, d.IPv4)
	waits := map[string]func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error){
		"GetRequest": func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error) {
			ep := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
			return ep, func(ctx context.Context) error { _, err := ep.GetRequest(ctx); return err }
		},
		"Next": func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error) {
			ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
			return ep, func(ctx context.Context) error { _, err := ep.Next(ctx); return err }
		},
		"Connect": func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error) {
			ep := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr()) // no peer answers there
			return ep, func(ctx context.Context) error { _, err := ep.Connect(ctx, rdmacm.ConnParam{}); return err }
		},
		"RecvComp": func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error) {
			ep := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
			return ep, func(ctx context.Context) error { _, err := ep.RecvComp(ctx); return err }
		},
		"SendComp": func(t *testing.T) (*endpoint.Endpoint, func(context.Context) error) {
			return established, func(ctx context.Context) error { _, err := established.SendComp(ctx); return err }
		},
	}
	for name, open := range waits {
		t.Run(name, func(t *testing.T) {
			ep, wait := open(t)
			require.ErrorIs(t, wait(cmtest.Canceled(t)), context.Canceled)
			if name == "Connect" { // once only
				ep, wait = open(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, wait(ctx), os.ErrDeadlineExceeded)
			if name == "Connect" {
				ep, wait = open(t)
			}
			result := cmtest.InBackground(func() error { return wait(t.Context()) })
			require.NoError(t, ep.Close())
			require.ErrorIs(t, <-result, os.ErrClosed)
			require.NoError(t, ep.Close(), "again")
			require.ErrorIs(t, wait(t.Context()), os.ErrClosed)
		})
	}
}

// A call that its context has ended leaves its event to Next.
func TestEndpointAbandonedCall(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	ctx, cancel := context.WithCancel(t.Context())
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := cmtest.GetRequest(t, ln)
	cancel()
	require.ErrorIs(t, <-connected, context.Canceled)
	require.NoError(t, server.Accept(cmtest.Bounded(t), rdmacm.ConnParam{}))
	cmtest.NextOf(t, client, rdmacm.EventEstablished)
	disconnected := cmtest.InBackground(func() error { return client.Disconnect(cmtest.Bounded(t)) })
	cmtest.NextOf(t, server, rdmacm.EventDisconnected)
	require.NoError(t, server.Close(), "which answers")
	require.NoError(t, <-disconnected)
}

// Bytes of an AddrInfo go before the private data.
func TestEndpointConnectBytes(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.InfiniBand)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	info := rdmacm.AddrInfo{Dst: ln.ID().LocalAddr(), Connect: []byte("first ")}
	client, err := endpoint.Create(ctx, info, nil, &cmtest.EndpointQueues)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	connected := cmtest.InBackground(func() error {
		_, err := client.Connect(ctx, rdmacm.ConnParam{PrivateData: make([]byte, cmtest.MaxRequestData-5)})
		require.ErrorContains(t, err, "private data has 57 bytes")
		_, err = client.Connect(ctx, rdmacm.ConnParam{PrivateData: []byte("then")})
		return err
	})
	server := cmtest.GetRequest(t, ln)
	require.Equal(t, cmtest.Padded([]byte("first then"), cmtest.MaxRequestData), server.ID().Request().PrivateData)
	require.NoError(t, server.ID().Reject(nil))
	require.ErrorIs(t, <-connected, syscall.ECONNREFUSED)
}

func TestEndpointDatagrams(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.Datagrams)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceUDP, d.IPv4)
	client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceUDP, ln.ID().LocalAddr())
	require.Equal(t, ibverbs.QPTypeUD, client.QP().Type())
	answer := make(chan *rdmacm.Event, 1)
	connected := cmtest.InBackground(func() error {
		ev, err := client.Connect(ctx, rdmacm.ConnParam{PrivateData: []byte("hello?")})
		answer <- ev
		return err
	})
	server := cmtest.GetRequest(t, ln)
	in, err := server.RegMsgs(make([]byte, 64))
	require.NoError(t, err)
	require.NoError(t, server.PostRecv(1, in.All()))
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{QPNum: server.QP().Num()}))
	require.NoError(t, <-connected)
	peer := <-answer
	require.Equal(t, server.QP().Num(), peer.QPNum)
	ah, err := client.PD().CreateAH(peer.Path)
	require.NoError(t, err)
	out, err := client.RegMsgs([]byte("a datagram"))
	require.NoError(t, err)
	require.NoError(t, client.PostUDSend(2, ah, peer.QPNum, 0, out.All()))
	_, err = client.SendComp(ctx)
	require.NoError(t, err)
	wc, err := server.RecvComp(ctx)
	require.NoError(t, err)
	require.Equal(t, "a datagram", string(in.Bytes()[40:wc.ByteLen()]), "behind the global route header")
	require.NoError(t, client.Disconnect(ctx), "there is nothing to wait for")
	require.NoError(t, ah.Close())
}

func TestEndpointMulticast(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	ctx := cmtest.Bounded(t)
	group := netip.MustParseAddr("239.1.2.3")
	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceUDP)
	_, err := ep.JoinMulticast(ctx, group, rdmacm.JoinFull)
	require.ErrorContains(t, err, "rdma_join_multicast (unbound id): bind or resolve the address first")
	require.NoError(t, ep.ID().BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	_, err = ep.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	ev, err := ep.JoinMulticast(ctx, group, rdmacm.JoinFull)
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventMulticastJoin, ev.Type)
	in, err := ep.RegMsgs(make([]byte, 64))
	require.NoError(t, err)
	out, err := ep.RegMsgs([]byte("to all"))
	require.NoError(t, err)
	require.NoError(t, ep.PostRecv(1, in.All()))
	ah, err := ep.PD().CreateAH(ev.Path)
	require.NoError(t, err)
	require.NoError(t, ep.PostUDSend(2, ah, ev.QPNum, 0, out.All()))
	_, err = ep.SendComp(ctx)
	require.NoError(t, err)
	wc, err := ep.RecvComp(ctx)
	require.NoError(t, err)
	require.Equal(t, "to all", string(in.Bytes()[40:wc.ByteLen()]))
	require.NoError(t, ah.Close())
	require.NoError(t, ep.ID().LeaveMulticast(group))
	require.ErrorIs(t, ep.ID().LeaveMulticast(group), syscall.EADDRNOTAVAIL)
}

func TestExample(t *testing.T) {
	cmtest.NeedDevice(t)
	testdevice.Needs(t, testdevice.Guest) // whose address it is
	require.Equal(t, "hello\n", cmtest.Printed(t, Example))
}

// Waiting holds no threads.
func TestEndpointsWaitWithoutThreads(t *testing.T) {
	cmtest.NeedDevice(t)
	const endpoints = 100
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	before := testdevice.Threads(t)
	for range endpoints {
		ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
		go func() { _, err := ep.Next(ctx); results <- err }()
	}
	// On a busy machine, each may need a thread to begin to wait.
	require.Less(t, testdevice.Threads(t), before+endpoints/2)
	cancel()
	for range endpoints {
		require.ErrorIs(t, <-results, context.Canceled)
	}
}

// What the caller has made of the endpoint's own keeps it open.
func TestEndpointBusy(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ep := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, netip.AddrPortFrom(d.IPv4, 7))
	mr, err := ep.PD().Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, ep.Close(), &busy)
	require.ErrorIs(t, ep.PostRecv(1), os.ErrClosed)
	require.NoError(t, mr.Close())
	require.NoError(t, ep.Close())
	require.Empty(t, ep.ID().LocalAddr())
}

// A queue pair that the caller has closed can be made again, on its own domain.
func TestEndpointAnotherQP(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.Segments(3))
	ep := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, netip.AddrPortFrom(d.IPv4, 7))
	first := ep.PD()
	_, err := ep.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, ep.QP().Close())
	require.Nil(t, ep.QP())
	require.ErrorContains(t, ep.PostSend(1, 0), "create a queue pair first")
	pd, cq := cmtest.GuardObjects(t, d.Name)
	qp, err := ep.CreateQP(pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1, RecvSegments: 3})
	require.NoError(t, err)
	require.Same(t, pd, ep.PD())
	require.NotSame(t, pd, first)
	in, err := ep.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.Same(t, pd, in.PD())
	require.NoError(t, ep.PostRecv(1, in.Sub(0, 1), in.Sub(1, 1), in.Sub(2, 1)), "as many segments as it has")
	require.NoError(t, qp.Close())
	foreign, err := ibverbs.Open(d.Name)
	require.NoError(t, err)
	other, err := foreign.AllocPD()
	require.NoError(t, err)
	_, err = ep.CreateQP(other, cmtest.EndpointQueues)
	require.Error(t, err, "of another open device")
	require.NoError(t, other.Close())
	require.NoError(t, foreign.Close())
	require.NoError(t, ep.Close())
}

// Calls, migrations and closes of one endpoint at once.
func TestEndpointStress(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ch := cmtest.NewChannel(t)
	for round := range 30 {
		ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
		client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
		ctx, cancel := context.WithCancel(cmtest.Bounded(t))
		var all sync.WaitGroup
		all.Go(func() { _, _ = client.Connect(ctx, rdmacm.ConnParam{}) })
		all.Go(func() { _, _ = client.Next(ctx) })
		all.Go(func() { _, _ = client.RecvComp(ctx) })
		all.Go(func() {
			if request, err := ln.GetRequest(ctx); err == nil {
				_ = request.Accept(ctx, rdmacm.ConnParam{})
				if err := request.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		var moved *rdmacm.ID
		all.Go(func() {
			switch round % 3 {
			case 0:
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			case 1:
				cancel()
			default:
				if id, err := client.Migrate(ch); err == nil {
					moved = id
				}
				cancel()
			}
		})
		all.Go(func() { _ = ln.Close() })
		all.Wait()
		cancel()
		require.NoError(t, client.Close())
		if moved != nil {
			require.NoError(t, moved.Close())
		}
	}
}

// Soft-RoCE has no extended reliable connections, though the kernel lets one
// ask for them and listen. Both ends say so.
func TestXRCWithoutDevice(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Kernel)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		ctx := cmtest.Bounded(t)
		ln, err := endpoint.Create(ctx, rdmacm.AddrInfo{
			Flags: rdmacm.AddrPassive, QPType: ibverbs.QPTypeXRCRecv, Src: netip.AddrPortFrom(ip, 7471),
		}, nil, &ibverbs.QPConfig{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ln.Close()) })
		require.NoError(t, ln.Listen(0))

		info := rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCSend, Dst: ln.ID().LocalAddr()}
		_, err = endpoint.Create(ctx, info, nil, &ibverbs.QPConfig{SendQueue: 1})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, d.Name+" does not support extended reliable connections (XRC): rdma_create_qp")

		info.Src = netip.AddrPortFrom(ip, 0)
		client, err := endpoint.Create(ctx, info, nil, nil)
		require.NoError(t, err)
		require.Equal(t, ip, client.ID().LocalAddr().Addr())
		refused := cmtest.InBackground(func() error {
			_, err := client.Connect(ctx, rdmacm.ConnParam{QPNum: 7})
			return err
		})
		_, err = ln.GetRequest(ctx)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, d.Name+" does not support extended reliable connections (XRC): ibv_open_xrcd")
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, <-refused, &rejected)
		require.NoError(t, client.Close())
	}
}

// An extended reliable connection, from listening to the last message. The
// client reaches the server's shared receive queue by the number in the
// server's answer.
func TestXRC(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.XRC)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		client, server, number := connectXRC(t, ip)
		require.Equal(t, ibverbs.QPTypeXRCSend, client.QP().Type())
		require.Equal(t, ibverbs.QPTypeXRCRecv, server.QP().Type())
		received, err := server.RegMsgs(make([]byte, 4096))
		require.NoError(t, err)
		sent, err := client.RegMsgs(make([]byte, 4096))
		require.NoError(t, err)
		batch, err := ibverbs.NewSendBatch(1, 1)
		require.NoError(t, err)
		ctx := cmtest.Bounded(t)
		for i := range byte(20) {
			require.NoError(t, server.PostRecv(uint64(i), received.All()))
			for j := range sent.Bytes() {
				sent.Bytes()[j] = i + byte(j)
			}
			batch.Reset()
			require.NoError(t, batch.Send(uint64(i), ibverbs.SendSignaled, sent.All()))
			require.NoError(t, batch.WR(0).SetXRCSRQ(number))
			_, err = client.QP().PostSend(batch)
			require.NoError(t, err)
			wc, err := client.SendComp(ctx)
			require.NoError(t, err)
			require.Equal(t, ibverbs.WCSuccess, wc.Status())
			wc, err = server.RecvComp(ctx)
			require.NoError(t, err)
			require.Equal(t, ibverbs.WCSuccess, wc.Status())
			require.EqualValues(t, i, wc.ID())
			require.Equal(t, server.QP().Num(), wc.QPNum())
			require.Equal(t, sent.Bytes(), received.Bytes())
		}
		_, err = client.RecvComp(ctx)
		require.ErrorIs(t, err, syscall.EINVAL, "it sends only")
		ended := cmtest.InBackground(func() error { return client.Disconnect(ctx) })
		cmtest.NextOf(t, server, rdmacm.EventDisconnected)
		require.NoError(t, server.Disconnect(ctx))
		require.NoError(t, cmtest.Take(t, ended, "the end of the connection"))
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// connectXRC connects two endpoints, the second of which has a shared receive
// queue with the number.
func connectXRC(t *testing.T, ip netip.Addr) (client, server *endpoint.Endpoint, number uint32) {
	t.Helper()
	ctx := cmtest.Bounded(t)
	ln, err := endpoint.Create(ctx, rdmacm.AddrInfo{
		Flags: rdmacm.AddrPassive, QPType: ibverbs.QPTypeXRCRecv, Src: netip.AddrPortFrom(ip, 0),
	}, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	require.NoError(t, ln.Listen(1))
	client, err = endpoint.Create(ctx, rdmacm.AddrInfo{
		PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCSend, Dst: ln.ID().LocalAddr(),
	}, nil, &ibverbs.QPConfig{SendQueue: 8})
	require.NoError(t, err)
	answer := make(chan *rdmacm.Event, 1)
	connected := cmtest.InBackground(func() error {
		ev, err := client.Connect(ctx, rdmacm.ConnParam{})
		answer <- ev
		return err
	})
	server, err = ln.GetRequest(ctx)
	require.NoError(t, err)
	request := server.ID().Request()
	require.Equal(t, client.QP().Num(), request.QPNum)
	srq, err := server.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 8})
	require.NoError(t, err)
	number, err = srq.Num()
	require.NoError(t, err)
	qp, err := server.CreateQP(nil, ibverbs.QPConfig{})
	require.NoError(t, err)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, cmtest.Take(t, connected, "the connection"))
	require.Equal(t, qp.Num(), (<-answer).QPNum)
	return client, server, number
}

// What GetAddrInfo finds is enough to listen and to connect.
func TestAddrInfoToConnection(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	passive, err := rdmacm.GetAddrInfo(ctx, d.IPv4.String(), "7475", &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceTCP})
	require.NoError(t, err)
	ln, err := endpoint.Create(ctx, passive[0], nil, &cmtest.EndpointQueues)
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	require.NoError(t, ln.Listen(1))
	active, err := rdmacm.GetAddrInfo(ctx, d.IPv4.String(), "7475", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP})
	require.NoError(t, err)
	client, err := endpoint.Create(ctx, active[0], nil, &cmtest.EndpointQueues)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	require.NoError(t, cmtest.GetRequest(t, ln).Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
}

// An endpoint whose options were set before it is resolved.
func TestResolve(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.ErrorContains(t, client.Resolve(ctx, rdmacm.AddrInfo{}), "no destination")
	require.NoError(t, client.ID().SetTOS(32))
	prefix := []byte("prefix")
	require.NoError(t, client.Resolve(ctx, rdmacm.AddrInfo{Dst: ln.ID().LocalAddr(), Connect: prefix}))
	_, err := client.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	connected := cmtest.InBackground(func() error {
		_, err := client.Connect(ctx, rdmacm.ConnParam{PrivateData: []byte(" and data")})
		return err
	})
	server := cmtest.GetRequest(t, ln)
	require.Equal(t, "prefix and data", string(server.ID().Request().PrivateData[:len("prefix and data")]))
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
}

func TestCreateEndpointFails(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	to := netip.AddrPortFrom(d.IPv4, 7)
	for name, tt := range map[string]struct {
		info  rdmacm.AddrInfo
		queue ibverbs.QPConfig
		want  string
	}{
		"no destination":     {rdmacm.AddrInfo{}, cmtest.EndpointQueues, "rdma_resolve_addr (unbound id): no destination"},
		"no source":          {rdmacm.AddrInfo{Flags: rdmacm.AddrPassive}, cmtest.EndpointQueues, "rdma_create_ep: AddrInfo.Src is not set"},
		"no such port space": {rdmacm.AddrInfo{PortSpace: 99, Dst: to}, cmtest.EndpointQueues, "rdma_create_id"},
		"no such queue pair": {rdmacm.AddrInfo{Dst: to}, ibverbs.QPConfig{SendQueue: 1 << 30}, d.Name},
		"type":               {rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeUD, Dst: to}, cmtest.EndpointQueues, "has queue pairs of type IBV_QPT_RC"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := endpoint.Create(ctx, tt.info, nil, &tt.queue)
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := endpoint.Create(cmtest.Canceled(t), rdmacm.AddrInfo{Dst: to}, nil, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// A request whose queue pair cannot be made is rejected.
func TestGetRequestFails(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	info := rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, Src: netip.AddrPortFrom(d.IPv4, 0)}
	ln, err := endpoint.Create(ctx, info, nil, &ibverbs.QPConfig{SendQueue: 1 << 30})
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	require.NoError(t, ln.Listen(1))
	client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	_, err = ln.GetRequest(ctx)
	require.Error(t, err)
	require.ErrorIs(t, <-connected, syscall.ECONNREFUSED)
}

// The library of the guest is too old for it; tests/versions has a newer one.
func TestResolveAddrInfoUnsupported(t *testing.T) {
	testdevice.Require(t)
	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	_, err := ep.ResolveAddrInfo(cmtest.Bounded(t), "localhost", "7", nil)
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("this library has it: %v", err)
	}
	require.ErrorContains(t, err, "rdma-core 60 added it")
	_, err = ep.ID().QueryAddrInfo()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, ep.ID().WriteUserEvent(1, 2), errors.ErrUnsupported)
	require.NoError(t, ep.Close())
	_, err = ep.ResolveAddrInfo(cmtest.Bounded(t), "localhost", "7", nil)
	require.ErrorIs(t, err, os.ErrClosed)
}

// From asynchronous to synchronous and back, with a connection up.
func TestMigrateBothWays(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	client, server := cmtest.ConnectEndpoints(t, d.IPv4)
	ch := cmtest.NewChannel(t)
	next1 := cmtest.InBackground(func() error { _, err := client.Next(t.Context()); return err })
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
	cmtest.NextOf(t, server, rdmacm.EventDisconnected)
	require.NoError(t, server.Disconnect(ctx))
	require.Same(t, id, cmtest.Next(t, ch, rdmacm.EventDisconnected).ID)

	again, err := endpoint.FromID(id)
	require.NoError(t, err)
	_, err = endpoint.FromID(id)
	require.ErrorContains(t, err, "the id's events are read for an endpoint.Endpoint")
	require.ErrorContains(t, id.Migrate(ch), "the id's events are read for an endpoint.Endpoint")
	require.NoError(t, again.Disconnect(ctx), "it is over already")
	require.NoError(t, client.Close(), "closes the queue pair alone")
	require.NotZero(t, id.PortNum())
	require.NoError(t, again.Close())
	require.ErrorIs(t, id.Disconnect(), os.ErrClosed)
}

// What a call has started goes on after the endpoint has moved.
func TestMigrateWhileResolving(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ch := cmtest.NewChannel(t)
	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	resolved := cmtest.InBackground(func() error {
		// No host has the address.
		return ep.ResolveAddr(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(d.IPv4.Next().Next(), 7))
	})
	require.Eventually(t, func() bool { return endpoint.Calls(ep) == 1 }, cmtest.Patience, time.Millisecond)
	id, err := ep.Migrate(ch)
	require.NoError(t, err)
	require.ErrorContains(t, <-resolved, "the endpoint was migrated")
	require.Same(t, id, cmtest.Next(t, ch, rdmacm.EventAddrError).ID)
	require.NoError(t, id.Close())
}

// The events of an id stay with the package that reads them.
func TestMigrateRefused(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ch := cmtest.NewChannel(t)
	client, server := cmtest.Connect(t, d.IPv4, nil, nil)
	for name, id := range map[string]*rdmacm.ID{"dialed": client.ID(), "accepted": server.ID(), "endpoint": cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP).ID()} {
		require.ErrorContains(t, id.Migrate(ch), "events are read for", name)
		_, err := endpoint.FromID(id)
		require.ErrorContains(t, err, "events are read for", name)
	}
	id := cmtest.NewID(t, ch)
	require.ErrorIs(t, id.Migrate(nil), os.ErrInvalid)
	require.ErrorIs(t, id.Migrate(new(rdmacm.EventChannel)), os.ErrInvalid)
	require.NoError(t, id.Migrate(ch), "where it is")
	other, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.ErrorIs(t, id.Migrate(other), os.ErrClosed)
	_, err = cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP).Migrate(other)
	require.ErrorIs(t, err, os.ErrClosed)
}

// A listener that closes also closes the moved requests that were not read.
func TestCloseAfterMigrate(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	require.Eventually(t, func() bool { return endpoint.Requests(ln) == 1 }, cmtest.Patience, time.Millisecond)
	ch, other := cmtest.NewChannel(t), cmtest.NewChannel(t)
	id, err := ln.Migrate(ch)
	require.NoError(t, err)
	require.NoError(t, id.Migrate(other), "with the request")
	require.NoError(t, id.Close())
	require.ErrorIs(t, <-connected, syscall.ECONNREFUSED)
	ev, ok, err := other.Poll()
	require.NoError(t, err)
	require.False(t, ok, "%v", ev)
}

// What an endpoint is resolved with are the addresses of an AddrInfo.
func TestEndpointIBAddresses(t *testing.T) {
	d := testdevice.Needs(t, testdevice.IBAddrs)
	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceIB)
	here := rdmacm.IBAddr{GID: d.GID, ServiceID: uint64(rdmacm.PortSpaceTCP)<<16 | 7471}
	err := ep.Resolve(cmtest.Bounded(t), rdmacm.AddrInfo{Family: rdmacm.FamilyIB, DstIB: here})
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_resolve_route (")
	require.Equal(t, here.GID, ep.ID().RemoteIBAddr().GID)
}

// A path that the caller knows takes the place of ResolveRoute.
func TestEndpointPaths(t *testing.T) {
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.Queries)
	ctx := cmtest.Bounded(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	device, err := ibverbs.QueryDeviceInfo(d.Name)
	require.NoError(t, err)
	mtu := min(ibverbs.MTU1024, device.Ports[d.Port-1].ActiveMTU)
	info := rdmacm.AddrInfo{Dst: ln.ID().LocalAddr(), Paths: []rdmacm.IBPath{{
		SGID: d.GID, DGID: d.GID, HopLimit: 64, Reversible: true, NumPaths: 1,
		MTU: mtu, Rate: libibverbs.IBV_RATE_10_GBPS, PacketLifetime: time.Second,
	}}}
	client, err := endpoint.Create(ctx, info, nil, &cmtest.EndpointQueues)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	connected := cmtest.InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := cmtest.GetRequest(t, ln)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	attr, err := client.QP().Query()
	require.NoError(t, err)
	require.Equal(t, mtu, attr.PathMTU)
}
