package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// requireEvent compares every field.
func requireEvent(t testing.TB, want rdmacm.Event, got *rdmacm.Event) {
	t.Helper()
	require.Same(t, want.ID, got.ID)
	require.Same(t, want.ListenID, got.ListenID)
	rest := *got
	want.ID, want.ListenID, rest.ID, rest.ListenID = nil, nil, nil, nil // not to be printed
	require.Equal(t, want, rest)
}

// neighbour makes the kernel believe that a host is there, and returns its
// address. Nothing answers there.
func neighbour(t *testing.T, netdev string, ip netip.Addr, last byte) (peer netip.AddrPort, moves func()) {
	t.Helper()
	needGuest(t)
	bytes := ip.As4()
	bytes[3] = last
	peer = netip.AddrPortFrom(netip.AddrFrom4(bytes), 7471)
	set := func(hardware string) {
		command(t, "ip neigh replace "+peer.Addr().String()+" lladdr "+hardware+" nud permanent dev "+netdev)
	}
	set("02:00:00:00:00:01")
	t.Cleanup(func() { command(t, "ip neigh del "+peer.Addr().String()+" dev "+netdev) })
	return peer, func() { set("02:00:00:00:00:02") }
}

func TestEventsOfResolution(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	e := newEnd(t)
	require.NoError(t, e.id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(d.IPv4, 7471), time.Second))
	ev := next(t, e.ch, rdmacm.EventAddrResolved)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventAddrResolved, ID: e.id}, ev)
	require.NoError(t, ev.Err())
	require.NoError(t, e.id.ResolveRoute(time.Second))
	ev = next(t, e.ch, rdmacm.EventRouteResolved)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventRouteResolved, ID: e.id}, ev)
	require.NoError(t, ev.Err())
}

// Nobody answers the question who has the address.
func TestEventAddrError(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	e := newEnd(t)
	bytes := d.IPv4.As4()
	bytes[3] = 77
	nobody := netip.AddrPortFrom(netip.AddrFrom4(bytes), 7471)
	require.NoError(t, e.id.ResolveAddr(netip.AddrPort{}, nobody, 50*time.Millisecond))
	ev := next(t, e.ch, rdmacm.EventAddrError)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventAddrError, ID: e.id, Status: -int(syscall.ETIMEDOUT)}, ev)
	require.ErrorIs(t, ev.Err(), syscall.ETIMEDOUT)
	require.EqualError(t, ev.Err(), "address not resolved: connection timed out")
	e.resolve(netip.AddrPortFrom(d.IPv4, 7471)) // the id is as good as new

	_, err := (&rdmacm.Dialer{ResolveTimeout: 50 * time.Millisecond}).Dial(bounded(t), nobody.String(), nil)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.EqualError(t, err, "dial 192.0.2.77:7471: address not resolved: connection timed out")
}

// The path to the peer is lost while the request is under way: its hardware
// address changes, which the kernel takes for the peer's end.
func TestEventUnreachable(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	peer, moves := neighbour(t, d.NetDev, d.IPv4, 78)
	e := newEnd(t)
	e.resolve(peer)
	require.NoError(t, e.id.Connect(rdmacm.ConnParam{QPNum: newQP(), PrivateData: []byte("anybody there?")}))
	moves()
	ev := next(t, e.ch, rdmacm.EventUnreachable)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventUnreachable, ID: e.id, Status: -int(syscall.ETIMEDOUT)}, ev)
	require.ErrorIs(t, ev.Err(), syscall.ETIMEDOUT)
	require.EqualError(t, ev.Err(), "peer unreachable: connection timed out")
}

func TestDialUnreachable(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	peer, moves := neighbour(t, d.NetDev, d.IPv4, 79)
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(bounded(t), peer.String(), nil)
		dialed <- err
	}()
	awaitKernelID(t, "state CONNECT ", "dst-addr "+peer.String())
	moves()
	err := <-dialed
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.EqualError(t, err, "dial 192.0.2.79:7471: peer unreachable: connection timed out")
}

// askNobody sends a request to a host that never answers. The function that it
// returns waits until the kernel has given up: it sends the request 16 times, with
// more than four seconds between, and no call changes these numbers.
func askNobody(t *testing.T, d testdevice.Device) (unanswered func()) {
	t.Helper()
	peer, _ := neighbour(t, d.NetDev, d.IPv4, 80)
	e := newEnd(t)
	e.resolve(peer)
	start := time.Now()
	require.NoError(t, e.id.Connect(rdmacm.ConnParam{QPNum: newQP()}))
	return func() {
		ctx, cancel := within(t, 3*time.Minute)
		defer cancel()
		ev, err := e.ch.Next(ctx)
		require.NoError(t, err)
		requireEvent(t, rdmacm.Event{Type: rdmacm.EventUnreachable, ID: e.id, Status: -int(syscall.ETIMEDOUT)}, ev)
		t.Logf("unreachable, known by %v", time.Since(start))
	}
}
