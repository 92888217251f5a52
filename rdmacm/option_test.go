package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Options of a connecting id end up in its queue pair, and the type of service
// in the peer's too.
func TestQueuePairOptions(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	const tos = 0x28
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	client := newEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, client.ID().SetTOS(tos))
	require.NoError(t, client.ResolveAddr(ctx, netip.AddrPort{}, ln.ID().LocalAddr()))
	require.NoError(t, client.ResolveRoute(ctx))
	require.NoError(t, client.ID().SetAckTimeout(time.Second)) // 4.096 us * 2^18 is the next above
	_, err := client.CreateQP(nil, endpointQueues)
	require.NoError(t, err)
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := getRequest(t, ln)
	require.NoError(t, server.ID().SetAckTimeout(time.Millisecond))
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	for name, tt := range map[string]struct {
		ep      *rdmacm.Endpoint
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

// Ids that all reuse addresses may be bound to the same one, but only one of
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
		// Each gets its own.
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

// Enhancements travel with the handshake of ids that have no queue pair of
// their own. Soft-RoCE's queue pairs have none.
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
	require.Equal(t, rdmacm.ReasonVendorOption, rejected.Status)
	require.Equal(t, padded([]byte("no options"), maxRejectData), rejected.PrivateData)
	require.ErrorContains(t, rejected.Err(), "vendor option not supported")

	withQP := newEnd(t)
	withQP.resolve(ln.id.LocalAddr())
	withQP.createQP()
	require.ErrorIs(t, withQP.id.SetLocalECE(offer), syscall.EINVAL, "it comes too late")
	_, err = withQP.qp.QueryECE()
	require.Error(t, err)
}

// The answer to an offer of enhancements.
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

// A message that comes before the end of the handshake completes it.
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

// The attributes with which a queue pair of the caller's is moved.
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
