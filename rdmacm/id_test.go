// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// end is an end of a connection that is made step by step.
type end struct {
	t  testing.TB
	ch *rdmacm.EventChannel
	id *rdmacm.ID
	pd *ibverbs.PD
	cq *ibverbs.CQ
	qp *ibverbs.QP
}

func newEnd(t testing.TB) *end {
	e := &end{t: t, ch: newChannel(t)}
	e.id = newID(t, e.ch)
	return e
}

// resolve takes the steps before a connection request.
func (e *end) resolve(to netip.AddrPort) {
	e.t.Helper()
	require.NoError(e.t, e.id.ResolveAddr(netip.AddrPort{}, to, time.Second))
	require.Same(e.t, e.id, next(e.t, e.ch, rdmacm.EventAddrResolved).ID)
	require.NoError(e.t, e.id.ResolveRoute(time.Second))
	next(e.t, e.ch, rdmacm.EventRouteResolved)
}

// createQP gives the ID a queue pair and what it needs.
func (e *end) createQP() {
	e.t.Helper()
	device, err := e.id.Device()
	require.NoError(e.t, err)
	e.pd, err = device.AllocPD()
	require.NoError(e.t, err)
	e.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: 4})
	require.NoError(e.t, err)
	e.qp, err = e.id.CreateQP(e.pd, ibverbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, SendQueue: 2, RecvQueue: 2})
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
	d.Have(t, testdevice.Reads(5), testdevice.Immediate)
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

	// A message shows that both queue pairs are up.
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

	// The first event is a copy and has not changed.
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

// These steps come too early: C would follow a null pointer.
func TestMissingSteps(t *testing.T) {
	d := needDevice(t)
	pdOf := func(id *rdmacm.ID) (*ibverbs.PD, ibverbs.QPConfig) {
		device, err := id.Device()
		require.NoError(t, err)
		pd, err := device.AllocPD()
		require.NoError(t, err)
		cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, cq.Close())
			require.NoError(t, pd.Close())
		})
		return pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}
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
		_, err := id.Device()
		check(err, "ID.Device", "bind or resolve the address")
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
		"context":       func() error { _, err := id.Device(); return err },
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

// The limits of private data are the kernel's. For one byte more the kernel
// says only that something is wrong.
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
	// The kernel rejects the request after the failed acceptance.
	next(t, client.ch, rdmacm.EventRejected)
}

// Success is the result 0, whatever errno an earlier call has left.
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

// Options of a connecting id apply to its queue pair. The type of service
// applies to the peer's, too.
func TestQueuePairOptions(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Queries)
	ctx := bounded(t)
	const tos = 0x28
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, client.ID().SetTOS(tos))
	require.NoError(t, client.ResolveAddr(ctx, netip.AddrPort{}, ln.ID().LocalAddr()))
	require.NoError(t, client.ResolveRoute(ctx))
	require.NoError(t, client.ID().SetAckTimeout(time.Second)) // 4.096 us * 2^18 is the next above
	_, err := client.CreateQP(nil, cmtest.EndpointQueues)
	require.NoError(t, err)
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := cmtest.GetRequest(t, ln)
	require.NoError(t, server.ID().SetAckTimeout(time.Millisecond))
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	for name, tt := range map[string]struct {
		ep      *endpoint.Endpoint
		timeout time.Duration
	}{"client": {client, 4096 << 18}, "server": {server, 4096 << 8}} {
		attr, err := tt.ep.QP().Query()
		require.NoError(t, err)
		require.Equal(t, tt.timeout, attr.Timeout, name)
		require.EqualValues(t, tos, attr.Path.TrafficClass, name)
	}
}

func TestAckTimeoutLimits(t *testing.T) {
	needDevice(t)
	id := newID(t, newChannel(t))
	for _, d := range []time.Duration{-1, 0, 4096<<31 + 1} {
		require.ErrorIs(t, id.SetAckTimeout(d), syscall.EINVAL, d)
	}
	for _, d := range []time.Duration{1, 4096, 4096 << 31} {
		require.NoError(t, id.SetAckTimeout(d), d)
	}
}

// Ids that all reuse addresses may be bound to the same address. Only one of
// them can listen, and only while it is alone.
func TestReuseAddr(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	bind := func(reuse bool, addr netip.AddrPort) (*rdmacm.ID, error) {
		id := newID(t, ch)
		require.NoError(t, id.SetReuseAddr(reuse))
		return id, id.BindAddr(addr)
	}
	first, err := bind(true, netip.AddrPortFrom(d.IPv4, 0))
	require.NoError(t, err)
	_, err = bind(false, first.LocalAddr())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, first.LocalAddr().String())
	second, err := bind(true, first.LocalAddr())
	require.NoError(t, err)
	require.ErrorIs(t, second.Listen(1), syscall.EADDRINUSE)
	require.NoError(t, first.Close())
	require.NoError(t, second.Listen(1))
	_, err = bind(true, second.LocalAddr())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

// Two ids listen on the same port, one for each family of addresses.
func TestAFOnly(t *testing.T) {
	d := needDevice(t)
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	ch := newChannel(t)
	for _, only := range []bool{false, true} {
		id6, id4 := newID(t, ch), newID(t, ch)
		require.NoError(t, id6.SetAFOnly(only))
		require.NoError(t, id6.BindAddr(netip.AddrPortFrom(any6, 0)))
		require.NoError(t, id6.Listen(1))
		err := id4.BindAddr(netip.AddrPortFrom(any4, id6.LocalAddr().Port()))
		if !only {
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, id4.Listen(1))
		// Each id gets the requests of its family.
		for ip, want := range map[netip.Addr]*rdmacm.ID{d.IPv4: id4, d.IPv6: id6} {
			client := newEnd(t)
			client.resolve(netip.AddrPortFrom(ip, id6.LocalAddr().Port()))
			require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1}))
			request := next(t, ch, rdmacm.EventConnectRequest)
			require.Same(t, want, request.ListenID)
			require.NoError(t, request.ID.Close())
			next(t, client.ch, rdmacm.EventRejected)
		}
	}
}

// Enhancements travel with the handshake of ids without a queue pair of their
// own. Soft-RoCE's queue pairs have no enhancements.
func TestECE(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.ErrorIs(t, client.id.SetLocalECE(ibverbs.ECE{}), syscall.EINVAL, "no vendor")
	offer := ibverbs.ECE{VendorID: 0x1234, Options: 7}
	require.NoError(t, client.id.SetLocalECE(offer))
	ece, err := client.id.RemoteECE()
	require.NoError(t, err)
	require.Zero(t, ece, "nothing has come yet")
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	defer func() { require.NoError(t, request.Close()) }()
	ece, err = request.RemoteECE()
	require.NoError(t, err)
	require.Equal(t, offer, ece)
	require.NoError(t, request.RejectECE([]byte("no options")))
	rejected := next(t, client.ch, rdmacm.EventRejected)
	require.EqualValues(t, rdmacm.ReasonVendorOption, rejected.Status)
	require.Equal(t, padded([]byte("no options"), maxRejectData), rejected.PrivateData)
	require.ErrorContains(t, rejected.Err(), "vendor option not supported")

	withQP := newEnd(t)
	withQP.resolve(ln.id.LocalAddr())
	withQP.createQP()
	require.ErrorIs(t, withQP.id.SetLocalECE(offer), syscall.EINVAL, "it comes too late")
	_, err = withQP.qp.QueryECE()
	require.Error(t, err)
}

// The acceptance answers an offer of enhancements.
func TestECEAccepted(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, client.id.SetLocalECE(ibverbs.ECE{VendorID: 0x1234, Options: 7}))
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	defer func() { require.NoError(t, request.Close()) }()
	taken := ibverbs.ECE{VendorID: 0x1234, Options: 3}
	require.NoError(t, request.SetLocalECE(taken))
	require.NoError(t, request.Accept(rdmacm.ConnParam{QPNum: 2}))
	next(t, client.ch, rdmacm.EventConnectResponse)
	ece, err := client.id.RemoteECE()
	require.NoError(t, err)
	require.Equal(t, taken, ece)
	require.NoError(t, client.id.Establish())
	next(t, ln.ch, rdmacm.EventEstablished)
}

// A message that comes before the end of the handshake completes the handshake.
func TestNotify(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	defer func() { require.NoError(t, request.Close()) }()
	require.ErrorIs(t, request.Notify(ibverbs.EventCommEstablished), syscall.EINVAL)
	require.NoError(t, request.Accept(rdmacm.ConnParam{QPNum: 2}))
	require.NoError(t, request.Notify(ibverbs.EventCommEstablished))
	require.Same(t, request, next(t, ln.ch, rdmacm.EventEstablished).ID, "the client has not established it")
	err := request.Notify(ibverbs.EventCommEstablished)
	require.ErrorIs(t, err, syscall.EISCONN)
	require.ErrorContains(t, err, "rdma_notify ("+request.LocalAddr().String()+" to ")
	require.ErrorIs(t, request.Notify(ibverbs.EventSQDrained), syscall.EINVAL)
}

// The caller moves its queue pair with these attributes.
func TestInitQPAttr(t *testing.T) {
	d := needDevice(t)
	client := newEnd(t)
	client.resolve(netip.AddrPortFrom(d.IPv4, 7))
	attr, mask, err := client.id.InitQPAttr(ibverbs.QPStateInit)
	require.NoError(t, err)
	require.Equal(t, ibverbs.QPAttrState|ibverbs.QPAttrPKeyIndex|ibverbs.QPAttrPort|ibverbs.QPAttrAccess, mask)
	require.EqualValues(t, d.Port, attr.Port)
	require.Equal(t, ibverbs.QPStateInit, attr.State)
	_, _, err = client.id.InitQPAttr(ibverbs.QPState(77))
	require.ErrorIs(t, err, syscall.EINVAL)
}

// No program uses these groups by chance.
var (
	groupIPv4  = netip.MustParseAddr("239.86.69.66")
	otherGroup = netip.MustParseAddr("239.86.69.67")
	groupIPv6  = netip.MustParseAddr("ff1e::5642")
)

// cmQKey is the key of all datagrams of PortSpaceUDP.
const cmQKey = 0x01234567

// udEnd is an end for datagrams that is made step by step. It has a receive
// posted.
type udEnd struct {
	*end
	mr *ibverbs.MR
}

// newUDEnd returns an end that is bound to an address.
func newUDEnd(t testing.TB, ip netip.Addr) *udEnd {
	t.Helper()
	e := newIdleUDEnd(t)
	require.NoError(t, e.id.BindAddr(netip.AddrPortFrom(ip, 0)))
	e.makeQP()
	return e
}

func newIdleUDEnd(t testing.TB) *udEnd {
	t.Helper()
	testdevice.Require(t).Have(t, testdevice.Datagrams)
	e := &udEnd{end: &end{t: t, ch: newChannel(t)}}
	var err error
	e.id, err = e.ch.NewID(rdmacm.PortSpaceUDP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.id.Close()) })
	return e
}

// makeQP makes the queue pair, 1 KiB of memory, and a receive for all of it.
func (e *udEnd) makeQP() {
	e.t.Helper()
	device, err := e.id.Device()
	require.NoError(e.t, err)
	e.pd, err = device.AllocPD()
	require.NoError(e.t, err)
	channel, err := device.CreateCompChannel()
	require.NoError(e.t, err)
	e.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: 64, Channel: channel})
	require.NoError(e.t, err)
	e.qp, err = e.id.CreateQP(e.pd, ibverbs.QPConfig{
		Type: ibverbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq, SendQueue: 8, RecvQueue: 8,
	})
	require.NoError(e.t, err)
	e.mr, err = e.pd.Alloc(1024, ibverbs.AccessLocalWrite)
	require.NoError(e.t, err)
	e.postRecv()
	e.t.Cleanup(func() {
		require.NoError(e.t, e.qp.Close())
		require.NoError(e.t, e.cq.Close())
		require.NoError(e.t, channel.Close())
		require.NoError(e.t, e.mr.Close())
		require.NoError(e.t, e.pd.Close())
	})
}

func (e *udEnd) postRecv() {
	e.t.Helper()
	b, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(e.t, err)
	require.NoError(e.t, b.Recv(1, e.mr.Sub(0, 512)))
	_, err = e.qp.PostRecv(b)
	require.NoError(e.t, err)
}

// sendTo sends a message and waits for its completion.
func (e *udEnd) sendTo(ev *rdmacm.Event, text string) {
	e.t.Helper()
	ah, err := e.pd.CreateAH(ev.Path)
	require.NoError(e.t, err)
	defer func() { require.NoError(e.t, ah.Close()) }()
	b, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(e.t, err)
	n := copy(e.mr.Bytes()[512:], text)
	to := ibverbs.Destination{AH: ah, QPNum: ev.QPNum, QKey: ev.QKey}
	require.NoError(e.t, b.SendTo(2, to, ibverbs.SendSignaled, e.mr.Sub(512, n)))
	_, err = e.qp.PostSend(b)
	require.NoError(e.t, err)
	require.EqualValues(e.t, 2, e.completion().ID())
}

// completion returns the next completion, which must be a success.
func (e *udEnd) completion() *ibverbs.WC {
	e.t.Helper()
	wcs := make([]ibverbs.WC, 1)
	_, err := e.cq.Wait(bounded(e.t), wcs)
	require.NoError(e.t, err)
	require.NoError(e.t, wcs[0].Err())
	return &wcs[0]
}

// received returns the next message and posts the receive again.
func (e *udEnd) received() string {
	e.t.Helper()
	wc := e.completion()
	require.EqualValues(e.t, 1, wc.ID())
	text := string(e.mr.Bytes()[ibverbs.GRHLen:wc.ByteLen()])
	e.postRecv()
	return text
}

// joinAs joins a group and returns the event of the join.
func (e *udEnd) joinAs(group netip.Addr, flags rdmacm.JoinFlags, value any) *rdmacm.Event {
	e.t.Helper()
	require.NoError(e.t, e.id.JoinMulticast(group, flags, value))
	ev := next(e.t, e.ch, rdmacm.EventMulticastJoin)
	require.Same(e.t, e.id, ev.ID)
	require.NoError(e.t, ev.Err())
	return ev
}

func TestMulticastEvents(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	sender, member, other := newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4)
	type value struct{ name string }
	mine := &value{"mine"}
	joined := member.joinAs(groupIPv4, rdmacm.JoinFull, mine)
	require.Same(t, mine, joined.Value)
	require.Equal(t, groupIPv4, joined.Path.DGID.Addr())
	require.Equal(t, d.Port, joined.Path.Port)
	require.EqualValues(t, 0xFFFFFF, joined.QPNum)
	require.EqualValues(t, cmQKey, joined.QKey)
	require.Empty(t, joined.PrivateData)
	require.Nil(t, member.joinAs(otherGroup, rdmacm.JoinFull, nil).Value)

	group := sender.joinAs(groupIPv4, rdmacm.JoinSendOnly, 7)
	require.Equal(t, 7, group.Value)
	otherJoined := other.joinAs(otherGroup, rdmacm.JoinFull, "other")
	require.Equal(t, "other", otherJoined.Value)

	sender.sendTo(group, "to all")
	require.Equal(t, "to all", member.received())
	sender.sendTo(otherJoined, "to others")
	require.Equal(t, "to others", member.received())
	require.Equal(t, "to others", other.received(), "and nothing before")

	// A member that has left receives nothing more.
	require.NoError(t, member.id.LeaveMulticast(groupIPv4))
	sender.sendTo(group, "to an empty group")
	sender.sendTo(otherJoined, "again")
	require.Equal(t, "again", member.received())
	require.Equal(t, "again", other.received())
	member.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	sender.sendTo(group, "back")
	require.Equal(t, "back", member.received())
}

func TestMulticastMistakes(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	e := newUDEnd(t, d.IPv4)
	check := func(err error, want syscall.Errno, text string) {
		t.Helper()
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, text)
	}
	check(e.id.JoinMulticast(d.IPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast ("+d.IPv4.String()+"): the address is not that of a multicast group")
	check(e.id.JoinMulticast(netip.Addr{}, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast (invalid IP): the address is not")
	check(e.id.LeaveMulticast(d.IPv4), syscall.EINVAL, "rdma_leave_multicast ("+d.IPv4.String()+"): the address is not")
	check(e.id.JoinMulticast(groupIPv4, 99, nil), syscall.EINVAL, "rdma_join_multicast_ex ("+groupIPv4.String()+")")
	check(e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL, "rdma_leave_multicast ("+groupIPv4.String()+")")

	e.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	check(e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EADDRINUSE, "rdma_join_multicast ("+groupIPv4.String()+")")
	check(e.id.JoinMulticast(groupIPv4, rdmacm.JoinSendOnly, nil), syscall.EADDRINUSE, "rdma_join_multicast ("+groupIPv4.String()+")")
	require.NoError(t, e.id.LeaveMulticast(groupIPv4))
	check(e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")

	// Linux has no IPv6 groups on RoCE v2.
	six := newUDEnd(t, d.IPv6)
	err := six.id.JoinMulticast(groupIPv6, rdmacm.JoinFull, nil)
	check(err, syscall.EOPNOTSUPP, "rdma_join_multicast ("+groupIPv6.String()+")")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	check(six.id.LeaveMulticast(groupIPv6), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")
	native := rdmacm.IBAddr{GID: ibverbs.GIDFromAddr(groupIPv6)}
	require.ErrorIs(t, six.id.JoinMulticastIB(native, rdmacm.JoinFull, nil), errors.ErrUnsupported)
	check(six.id.LeaveMulticastIB(native), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")

	tcp := newEnd(t)
	check(tcp.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast (unbound id): bind or resolve the address first")
	check(tcp.id.LeaveMulticast(groupIPv4), syscall.EINVAL, "rdma_leave_multicast (unbound id): join first")
	require.NoError(t, tcp.id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	check(tcp.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast ("+groupIPv4.String()+")")

	for name, id := range map[string]*rdmacm.ID{"nil": nil, "zero": {}} {
		require.ErrorIs(t, id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), os.ErrInvalid, name)
		require.ErrorIs(t, id.LeaveMulticast(groupIPv4), os.ErrInvalid, name)
	}
}

// Memberships end with the queue pair or the ID. The network interface's
// memberships end with them.
func TestMulticastEndsWithItsOwner(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	inGroup := func() bool { return isMember(t, groupIPv4) }
	require.False(t, inGroup())
	e := newUDEnd(t, d.IPv4)
	e.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	require.True(t, inGroup())
	require.NoError(t, e.qp.Close())
	require.False(t, inGroup())
	require.ErrorIs(t, e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL)

	// Only the id is left, without its queue pair. The event of the join is
	// never read.
	require.NoError(t, e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil))
	require.Equal(t, !testdevice.Soft(), inGroup(), "the device in user space receives nothing without a queue pair")
	require.NoError(t, e.id.Close())
	require.False(t, inGroup())
	require.ErrorIs(t, e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), os.ErrClosed)
}

// An end leaves while the event of its join is being read. Nothing is left
// behind: the queue pair can be destroyed, and no message comes.
func TestLeaveWhileJoining(t *testing.T) {
	const rounds = 100
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	sender, member := newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4)
	group := sender.joinAs(groupIPv4, rdmacm.JoinSendOnly, nil)
	for round := range rounds {
		require.NoError(t, member.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil))
		left := make(chan error, 1)
		go func() {
			for range round { // each time a little later
				runtime.Gosched()
			}
			left <- member.id.LeaveMulticast(groupIPv4)
		}()
		for done := false; !done; {
			select {
			case err := <-left:
				require.NoError(t, err)
				done = true
			default:
				_, _, err := member.ch.Poll()
				require.NoError(t, err)
			}
		}
		sender.sendTo(group, "unheard")
	}
	member.joinAs(otherGroup, rdmacm.JoinFull, nil)
	sender.sendTo(&rdmacm.Event{Path: otherPath(group), QPNum: group.QPNum, QKey: group.QKey}, "heard")
	require.Equal(t, "heard", member.received(), "and nothing before")
}

func otherPath(group *rdmacm.Event) ibverbs.AHAttr {
	path := group.Path
	path.DGID = ibverbs.GIDFromAddr(otherGroup)
	return path
}

// A connection goes on while its id moves from channel to channel. Unread
// events move with it.
func TestMigratedEvents(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Kernel)
	noKernelLeaks(t, d)
	other := newChannel(t)
	a := ask(t, d.IPv4, plainRequest())
	require.NoError(t, a.server.id.Migrate(other)) // which it came for
	require.NoError(t, a.server.id.Accept(rdmacm.ConnParam{QPNum: newQP()}))
	next(t, a.client.ch, rdmacm.EventConnectResponse)
	require.NoError(t, a.client.id.Establish())
	require.Same(t, a.server.id, next(t, other, rdmacm.EventEstablished).ID)

	require.NoError(t, a.client.id.Migrate(a.client.ch), "where it is")
	require.NoError(t, a.server.id.Disconnect())
	awaitKernelID(t, "state DISCONNECT") // the event is there, or about to be
	require.NoError(t, a.client.id.Migrate(other))
	ev, ok, err := a.client.ch.Poll()
	require.NoError(t, err)
	require.False(t, ok, "%v", ev)
	ended := map[*rdmacm.ID]bool{}
	require.NoError(t, a.client.id.Disconnect())
	for range 2 {
		ended[next(t, other, rdmacm.EventDisconnected).ID] = true
	}
	require.Equal(t, map[*rdmacm.ID]bool{a.client.id: true, a.server.id: true}, ended)
}

// serviceTCP is the service of a port of PortSpaceTCP.
const serviceTCP = uint64(rdmacm.PortSpaceTCP) << 16

func TestIBAddrRoundTrip(t *testing.T) {
	for name, tt := range map[string]struct{ in, want rdmacm.IBAddr }{
		"defaults": {rdmacm.IBAddr{}, rdmacm.IBAddr{ServiceIDMask: ^uint64(0), PKey: ibverbs.PKeyDefault}},
		"all": {
			rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x0106_1234, ServiceIDMask: 0xffff_0000, PKey: 0x8001, FlowInfo: 3, ScopeID: 4},
			rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x0106_1234, ServiceIDMask: 0xffff_0000, PKey: 0x8001, FlowInfo: 3, ScopeID: 4},
		},
	} {
		require.Equal(t, tt.want, rdmacm.IBAddrRoundTrip(tt.in), name)
	}
	require.Equal(t, "0100:0000:0000:0000:0000:0000:0000:0002 service 0x1061234",
		rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x1061234}.String())
}

func TestGetAddrInfoIB(t *testing.T) {
	d := testdevice.Needs(t, testdevice.IBAddrs)
	ctx := bounded(t)
	hints := &rdmacm.AddrInfo{
		Flags: rdmacm.AddrFamily | rdmacm.AddrNumericHost, Family: rdmacm.FamilyIB,
		PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeRC, SrcIB: rdmacm.IBAddr{GID: d.GID},
	}
	infos, err := rdmacm.GetAddrInfo(ctx, d.GID.String(), "7471", hints)
	require.NoError(t, err)
	got := infos[0]
	require.Equal(t, rdmacm.FamilyIB, got.Family)
	require.Equal(t, d.GID, got.DstIB.GID)
	require.Equal(t, serviceTCP|7471, got.DstIB.ServiceID)
	require.Equal(t, d.GID, got.SrcIB.GID)
	require.False(t, got.Dst.IsValid())

	// The port space of IP does not take such addresses. The port space of
	// InfiniBand gets as far as the route.
	got.PortSpace, got.SrcIB = rdmacm.PortSpaceIB, rdmacm.IBAddr{}
	_, err = endpoint.Create(ctx, got, nil, &cmtest.EndpointQueues)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_resolve_route (")
}

// The caller's data may lie in an object with Go pointers. These must not get
// to C.
func TestDataNearPointers(t *testing.T) {
	d := needDevice(t)
	type near struct {
		data [8]byte
		next *near
	}
	n := &near{data: [8]byte([]byte("datadata")), next: new(near)}
	ln, client := listening(t, d.IPv4), newEnd(t)
	require.NoError(t, client.id.ResolveAddr(netip.AddrPort{}, ln.id.LocalAddr(), patience))
	next(t, client.ch, rdmacm.EventAddrResolved)
	require.NoError(t, client.id.ResolveRoute(patience))
	next(t, client.ch, rdmacm.EventRouteResolved)
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1, PrivateData: n.data[:]}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest)
	require.Equal(t, padded(n.data[:], maxRequestData), request.PrivateData)
	require.NoError(t, request.ID.Reject(n.data[2:6]))
	require.NoError(t, request.ID.Close())
	require.Equal(t, padded([]byte("tada"), maxRejectData), next(t, client.ch, rdmacm.EventRejected).PrivateData)

	datagrams, err := client.ch.NewID(rdmacm.PortSpaceUDP)
	require.NoError(t, err)
	defer func() { require.NoError(t, datagrams.Close()) }()
	require.NoError(t, datagrams.BindAddr(ln.id.LocalAddr()))
	for _, flags := range []rdmacm.JoinFlags{rdmacm.JoinFull, rdmacm.JoinSendOnly} {
		err := datagrams.JoinMulticast(someGroup, flags, n)
		if flags == rdmacm.JoinSendOnly && err != nil {
			require.ErrorIs(t, err, syscall.EOPNOTSUPP) // as Soft-RoCE says
			continue
		}
		require.NoError(t, err)
		require.Same(t, n, next(t, client.ch, rdmacm.EventMulticastJoin).Value)
		require.NoError(t, datagrams.LeaveMulticast(someGroup))
	}
}
