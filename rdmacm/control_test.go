package rdmacm_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// end is an end of a connection, made step by step.
type end struct {
	t  testing.TB
	ch *rdmacm.EventChannel
	id *rdmacm.ID
	pd *ibverbs.PD
	cq *ibverbs.CQ
	qp *ibverbs.QP
}

func newChannel(t testing.TB) *rdmacm.EventChannel {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	return ch
}

func newID(t testing.TB, ch *rdmacm.EventChannel) *rdmacm.ID {
	t.Helper()
	id, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, id.Close()) })
	return id
}

func newEnd(t testing.TB) *end {
	e := &end{t: t, ch: newChannel(t)}
	e.id = newID(t, e.ch)
	return e
}

// next returns the channel's next event, which must be of the type.
func next(t testing.TB, ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ev, err := ch.Next(bounded(t))
	require.NoError(t, err)
	require.Equal(t, want, ev.Type, "%v, status %d", ev.Type, ev.Status)
	return ev
}

// resolve does what comes before a connection request.
func (e *end) resolve(to netip.AddrPort) {
	e.t.Helper()
	require.NoError(e.t, e.id.ResolveAddr(netip.AddrPort{}, to, time.Second))
	require.Same(e.t, e.id, next(e.t, e.ch, rdmacm.EventAddrResolved).ID)
	require.NoError(e.t, e.id.ResolveRoute(time.Second))
	next(e.t, e.ch, rdmacm.EventRouteResolved)
}

// createQP gives the id a queue pair, and what that needs.
func (e *end) createQP() {
	e.t.Helper()
	device, err := e.id.Context()
	require.NoError(e.t, err)
	e.pd, err = device.AllocPD()
	require.NoError(e.t, err)
	e.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: 4})
	require.NoError(e.t, err)
	e.qp, err = e.id.CreateQP(e.pd, ibverbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 2, MaxRecvWR: 2})
	require.NoError(e.t, err)
	e.t.Cleanup(func() {
		require.NoError(e.t, e.qp.Close())
		require.NoError(e.t, e.cq.Close())
		require.NoError(e.t, e.pd.Close())
	})
}

// poll returns the completion that must come.
func (e *end) poll() ibverbs.WC {
	e.t.Helper()
	var wcs [1]ibverbs.WC
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		n, err := e.cq.Poll(wcs[:])
		require.NoError(e.t, err)
		if n > 0 {
			require.NoError(e.t, wcs[0].Err())
			return wcs[0]
		}
		require.True(e.t, time.Now().Before(deadline))
	}
}

// listening returns an id that listens, and its channel.
func listening(t testing.TB, ip netip.Addr) *end {
	t.Helper()
	e := newEnd(t)
	require.NoError(t, e.id.BindAddr(netip.AddrPortFrom(ip, 0)))
	require.NoError(t, e.id.Listen(4))
	return e
}

func TestFullControl(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	require.Equal(t, d.Port, ln.id.PortNum())
	client.resolve(ln.id.LocalAddr())
	require.Equal(t, d.Port, client.id.PortNum())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{
		PrivateData: []byte("step by step"), ResponderResources: 1, InitiatorDepth: 2, RetryCount: 3, PeerRNRRetryCount: 4,
	}))

	request := next(t, ln.ch, rdmacm.EventConnectRequest)
	require.Same(t, ln.id, request.ListenID)
	require.NotSame(t, ln.id, request.ID)
	require.Equal(t, padded([]byte("step by step"), maxRequestData), request.PrivateData)
	require.EqualValues(t, 2, request.ResponderResources, "what the peer wants to have under way")
	require.EqualValues(t, 1, request.InitiatorDepth)
	require.EqualValues(t, 3, request.RetryCount)
	require.EqualValues(t, 4, request.RNRRetryCount)
	require.Equal(t, client.qp.Num(), request.QPNum)
	server := &end{t: t, ch: ln.ch, id: request.ID}
	t.Cleanup(func() { require.NoError(t, server.id.Close()) })
	server.createQP()
	require.NoError(t, server.id.Accept(rdmacm.ConnParam{PrivateData: []byte("welcome")}))

	established := next(t, client.ch, rdmacm.EventEstablished)
	require.Equal(t, padded([]byte("welcome"), maxReplyData), established.PrivateData)
	require.Equal(t, server.qp.Num(), established.QPNum)
	require.Same(t, server.id, next(t, ln.ch, rdmacm.EventEstablished).ID)
	require.Equal(t, client.id.LocalAddr(), server.id.RemoteAddr())

	// A message, to show that both queue pairs are up.
	mr, err := server.pd.Alloc(16, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, mr.Close()) }()
	recv, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(7, mr.All()))
	_, err = server.qp.PostRecv(recv)
	require.NoError(t, err)
	send, err := ibverbs.NewSendBatch(1, 0)
	require.NoError(t, err)
	require.NoError(t, send.SendImm(8, 99, ibverbs.SendSignaled))
	_, err = client.qp.PostSend(send)
	require.NoError(t, err)
	wc := client.poll()
	require.EqualValues(t, 8, wc.ID())
	wc = server.poll()
	imm, _ := wc.Imm()
	require.EqualValues(t, 99, imm)

	require.NoError(t, client.id.Disconnect())
	gone := next(t, server.ch, rdmacm.EventDisconnected)
	require.ErrorIs(t, gone.Err(), syscall.ECONNRESET)
	require.NoError(t, server.id.Disconnect())
	next(t, client.ch, rdmacm.EventDisconnected)

	// The first event is a copy: it is what it was.
	require.Equal(t, padded([]byte("step by step"), maxRequestData), request.PrivateData)
	require.Equal(t, client.qp.Num(), request.QPNum)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, client.id.Close(), &busy, "it has a queue pair")
	require.ErrorAs(t, client.ch.Close(), &busy, "it has an id")
}

func TestEventsOutliveEverything(t *testing.T) {
	d := needDevice(t)
	data := bytes.Repeat([]byte{0xa5}, maxRequestData)
	var request *rdmacm.Event
	t.Run("connect and close", func(t *testing.T) {
		ln, client := listening(t, d.IPv4), newEnd(t)
		client.resolve(ln.id.LocalAddr())
		client.createQP()
		require.NoError(t, client.id.Connect(rdmacm.ConnParam{PrivateData: data}))
		request = next(t, ln.ch, rdmacm.EventConnectRequest)
		require.NoError(t, request.ID.Reject(nil))
		require.NoError(t, request.ID.Close())
		next(t, client.ch, rdmacm.EventRejected)
	})
	require.Equal(t, data, request.PrivateData)
	require.Equal(t, rdmacm.EventConnectRequest, request.Type)
	require.ErrorIs(t, request.ID.Disconnect(), os.ErrClosed)
}

// Steps that come too early, where C would follow a null pointer.
func TestMissingSteps(t *testing.T) {
	d := needDevice(t)
	pdOf := func(id *rdmacm.ID) (*ibverbs.PD, ibverbs.QPConfig) {
		device, err := id.Context()
		require.NoError(t, err)
		pd, err := device.AllocPD()
		require.NoError(t, err)
		cq, err := device.CreateCQ(ibverbs.CQConfig{Entries: 1})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, cq.Close())
			require.NoError(t, pd.Close())
		})
		return pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
	}
	ln := listening(t, d.IPv4)
	pd, config := pdOf(ln.id)
	ch := newChannel(t)
	unbound, anywhere := newID(t, ch), newID(t, ch)
	require.NoError(t, anywhere.BindAddr(netip.AddrPort{})) // has no device
	require.NoError(t, anywhere.Listen(1))
	check := func(err error, op, missing string) {
		t.Helper()
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, op)
		require.ErrorContains(t, err, missing+" first")
	}
	for _, id := range []*rdmacm.ID{unbound, anywhere} {
		check(id.ResolveRoute(time.Second), "rdma_resolve_route", "resolve the address")
		check(id.Connect(rdmacm.ConnParam{}), "rdma_connect", "resolve the address and the route")
		check(id.Accept(rdmacm.ConnParam{QPNum: 1}), "rdma_accept", "receive a connection request")
		check(id.Reject(nil), "rdma_reject", "receive a connection request")
		check(id.Disconnect(), "rdma_disconnect", "connect")
		check(id.Establish(), "rdma_establish", "connect")
		_, err := id.Context()
		check(err, "ID.Context", "bind or resolve the address")
		_, err = id.CreateQP(pd, config)
		check(err, "rdma_create_qp", "bind or resolve the address")
		_, _, err = id.InitQPAttr(ibverbs.QPStateRTR)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.ErrorIs(t, unbound.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, time.Second), syscall.EINVAL)
	_, err := ln.id.CreateQP(nil, config)
	require.ErrorContains(t, err, "rdma_create_qp: pd is nil")
	_, err = ln.id.CreateQP(pd, ibverbs.QPConfig{})
	require.ErrorIs(t, err, syscall.EINVAL)

	client := newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	_, err = client.id.CreateQP(client.pd, ibverbs.QPConfig{SendCQ: client.cq, RecvCQ: client.cq})
	require.ErrorContains(t, err, "the id has a queue pair")
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	check(request.Accept(rdmacm.ConnParam{}), "rdma_accept", "create a queue pair")
	require.NoError(t, request.Close())
	next(t, client.ch, rdmacm.EventRejected)
}

func TestClosedID(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	id := newID(t, ch)
	require.NoError(t, id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	require.NoError(t, id.Close())
	require.NoError(t, id.Close(), "again")
	addr := netip.AddrPortFrom(d.IPv4, 7)
	for name, call := range map[string]func() error{
		"bind":          func() error { return id.BindAddr(addr) },
		"listen":        func() error { return id.Listen(1) },
		"resolve addr":  func() error { return id.ResolveAddr(addr, addr, time.Second) },
		"resolve route": func() error { return id.ResolveRoute(time.Second) },
		"connect":       func() error { return id.Connect(rdmacm.ConnParam{}) },
		"disconnect":    id.Disconnect,
		"establish":     id.Establish,
		"context":       func() error { _, err := id.Context(); return err },
		"attr":          func() error { _, _, err := id.InitQPAttr(ibverbs.QPStateInit); return err },
	} {
		require.ErrorIs(t, call(), os.ErrClosed, name)
	}
	require.False(t, id.LocalAddr().IsValid())
	require.Zero(t, id.PortNum())

	require.NoError(t, ch.Close())
	require.NoError(t, ch.Close(), "again")
	_, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = ch.Next(context.Background())
	require.ErrorIs(t, err, os.ErrClosed)
}

// The limits of private data are the kernel's: one byte more, and it says only
// that something is wrong.
func TestKernelRefusesWhatWeRefuse(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	var pin runtime.Pinner
	defer pin.Unpin()
	data := make([]byte, 255)
	pin.Pin(&data[0])
	param := func(n int) *librdmacm.ConnParam {
		return &librdmacm.ConnParam{PrivateData: unsafe.Pointer(&data[0]), PrivateDataLen: uint8(n)}
	}
	require.ErrorIs(t, librdmacm.Connect(client.id.Raw(), param(maxRequestData+1)), syscall.EINVAL)
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{PrivateData: data[:maxRequestData]}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	require.ErrorIs(t, librdmacm.Reject(request.Raw(), unsafe.Pointer(&data[0]), maxRejectData+1), syscall.EINVAL)
	server := &end{t: t, ch: ln.ch, id: request}
	t.Cleanup(func() { require.NoError(t, request.Close()) })
	server.createQP()
	require.ErrorIs(t, librdmacm.Accept(request.Raw(), param(maxReplyData+1)), syscall.EINVAL)
	next(t, client.ch, rdmacm.EventRejected) // which is what the kernel makes of that
}

// Success is the result 0, whatever errno an earlier call has left:
// rdma_resolve_addr itself is known to return 0 with an errno.
func TestStaleErrnoIsNoError(t *testing.T) {
	d := needDevice(t)
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	id, failing := newEnd(t), newEnd(t)
	require.ErrorIs(t, failing.id.BindAddr(netip.MustParseAddrPort("203.0.113.9:1")), syscall.EADDRNOTAVAIL)
	require.NoError(t, id.id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7), time.Second))
	next(t, id.ch, rdmacm.EventAddrResolved)
}
