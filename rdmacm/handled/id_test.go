// SPDX-License-Identifier: Apache-2.0

package handled_test

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
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Both ends of a connection are driven by handlers alone.
func TestHandlersConnect(t *testing.T) {
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	serverSaw, server := cmtest.Record()
	clientSaw, client := cmtest.Record()
	requests := make(chan cmtest.Happening, 1)
	accept := b.Accepting(serverSaw)
	ln := b.Listen(4, func(id *handled.ID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventConnectRequest {
			requests <- cmtest.Happening{ID: id, Event: ev}
		}
		return accept(id, ev)
	})
	ln.ID().SetValue("of the listener")
	dialer := b.Dial(ln, clientSaw)
	req := cmtest.Take(t, requests, "the request")
	require.Same(t, ln.ID(), req.Event.ListenID)
	require.Same(t, req.ID.ID(), req.Event.ID)
	require.Equal(t, "of the listener", req.ID.ID().Value())
	require.Same(t, dialer, cmtest.Await(t, client, rdmacm.EventEstablished).ID)
	require.Same(t, req.ID, cmtest.Await(t, server, rdmacm.EventEstablished).ID, "in the hands of the listener's handler")

	copy(b.MR.Bytes()[64:], "by hand")
	b.Send(dialer)
	for got := 0; got < 2; {
		wcs := make([]ibverbs.WC, 2)
		n, err := b.CQ.Wait(cmtest.Bounded(t), wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.NoError(t, wc.Err())
		}
		got += n
	}
	require.Equal(t, "by hand", string(bytes.TrimRight(b.MR.Bytes()[:64], "\x00")))

	own, fromOwn := cmtest.Record()
	require.NoError(t, req.ID.SetHandler(own))
	require.NoError(t, dialer.ID().Disconnect())
	require.Same(t, req.ID, cmtest.Await(t, fromOwn, rdmacm.EventDisconnected).ID, "its own handler by now")
	require.Same(t, dialer, cmtest.Await(t, client, rdmacm.EventDisconnected).ID)
	for _, id := range []*handled.ID{req.ID, dialer} { // whose handlers return the event's error
		cmtest.Take(t, id.Done(), "the end")
		require.ErrorIs(t, id.Err(), syscall.ECONNRESET)
		require.NoError(t, id.Close())
		require.ErrorIs(t, id.ID().Disconnect(), os.ErrClosed)
	}
	require.NoError(t, ln.Err())
	require.NoError(t, ln.Close())
	require.ErrorIs(t, ln.Err(), os.ErrClosed)
	cmtest.Take(t, ln.Done(), "the listener's end")
}

// While its handler runs, no call closes an id, but an error of the handler
// does.
func TestCloseWhileHandlerRuns(t *testing.T) {
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	errEnough := errors.New("enough")
	requests := make(chan *handled.ID, 1)
	inside, leave := make(chan error, 3), make(chan error)
	ln := b.Listen(1, func(id *handled.ID, ev *rdmacm.Event) error {
		requests <- id
		inside <- id.Close()
		inside <- id.Shutdown(ended)
		inside <- id.ID().Close()
		return <-leave
	})
	saw, seen := cmtest.Record()
	b.Dial(ln, saw)
	id := cmtest.Take(t, requests, "the request")
	require.ErrorIs(t, <-inside, syscall.EBUSY)
	require.ErrorIs(t, <-inside, context.Canceled)
	require.ErrorIs(t, <-inside, syscall.EBUSY)
	err := id.Close()
	require.ErrorIs(t, err, syscall.EBUSY, "from elsewhere")
	require.ErrorContains(t, err, "return an error")
	require.ErrorIs(t, id.Shutdown(ended), context.Canceled)
	stopped := make(chan error, 1)
	go func() { stopped <- id.Shutdown(cmtest.Bounded(t)) }()
	leave <- errEnough
	require.NoError(t, cmtest.Take(t, stopped, "Shutdown"))
	cmtest.Take(t, id.Done(), "the end")
	require.Equal(t, errEnough, id.Err())
	require.ErrorIs(t, cmtest.Await(t, seen, rdmacm.EventRejected).Event.Err(), syscall.ECONNREFUSED)
	require.ErrorIs(t, ln.ID().Close(), syscall.EBUSY, "the HandledID has a Close of its own")
	require.NoError(t, ln.Close(), "its handler runs for others only")
}

// Events of one id are handled in order, one at a time, and wait for a Shutdown
// that gives up.
func TestEventsWaitForTheirHandler(t *testing.T) {
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	ln := b.Listen(1, b.Accepting(func(*handled.ID, *rdmacm.Event) error { return nil }))
	types, leave := make(chan rdmacm.EventType, 2), make(chan struct{})
	id := cmtest.Handled(t, func(id *handled.ID, ev *rdmacm.Event) error {
		types <- ev.Type
		<-leave
		return nil
	})
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, ln.ID().LocalAddr(), time.Second))
	require.Equal(t, rdmacm.EventAddrResolved, cmtest.Take(t, types, "the first event"))
	require.NoError(t, id.ID().ResolveRoute(time.Second))
	cmtest.Soon(t, "the second event is there", func() bool { return handled.Unhandled(id) == 1 })
	require.Empty(t, types)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- id.Shutdown(ctx) }()
	cmtest.Soon(t, "it waits", func() bool { return handled.Stopping(id) == 1 })
	leave <- struct{}{}
	err := cmtest.Take(t, stopped, "Shutdown")
	require.NoError(t, err, "and wins over the next event")
	require.Empty(t, types)

	id = cmtest.Handled(t, func(id *handled.ID, ev *rdmacm.Event) error {
		types <- ev.Type
		<-leave
		return nil
	})
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, ln.ID().LocalAddr(), time.Second))
	require.Equal(t, rdmacm.EventAddrResolved, cmtest.Take(t, types, "the first event"))
	require.NoError(t, id.ID().ResolveRoute(time.Second))
	go func() { stopped <- id.Shutdown(ctx) }()
	cmtest.Soon(t, "it waits", func() bool { return handled.Stopping(id) == 1 })
	cancel()
	require.ErrorIs(t, cmtest.Take(t, stopped, "Shutdown"), context.Canceled)
	leave <- struct{}{}
	require.Equal(t, rdmacm.EventRouteResolved, cmtest.Take(t, types, "the second event"))
	leave <- struct{}{}
	require.NoError(t, id.Shutdown(cmtest.Bounded(t)))
}

// A handler that does not return delays neither other ids nor connections.
func TestSlowHandlerDelaysOnlyItsID(t *testing.T) {
	d := cmtest.NeedDevice(t)
	b := cmtest.NewBench(t, d)
	stuck, leave := make(chan *handled.ID, 2), make(chan struct{})
	accept := b.Accepting(func(*handled.ID, *rdmacm.Event) error { return nil })
	var requests atomic.Int32
	ln := b.Listen(4, func(id *handled.ID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventConnectRequest && requests.Add(1) == 1 {
			stuck <- id
			<-leave
		}
		return accept(id, ev)
	})
	slowSaw, slow := cmtest.Record()
	slowID := b.Dial(ln, slowSaw)
	request := cmtest.Take(t, stuck, "the first request")
	saw, seen := cmtest.Record()
	other := b.Dial(ln, saw)
	require.Same(t, other, cmtest.Await(t, seen, rdmacm.EventEstablished).ID)
	cmtest.Connect(t, d.IPv4, nil, nil)
	require.Empty(t, slow)
	close(leave)
	require.Same(t, slowID, cmtest.Await(t, slow, rdmacm.EventEstablished).ID)
	require.NoError(t, request.Err())
}

// Requests in the hands of the handler count.
func TestHandledBacklog(t *testing.T) {
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	arrived, leave := make(chan *handled.ID, 2), make(chan struct{})
	ln := b.Listen(2, func(id *handled.ID, _ *rdmacm.Event) error {
		arrived <- id
		<-leave
		return syscall.ECONNREFUSED
	})
	saw, seen := cmtest.Record()
	var refused []*handled.ID
	for range 2 {
		b.Dial(ln, saw)
		refused = append(refused, cmtest.Take(t, arrived, "a request"))
	}
	require.Empty(t, seen)
	third := b.Dial(ln, saw)
	require.Same(t, third, cmtest.Await(t, seen, rdmacm.EventRejected).ID)
	close(leave)
	for range 2 {
		cmtest.Await(t, seen, rdmacm.EventRejected)
	}
	cmtest.Soon(t, "there is room again", func() bool { return handled.Requests(ln) == 0 })
	b.Dial(ln, saw)
	refused = append(refused, cmtest.Take(t, arrived, "another request"))
	cmtest.Await(t, seen, rdmacm.EventRejected)
	for _, id := range refused { // the dialers hear of it before the ID is closed
		cmtest.Take(t, id.Done(), "the end of a request")
	}
}

// What the program has made on the ID by other means is the program's to close.
func TestHandlerErrorSparesWhatOthersMade(t *testing.T) {
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	errEnough := errors.New("enough")
	id := cmtest.Handled(t, func(*handled.ID, *rdmacm.Event) error { return errEnough })
	require.NoError(t, id.ID().BindAddr(netip.AddrPortFrom(b.IP, 0)))
	qp, err := id.ID().CreateQP(b.PD, ibverbs.QPConfig{SendCQ: b.CQ, RecvCQ: b.CQ, SendQueue: 1, RecvQueue: 1})
	require.NoError(t, err)
	require.ErrorIs(t, id.Close(), syscall.EBUSY)
	require.NoError(t, id.Err(), "still in use")
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(b.IP, 1), time.Second))
	cmtest.Take(t, id.Done(), "the end")
	require.ErrorIs(t, id.Err(), errEnough)
	require.ErrorIs(t, id.Err(), syscall.EBUSY)
	require.ErrorIs(t, id.Close(), syscall.EBUSY)
	require.NoError(t, qp.Close())
	require.NoError(t, id.Close())
}

// Options are set as on any id.
func TestHandledOptions(t *testing.T) {
	d := cmtest.NeedDevice(t)
	none := func(*handled.ID, *rdmacm.Event) error { return nil }
	a, b := cmtest.Handled(t, none), cmtest.Handled(t, none)
	for _, id := range []*handled.ID{a, b} {
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
	b := cmtest.NewBench(t, cmtest.NeedDevice(t))
	note, seen := cmtest.Record()
	ln := cmtest.Handled(t, b.Accepting(note))
	require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(b.IP, 0)))
	require.NoError(t, ln.ID().Listen(1))
	conn, err := rdmacm.Dial(cmtest.Bounded(t), ln.ID().LocalAddr().String(), nil)
	require.NoError(t, err)
	cmtest.Await(t, seen, rdmacm.EventEstablished)
	require.NoError(t, conn.Close())
	server := cmtest.Await(t, seen, rdmacm.EventDisconnected)
	cmtest.Take(t, server.ID.Done(), "the end")

	ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	require.NoError(t, ep.ID().BindAddr(netip.AddrPortFrom(b.IP, 0)))
	require.NoError(t, ep.ID().Listen(1))
	dialed := cmtest.InBackground(func() error {
		_, err := rdmacm.Dial(cmtest.Bounded(t), ep.ID().LocalAddr().String(), nil)
		return err
	})
	request := cmtest.GetRequest(t, ep)
	require.NoError(t, request.Close())
	require.ErrorIs(t, cmtest.Take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
}
