// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// within returns a context that ends with the test or after a time.
func within(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// asked is a connection request with both ends.
type asked struct {
	param              rdmacm.ConnParam
	ln, client, server *end
}

// ask sends a request and checks every field of its event. The request names a
// queue pair that does not exist. Neither the kernel nor the test looks for it.
func ask(t testing.TB, ip netip.Addr, p rdmacm.ConnParam) asked {
	t.Helper()
	ln, client := listening(t, ip), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, client.id.Connect(p))
	ev := next(t, ln.ch, rdmacm.EventConnectRequest)
	require.NotSame(t, ln.id, ev.ID)
	t.Cleanup(func() { require.NoError(t, ev.ID.Close()) })
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventConnectRequest, ID: ev.ID, ListenID: ln.id,
		PrivateData: padded(p.PrivateData, maxRequestData), QPNum: p.QPNum,
		// The peer's limits, exchanged.
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
		FlowControl: p.FlowControl, RetryCount: p.RetryCount, RNRRetryCount: p.PeerRNRRetryCount, SRQ: p.SRQ,
	}, ev)
	require.NoError(t, ev.Err())
	return asked{p, ln, client, &end{t: t, ch: ln.ch, id: ev.ID}}
}

// up answers the request until both ends have the connection. It checks every
// field of the events.
func (a asked) up(t testing.TB) {
	t.Helper()
	answer := rdmacm.ConnParam{
		PrivateData: []byte("yes"), ResponderResources: 5, InitiatorDepth: 3, FlowControl: true, PeerRNRRetryCount: 6, QPNum: newQP(), SRQ: true,
	}
	require.NoError(t, a.server.id.Accept(answer))
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventConnectResponse, ID: a.client.id, PrivateData: padded(answer.PrivateData, maxReplyData), QPNum: answer.QPNum,
		ResponderResources: answer.InitiatorDepth, InitiatorDepth: answer.ResponderResources,
		FlowControl: true, RNRRetryCount: 6, SRQ: true,
	}, next(t, a.client.ch, rdmacm.EventConnectResponse))
	require.NoError(t, a.client.id.Establish())
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventEstablished, ID: a.server.id}, next(t, a.server.ch, rdmacm.EventEstablished))
}

var lastQP atomic.Uint32

// newQP returns the number of a queue pair that does not exist. The kernel
// would take a number that was connected a moment ago for stale.
func newQP() uint32 { return 0x800000 + lastQP.Add(1) }

func plainRequest() rdmacm.ConnParam {
	return rdmacm.ConnParam{
		PrivateData: []byte("please"), ResponderResources: 2, InitiatorDepth: 4, RetryCount: 5, PeerRNRRetryCount: 7,
		QPNum: newQP(),
	}
}

// The ids have no queue pairs of their own. The events show all that each end
// is told.
func TestEventsOfHandshake(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Reads(5))
	noKernelLeaks(t, d)
	for _, tt := range []struct {
		name string
		flow bool
		srq  bool
	}{{name: "plain"}, {"flow control", true, false}, {"shared receives", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			p := plainRequest()
			p.FlowControl, p.SRQ = tt.flow, tt.srq
			ask(t, d.IPv4, p).up(t)
		})
	}
}

// With queue pairs, librdmacm completes the handshake when the event is read.
func TestEventEstablishedAtBothEnds(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Reads(5))
	noKernelLeaks(t, d)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 4}))
	server := &end{t: t, ch: ln.ch, id: next(t, ln.ch, rdmacm.EventConnectRequest).ID}
	t.Cleanup(func() { require.NoError(t, server.id.Close()) })
	server.createQP()
	require.NoError(t, server.id.Accept(rdmacm.ConnParam{PrivateData: []byte("yes"), ResponderResources: 4, InitiatorDepth: 2}))
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventEstablished, ID: client.id, PrivateData: padded([]byte("yes"), maxReplyData),
		QPNum: server.qp.Num(), ResponderResources: 2, InitiatorDepth: 4, RNRRetryCount: ibverbs.RNRRetryForever,
	}, next(t, client.ch, rdmacm.EventEstablished))
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventEstablished, ID: server.id}, next(t, server.ch, rdmacm.EventEstablished))
}

// The queue pair is in no state to be connected when the answer comes.
// librdmacm loses the errno.
func TestEventConnectError(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	server := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	require.NoError(t, client.qp.SetError())
	require.NoError(t, server.Accept(rdmacm.ConnParam{QPNum: newQP()}))
	ev := next(t, client.ch, rdmacm.EventConnectError)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventConnectError, ID: client.id, Status: -1}, ev)
	require.ErrorIs(t, ev.Err(), syscall.EIO)
	require.EqualError(t, ev.Err(), "connection failed")

	// Closing the ID tells the peer.
	require.NoError(t, client.qp.Close())
	require.NoError(t, client.id.Close())
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventRejected, ID: server, Status: int(rdmacm.ReasonConsumer), PrivateData: make([]byte, maxRejectData),
	}, next(t, ln.ch, rdmacm.EventRejected))
}

func requireRejected(t *testing.T, ev *rdmacm.Event, id *rdmacm.ID, reason rdmacm.Reason, data string) {
	t.Helper()
	padding := padded([]byte(data), maxRejectData)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventRejected, ID: id, Status: int(reason), PrivateData: padding}, ev)
	require.Equal(t, &rdmacm.RejectedError{Reason: reason, PrivateData: padding}, ev.Err())
	require.ErrorIs(t, ev.Err(), syscall.ECONNREFUSED)
}

func TestEventRejected(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Reads(5))
	noKernelLeaks(t, d)
	t.Run("without a listener", func(t *testing.T) {
		client := newEnd(t)
		client.resolve(netip.AddrPortFrom(d.IPv4, 7))
		require.NoError(t, client.id.Connect(plainRequest()))
		ev := next(t, client.ch, rdmacm.EventRejected)
		requireRejected(t, ev, client.id, rdmacm.ReasonNoListener, "")
		require.EqualError(t, ev.Err(), "connection rejected: no program listens on the port")
	})
	t.Run("by the program", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Reject([]byte("not you")))
		requireRejected(t, next(t, a.client.ch, rdmacm.EventRejected), a.client.id, rdmacm.ReasonConsumer, "not you")
	})
	t.Run("by the program that closes", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Close())
		requireRejected(t, next(t, a.client.ch, rdmacm.EventRejected), a.client.id, rdmacm.ReasonConsumer, "")
	})
	t.Run("by the dialer that closes", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Accept(rdmacm.ConnParam{QPNum: newQP()}))
		next(t, a.client.ch, rdmacm.EventConnectResponse)
		require.NoError(t, a.client.id.Close())
		requireRejected(t, next(t, a.server.ch, rdmacm.EventRejected), a.server.id, rdmacm.ReasonConsumer, "")
	})
	// A host that has forgotten a connection asks for a new one with the same
	// queue pair. The kernel refuses the new one and ends the old one.
	t.Run("stale", func(t *testing.T) {
		old := ask(t, d.IPv4, plainRequest())
		old.up(t)
		client := newEnd(t)
		client.resolve(old.ln.id.LocalAddr())
		require.NoError(t, client.id.Connect(old.param)) // the same queue pair
		requireRejected(t, next(t, client.ch, rdmacm.EventRejected), client.id, rdmacm.ReasonStale, "")
		requireDisconnected(t, old.client)
		// The peer was told by its own system.
	})
}

func requireDisconnected(t *testing.T, e *end) {
	t.Helper()
	ev := next(t, e.ch, rdmacm.EventDisconnected)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventDisconnected, ID: e.id}, ev)
	require.ErrorIs(t, ev.Err(), syscall.ECONNRESET)
	require.EqualError(t, ev.Err(), "disconnected")
}

func requireTimewaitExit(t *testing.T, e *end) {
	t.Helper()
	ev := next(t, e.ch, rdmacm.EventTimewaitExit)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventTimewaitExit, ID: e.id}, ev)
	require.NoError(t, ev.Err())
}

// Whichever end closes first, both ends get the same events. An event also says
// when the connection's number may be used again.
func TestEventsOfTheEnd(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Reads(5))
	noKernelLeaks(t, d)
	for _, tt := range []struct {
		name string
		by   func(asked) (first, second *end)
	}{
		{"client", func(a asked) (first, second *end) { return a.client, a.server }},
		{"server", func(a asked) (first, second *end) { return a.server, a.client }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t, d.IPv4, plainRequest())
			a.up(t)
			first, second := tt.by(a)
			require.NoError(t, first.id.Disconnect())
			requireDisconnected(t, second)
			require.NoError(t, second.id.Disconnect())
			requireDisconnected(t, first)
			requireTimewaitExit(t, first)
			requireTimewaitExit(t, second)
		})
	}
	t.Run("id closed", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		a.up(t)
		require.NoError(t, a.client.id.Close())
		requireDisconnected(t, a.server)
	})
}

// requireEvent compares every field.
func requireEvent(t testing.TB, want rdmacm.Event, got *rdmacm.Event) {
	t.Helper()
	require.Same(t, want.ID, got.ID)
	require.Same(t, want.ListenID, got.ListenID)
	rest := *got
	// They are not to be printed.
	want.ID, want.ListenID, rest.ID, rest.ListenID = nil, nil, nil, nil
	require.Equal(t, want, rest)
}

// neighbour makes the kernel believe that a host exists and returns its
// address. No device answers there.
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

// No host answers the question for the owner of the address.
func TestEventAddrError(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	e := newEnd(t)
	bytes := d.IPv4.As4()
	bytes[3] = 77
	absent := netip.AddrPortFrom(netip.AddrFrom4(bytes), 7471)
	require.NoError(t, e.id.ResolveAddr(netip.AddrPort{}, absent, 50*time.Millisecond))
	ev := next(t, e.ch, rdmacm.EventAddrError)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventAddrError, ID: e.id, Status: -int(syscall.ETIMEDOUT)}, ev)
	require.ErrorIs(t, ev.Err(), syscall.ETIMEDOUT)
	require.EqualError(t, ev.Err(), "address not resolved: connection timed out")
	e.resolve(netip.AddrPortFrom(d.IPv4, 7471)) // the id is as good as new

	_, err := dialWith(bounded(t), rdmacm.Dialer{ResolveTimeout: 50 * time.Millisecond}, absent.String(), nil)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.EqualError(t, err, "dial 192.0.2.77:7471: address not resolved: connection timed out")
}

// The path to the peer is lost while the request is under way. The peer's
// hardware address changes, which the kernel takes for the end of the peer.
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
		_, err := rdmacm.Dial(bounded(t), peer.String(), inPool(nil))
		dialed <- err
	}()
	awaitKernelID(t, "state CONNECT ", "dst-addr "+peer.String())
	moves()
	err := <-dialed
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.EqualError(t, err, "dial 192.0.2.79:7471: peer unreachable: connection timed out")
}

// askNobody sends a request to a host that never answers. The returned function
// waits until the kernel has given up. The kernel sends the request 16 times,
// with more than four seconds between; no call changes these numbers.
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

// After a connection its ends learn when the number of their queue pair can be
// used again.
func TestTimewaitExit(t *testing.T) {
	b := cmtest.NewBench(t, needDevice(t))
	noteServer, server := cmtest.Keep()
	noteClient, client := cmtest.Keep()
	ln := b.Listen(1, b.Accepting(func(id *handled.ID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventDisconnected {
			_ = ev.ID.Disconnect() // answers the peer
		}
		return noteServer(id, ev)
	}))
	dialer := b.Dial(ln, noteClient)
	for _, seen := range []chan cmtest.Happening{client, server} {
		cmtest.Await(t, seen, rdmacm.EventEstablished)
	}
	require.NoError(t, dialer.ID().Disconnect())
	for _, seen := range []chan cmtest.Happening{client, server} {
		cmtest.Await(t, seen, rdmacm.EventDisconnected)
		require.NoError(t, cmtest.Await(t, seen, rdmacm.EventTimewaitExit).Event.Err())
	}
}

// ownBond makes a bond of two interfaces. One of them is active, and the bond
// has its hardware address.
func ownBond(t *testing.T) {
	t.Helper()
	guest.Run(t, "modprobe", "bonding", "max_bonds=0")
	guest.Run(t, "ip", "link", "add", ownBondDev, "type", "bond", "mode", "active-backup", "fail_over_mac", "active")
	guest.Run(t, "ip", "link", "set", ownBondDev, "addrgenmode", "none")
	for _, names := range [][2]string{{guest.NetDev, "rdma10"}, {ownSpareDev, "rdma12"}} {
		guest.Run(t, "ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
		for _, name := range names {
			guest.Run(t, "ip", "link", "set", name, "addrgenmode", "none")
		}
		guest.Run(t, "ip", "link", "set", names[0], "master", ownBondDev)
		guest.Run(t, "ip", "link", "set", names[0], "up")
		guest.Run(t, "ip", "link", "set", names[1], "up")
	}
	guest.Run(t, "ip", "address", "add", guest.Prefix, "dev", ownBondDev)
	guest.Run(t, "ip", "link", "set", ownBondDev, "up")
	guest.Run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", guest.NetDev)
}

// When another of several interfaces takes over, the users of their common
// address learn of it. Connections may not survive that, but new ones can be
// made.
func TestAddressChanges(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownBond(t)
	address := netip.MustParseAddrPort(guest.AddDevice(t, ownBondDev))
	t.Run("in use", func(t *testing.T) {
		b := cmtest.NewBench(t, testdevice.Device{Name: guest.Device, IPv4: address.Addr()})
		note, seen := cmtest.Keep()
		ln := b.Listen(1, b.Accepting(note))
		dialer := b.Dial(ln, note)
		for range 2 {
			cmtest.Await(t, seen, rdmacm.EventEstablished)
		}
		guest.Run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", ownSpareDev)
		for {
			changed := cmtest.Await(t, seen, rdmacm.EventAddrChange)
			var event *rdmacm.EventError
			require.ErrorAs(t, changed.Event.Err(), &event)
			if changed.ID == dialer {
				break
			}
		}
		require.NoError(t, dialer.Err())
		soon(t, "a new connection", func() bool {
			again := b.Dial(ln, note)
			for {
				h := cmtest.Take(t, seen, "what has come of it")
				if h.ID == again && (h.Event.Type == rdmacm.EventEstablished || h.Event.Err() != nil) {
					return h.Event.Err() == nil
				}
			}
		})
	})
	removal := guest.DeleteDevice(t)
	soon(t, "the device is not listed any more", func() bool { return !guest.IsListed(t, guest.Device) })
	// The first list lets the device go. The second finds that librdmacm has
	// let it go.
	for range 2 {
		require.Nil(t, find(t, guest.Device))
	}
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
}
