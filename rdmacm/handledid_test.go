package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Both ends of a connection are driven by handlers alone.
func TestHandlersConnect(t *testing.T) {
	b := newBench(t, needDevice(t))
	serverSaw, server := record()
	clientSaw, client := record()
	requests := make(chan happening, 1)
	accept := b.accepting(serverSaw)
	ln := b.listen(4, func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventConnectRequest {
			requests <- happening{id, ev}
		}
		return accept(id, ev)
	})
	ln.ID().SetValue("of the listener")
	dialer := b.dial(ln, clientSaw)
	req := take(t, requests, "the request")
	require.Same(t, ln.ID(), req.ev.ListenID)
	require.Same(t, req.id.ID(), req.ev.ID)
	require.Equal(t, "of the listener", req.id.ID().Value())
	require.Same(t, dialer, await(t, client, rdmacm.EventEstablished).id)
	require.Same(t, req.id, await(t, server, rdmacm.EventEstablished).id, "in the hands of the listener's handler")

	copy(b.mr.Bytes()[64:], "by hand")
	b.send(dialer)
	for got := 0; got < 2; {
		wcs := make([]ibverbs.WC, 2)
		n, err := b.cq.Wait(bounded(t), wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.NoError(t, wc.Err())
		}
		got += n
	}
	require.Equal(t, "by hand", string(bytes.TrimRight(b.mr.Bytes()[:64], "\x00")))

	own, fromOwn := record()
	require.NoError(t, req.id.SetHandler(own))
	require.NoError(t, dialer.ID().Disconnect())
	require.Same(t, req.id, await(t, fromOwn, rdmacm.EventDisconnected).id, "its own handler by now")
	require.Same(t, dialer, await(t, client, rdmacm.EventDisconnected).id)
	for _, id := range []*rdmacm.HandledID{req.id, dialer} { // whose handlers return the event's error
		take(t, id.Done(), "the end")
		require.ErrorIs(t, id.Err(), syscall.ECONNRESET)
		require.NoError(t, id.Close())
		require.ErrorIs(t, id.ID().Disconnect(), os.ErrClosed)
	}
	require.NoError(t, ln.Err())
	require.NoError(t, ln.Close())
	require.ErrorIs(t, ln.Err(), os.ErrClosed)
	take(t, ln.Done(), "the listener's end")
}

// While its handler runs, nobody closes an id. An error of the handler does.
func TestCloseWhileHandlerRuns(t *testing.T) {
	b := newBench(t, needDevice(t))
	errEnough := errors.New("enough")
	requests := make(chan *rdmacm.HandledID, 1)
	inside, leave := make(chan error, 3), make(chan error)
	ln := b.listen(1, func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		requests <- id
		inside <- id.Close()
		inside <- id.Shutdown(ended)
		inside <- id.ID().Close()
		return <-leave
	})
	saw, seen := record()
	b.dial(ln, saw)
	id := take(t, requests, "the request")
	require.ErrorIs(t, <-inside, syscall.EBUSY)
	require.ErrorIs(t, <-inside, context.Canceled)
	require.ErrorIs(t, <-inside, syscall.EBUSY)
	err := id.Close()
	require.ErrorIs(t, err, syscall.EBUSY, "from elsewhere")
	require.ErrorContains(t, err, "return an error")
	require.ErrorIs(t, id.Shutdown(ended), context.Canceled)
	stopped := make(chan error, 1)
	go func() { stopped <- id.Shutdown(bounded(t)) }()
	leave <- errEnough
	require.NoError(t, take(t, stopped, "Shutdown"))
	take(t, id.Done(), "the end")
	require.Equal(t, errEnough, id.Err())
	require.ErrorIs(t, await(t, seen, rdmacm.EventRejected).ev.Err(), syscall.ECONNREFUSED)
	require.ErrorIs(t, ln.ID().Close(), syscall.EBUSY, "the HandledID has a Close of its own")
	require.NoError(t, ln.Close(), "its handler runs for others only")
}

// Events of one id are handled in order, one at a time, and wait for a Shutdown
// that gives up.
func TestEventsWaitForTheirHandler(t *testing.T) {
	b := newBench(t, needDevice(t))
	ln := b.listen(1, b.accepting(func(*rdmacm.HandledID, *rdmacm.Event) error { return nil }))
	types, leave := make(chan rdmacm.EventType, 2), make(chan struct{})
	id := handled(t, func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		types <- ev.Type
		<-leave
		return nil
	})
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, ln.ID().LocalAddr(), time.Second))
	require.Equal(t, rdmacm.EventAddrResolved, take(t, types, "the first event"))
	require.NoError(t, id.ID().ResolveRoute(time.Second))
	soon(t, "the second event is there", func() bool { return rdmacm.Unhandled(id) == 1 })
	require.Empty(t, types)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- id.Shutdown(ctx) }()
	soon(t, "it waits", func() bool { return rdmacm.Stopping(id) == 1 })
	leave <- struct{}{}
	err := take(t, stopped, "Shutdown")
	require.NoError(t, err, "and wins over the next event")
	require.Empty(t, types)

	id = handled(t, func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		types <- ev.Type
		<-leave
		return nil
	})
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, ln.ID().LocalAddr(), time.Second))
	require.Equal(t, rdmacm.EventAddrResolved, take(t, types, "the first event"))
	require.NoError(t, id.ID().ResolveRoute(time.Second))
	go func() { stopped <- id.Shutdown(ctx) }()
	soon(t, "it waits", func() bool { return rdmacm.Stopping(id) == 1 })
	cancel()
	require.ErrorIs(t, take(t, stopped, "Shutdown"), context.Canceled)
	leave <- struct{}{}
	require.Equal(t, rdmacm.EventRouteResolved, take(t, types, "the second event"))
	leave <- struct{}{}
	require.NoError(t, id.Shutdown(bounded(t)))
}

// A handler that does not return delays neither other ids nor connections.
func TestSlowHandlerDelaysOnlyItsID(t *testing.T) {
	d := needDevice(t)
	b := newBench(t, d)
	stuck, leave := make(chan *rdmacm.HandledID, 2), make(chan struct{})
	accept := b.accepting(func(*rdmacm.HandledID, *rdmacm.Event) error { return nil })
	var requests atomic.Int32
	ln := b.listen(4, func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventConnectRequest && requests.Add(1) == 1 {
			stuck <- id
			<-leave
		}
		return accept(id, ev)
	})
	slowSaw, slow := record()
	slowID := b.dial(ln, slowSaw)
	request := take(t, stuck, "the first request")
	saw, seen := record()
	other := b.dial(ln, saw)
	require.Same(t, other, await(t, seen, rdmacm.EventEstablished).id)
	connect(t, d.IPv4, nil, nil)
	require.Empty(t, slow)
	close(leave)
	require.Same(t, slowID, await(t, slow, rdmacm.EventEstablished).id)
	require.NoError(t, request.Err())
}

// Requests in the hands of the handler count.
func TestHandledBacklog(t *testing.T) {
	b := newBench(t, needDevice(t))
	arrived, leave := make(chan struct{}, 2), make(chan struct{})
	ln := b.listen(2, func(*rdmacm.HandledID, *rdmacm.Event) error {
		arrived <- struct{}{}
		<-leave
		return syscall.ECONNREFUSED
	})
	saw, seen := record()
	for range 2 {
		b.dial(ln, saw)
		take(t, arrived, "a request")
	}
	require.Empty(t, seen)
	third := b.dial(ln, saw)
	require.Same(t, third, await(t, seen, rdmacm.EventRejected).id)
	close(leave)
	for range 2 {
		await(t, seen, rdmacm.EventRejected)
	}
	soon(t, "there is room again", func() bool { return rdmacm.Requests(ln) == 0 })
	b.dial(ln, saw)
	take(t, arrived, "another request")
	await(t, seen, rdmacm.EventRejected)
}

// What the program has made on the ID by other means is the program's to close.
func TestHandlerErrorSparesWhatOthersMade(t *testing.T) {
	b := newBench(t, needDevice(t))
	errEnough := errors.New("enough")
	id := handled(t, func(*rdmacm.HandledID, *rdmacm.Event) error { return errEnough })
	require.NoError(t, id.ID().BindAddr(netip.AddrPortFrom(b.ip, 0)))
	qp, err := id.ID().CreateQP(b.pd, ibverbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1})
	require.NoError(t, err)
	require.ErrorIs(t, id.Close(), syscall.EBUSY)
	require.NoError(t, id.Err(), "still in use")
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(b.ip, 1), time.Second))
	take(t, id.Done(), "the end")
	require.ErrorIs(t, id.Err(), errEnough)
	require.ErrorIs(t, id.Err(), syscall.EBUSY)
	require.ErrorIs(t, id.Close(), syscall.EBUSY)
	require.NoError(t, qp.Close())
	require.NoError(t, id.Close())
}

// Options are set as on any id.
func TestHandledOptions(t *testing.T) {
	d := needDevice(t)
	none := func(*rdmacm.HandledID, *rdmacm.Event) error { return nil }
	a, b := handled(t, none), handled(t, none)
	for _, id := range []*rdmacm.HandledID{a, b} {
		require.NoError(t, id.ID().SetTOS(32))
		require.NoError(t, id.ID().SetReuseAddr(true))
		require.NoError(t, id.ID().SetAFOnly(true))
	}
	require.NoError(t, a.ID().BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	require.NoError(t, b.ID().BindAddr(a.ID().LocalAddr()))
}

// An id that listens by its own Listen, and not the HandledID's or the
// Endpoint's, brings requests whose events are handled, too.
func TestListenByID(t *testing.T) {
	b := newBench(t, needDevice(t))
	note, seen := record()
	ln := handled(t, b.accepting(note))
	require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(b.ip, 0)))
	require.NoError(t, ln.ID().Listen(1))
	conn, err := rdmacm.Dial(bounded(t), ln.ID().LocalAddr().String(), nil)
	require.NoError(t, err)
	await(t, seen, rdmacm.EventEstablished)
	require.NoError(t, conn.Close())
	server := await(t, seen, rdmacm.EventDisconnected)
	take(t, server.id.Done(), "the end")

	ep := newEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, ep.ID().BindAddr(netip.AddrPortFrom(b.ip, 0)))
	require.NoError(t, ep.ID().Listen(1))
	dialed := inBackground(func() error {
		_, err := rdmacm.Dial(bounded(t), ep.ID().LocalAddr().String(), nil)
		return err
	})
	request := getRequest(t, ep)
	require.NoError(t, request.Close())
	require.ErrorIs(t, take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
}

// keep returns a handler that notes what it is given and ends nothing.
func keep() (rdmacm.Handler, chan happening) {
	note, seen := record()
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		_ = note(id, ev)
		return nil
	}, seen
}

// After a connection its ends hear when the number of their queue pair can be
// used again.
func TestTimewaitExit(t *testing.T) {
	b := newBench(t, needDevice(t))
	noteServer, server := keep()
	noteClient, client := keep()
	ln := b.listen(1, b.accepting(func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventDisconnected {
			_ = ev.ID.Disconnect() // answers the peer
		}
		return noteServer(id, ev)
	}))
	dialer := b.dial(ln, noteClient)
	for _, seen := range []chan happening{client, server} {
		await(t, seen, rdmacm.EventEstablished)
	}
	require.NoError(t, dialer.ID().Disconnect())
	for _, seen := range []chan happening{client, server} {
		await(t, seen, rdmacm.EventDisconnected)
		require.NoError(t, await(t, seen, rdmacm.EventTimewaitExit).ev.Err())
	}
}

// ownBond makes an interface of two, of which one is active, and which has the
// hardware address of that one.
func ownBond(t *testing.T) {
	t.Helper()
	run(t, "modprobe", "bonding", "max_bonds=0")
	run(t, "ip", "link", "add", ownBondDev, "type", "bond", "mode", "active-backup", "fail_over_mac", "active")
	run(t, "ip", "link", "set", ownBondDev, "addrgenmode", "none")
	for _, names := range [][2]string{{ownNetDev, "rdma10"}, {ownSpareDev, "rdma12"}} {
		run(t, "ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
		for _, name := range names {
			run(t, "ip", "link", "set", name, "addrgenmode", "none")
		}
		run(t, "ip", "link", "set", names[0], "master", ownBondDev)
		run(t, "ip", "link", "set", names[0], "up")
		run(t, "ip", "link", "set", names[1], "up")
	}
	run(t, "ip", "address", "add", ownPrefix, "dev", ownBondDev)
	run(t, "ip", "link", "set", ownBondDev, "up")
	run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", ownNetDev)
}

// When another of several interfaces takes over, whoever uses their common
// address hears of it. Connections may not outlive that; new ones are made.
func TestAddressChanges(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownBond(t)
	address := netip.MustParseAddrPort(ownDevice(t, ownBondDev))
	t.Run("in use", func(t *testing.T) {
		b := newBench(t, testdevice.Device{Name: ownName, IPv4: address.Addr()})
		note, seen := keep()
		ln := b.listen(1, b.accepting(note))
		dialer := b.dial(ln, note)
		for range 2 {
			await(t, seen, rdmacm.EventEstablished)
		}
		run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", ownSpareDev)
		for {
			changed := await(t, seen, rdmacm.EventAddrChange)
			var event *rdmacm.EventError
			require.ErrorAs(t, changed.ev.Err(), &event)
			if changed.id == dialer {
				break
			}
		}
		require.NoError(t, dialer.Err())
		soon(t, "a new connection", func() bool {
			again := b.dial(ln, note)
			for {
				h := take(t, seen, "what has come of it")
				if h.id == again && (h.ev.Type == rdmacm.EventEstablished || h.ev.Err() != nil) {
					return h.ev.Err() == nil
				}
			}
		})
	})
	removal := start(t, "rdma", "link", "delete", ownName)
	soon(t, "the device is not listed any more", func() bool { return !isListed(t, ownName) })
	for range 2 { // the first one lets it go, the second one finds librdmacm's part of that done
		require.Nil(t, find(t, ownName))
	}
	require.NoError(t, take(t, removal, "the end of the removal"))
}
