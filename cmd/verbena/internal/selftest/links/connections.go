// SPDX-License-Identifier: Apache-2.0

package links

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// connected are the features that need connections.
var connected = []check.Feature{check.Connections, check.Sockets, check.Transfers}

// loopback is what to do if no connection is made.
const loopback = "Some devices have no way to themselves: run it between two hosts, with verbena selftest -L at the other. If that fails, too, verbena doctor says why."

var connections = []check.Check{
	{Name: "connections.messages", Proves: "a connection is made, messages arrive and come back, and its end is told", Features: connected, Do: loopback, Run: on(messages)},
	{Name: "connections.events", Proves: "the connection manager's events come in their order and say what the other end said", Features: connected, Do: loopback, Run: on(events)},
	{Name: "connections.data", Proves: "private data of every length arrive, and longer ones are refused", Features: connected, Run: on(privateData)},
	{Name: "connections.refused", Proves: "a refusal arrives with its reason and its private data", Features: connected, Run: on(refusals)},
	{Name: "connections.unused", Proves: "a connection to a port on which no program listens is refused at once", Features: connected, Run: on(unused)},
	{Name: "connections.addresses", Proves: "addresses of others and ports in use are refused", Features: connected, Run: on(addresses)},
	{Name: "connections.end", Proves: "each end learns that the other has ended the connection, and what was in flight fails", Features: connected, Run: on(ends)},
	{Name: "connections.many", Proves: "connections that are asked for at the same time are all made", Features: connected, Run: on(many)},
}

func messages(r *rig) {
	conn := r.dial(peer.Echo, 0, 0)
	r.want(conn.RemoteAddr() == r.session.Server, "the other end's address is %v instead of %v", conn.RemoteAddr(), r.session.Server)
	r.want(conn.LocalAddr().Addr() == r.session.Local, "this end's address is %v instead of %v", conn.LocalAddr().Addr(), r.session.Local)
	l := r.line(conn)
	for i, n := range []int{1, 64, 1000, 4096, 5000, peer.MessageSize} {
		l.echo(n, byte(i))
	}
	ctx, cancel := r.wait()
	defer cancel()
	r.ok(conn.Shutdown(ctx))
}

// hand is an ID whose events are taken one by one.
type hand struct {
	*rig
	*rdmacm.ID
	channel *rdmacm.EventChannel
}

func (r *rig) hand() *hand {
	channel, err := rdmacm.NewEventChannel()
	r.ok(err)
	r.Close(channel)
	id, err := channel.NewID(rdmacm.PortSpaceTCP)
	r.ok(err)
	r.T.Close(id)
	return &hand{r, id, channel}
}

// next takes an event.
func (h *hand) next(want rdmacm.EventType) *rdmacm.Event {
	ctx, cancel := h.wait()
	defer cancel()
	ev, err := h.channel.Next(ctx)
	h.ok(err)
	if ev.Type != want {
		h.Failf("the event %v came instead of %v: %v", ev.Type, want, ev.Err())
	}
	h.want(ev.ID == h.ID, "the event %v is of another ID", want)
	h.want(ev.Status == 0, "the event %v has the status %d", want, ev.Status)
	return ev
}

func events(r *rig) {
	h := r.hand()
	r.ok(h.ResolveAddr(netip.AddrPortFrom(r.session.Local, 0), r.session.Server, r.Patience()))
	h.next(rdmacm.EventAddrResolved)
	device, err := h.Device()
	r.ok(err)
	r.want(device.Name() == r.Target().Device && h.PortNum() == r.Target().Port, "the address is resolved to port %d of another device", h.PortNum())
	r.ok(h.ResolveRoute(r.Patience()))
	h.next(rdmacm.EventRouteResolved)

	pd, err := device.AllocPD()
	r.ok(err)
	r.Close(pd)
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 4})
	r.ok(err)
	r.Close(cq)
	qp, err := h.CreateQP(pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 2, RecvQueue: 2})
	r.ok(err)
	r.Close(qp)
	reads := -1
	if r.reads() {
		reads = 1
	}
	const ask = 20
	r.ok(h.Connect(rdmacm.ConnParam{
		PrivateData: r.session.Request(peer.Told, ask, 40), ResponderResources: reads, InitiatorDepth: reads, RetryCount: 5, PeerRNRRetryCount: 3,
	}))
	ev := h.next(rdmacm.EventEstablished)
	seen, ok := r.session.Seen(ev.PrivateData, ask)
	r.want(ok, "the private data of the acceptance are not those that the server sent")
	r.want(h.RemoteAddr() == r.session.Server, "the other end's address is %v instead of %v", h.RemoteAddr(), r.session.Server)
	r.want(seen.Port == h.LocalAddr().Port(), "the server has a request from the port %d instead of %d", seen.Port, h.LocalAddr().Port())
	if r.iWARP() {
		r.Notef("iWARP tells no queue pair numbers and no retry counts")
	} else {
		depth := byte(max(reads, 0))
		r.want(seen.QPNum == qp.Num(), "the server has a request of the queue pair %d instead of %d", seen.QPNum, qp.Num())
		r.want(ev.QPNum > 1, "the server's queue pair has the number %d", ev.QPNum)
		r.want(seen.ResponderResources == depth && seen.InitiatorDepth == depth, "the server has a request with %d and %d reads in flight instead of %d",
			seen.ResponderResources, seen.InitiatorDepth, depth)
		r.want(ev.ResponderResources <= 1 && ev.InitiatorDepth <= 1, "the server accepts %d and %d reads in flight, of which there were to be %d",
			ev.ResponderResources, ev.InitiatorDepth, depth)
		r.want(seen.RetryCount == 5 && seen.RNRRetryCount == 3, "the server has a request with the retry counts %d and %d instead of 5 and 3", seen.RetryCount, seen.RNRRetryCount)
	}
	r.want(r.is(qp, ibverbs.QPStateRTS), "the queue pair is not ready to send when the connection is up")
	r.ok(h.Disconnect())
	h.next(rdmacm.EventDisconnected)
	r.want(r.is(qp, ibverbs.QPStateError), "the queue pair is not in the error state when the connection is over")
}

// is reports whether a queue pair is in a state. It is if the device has no
// queries of queue pairs.
func (r *rig) is(qp *ibverbs.QP, want ibverbs.QPState) bool {
	state, err := qp.State()
	if errors.Is(err, errors.ErrUnsupported) {
		return true
	}
	r.ok(err)
	return state == want
}

func privateData(r *rig) {
	for _, n := range []int{30, peer.MaxRequest - 1, peer.MaxRequest} { // the server looks at them
		r.Scope(func() { r.dial(peer.Unused, 0, n) })
	}
	most := peer.MaxAcceptance - peer.SeenLen
	for _, ask := range []int{0, 1, most} {
		r.Scope(func() {
			_, ok := r.session.Seen(r.dial(peer.Told, ask, 0).PeerData(), ask)
			r.want(ok, "%d bytes of private data of an acceptance are not those that the server sent", ask+peer.SeenLen)
		})
	}
	if r.iWARP() {
		return // which has more room
	}
	r.Scope(func() {
		_, err := r.try(peer.Unused, 0, peer.MaxRequest+1)
		r.Case("request with a byte too many", spec("EINVAL"), ended(err))
	})
	r.Scope(func() {
		_, err := r.try(peer.Told, most+1, 0)
		r.want(err != nil, "an acceptance with more private data than there is room for succeeds")
	})
}

func refusals(r *rig) {
	for _, ask := range []int{0, 1, 100, peer.MaxRejection} {
		_, err := r.try(peer.Refused, ask, 0)
		var refused *rdmacm.RejectedError
		r.want(errors.As(err, &refused), "the refusal is %v", err)
		r.want(errors.Is(err, syscall.ECONNREFUSED), "the refusal does not match ECONNREFUSED: %v", err)
		r.want(peer.HasPattern(refused.PrivateData, ask), "%d bytes of private data of a refusal are not those that the server sent", ask)
		r.want(r.iWARP() || refused.Reason == rdmacm.ReasonConsumer, "the reason of the refusal is %v", refused.Reason)
	}
	r.line(r.dial(peer.Echo, 0, 0)).echo(64, 1)
}

func unused(r *rig) {
	var at netip.AddrPort
	r.Scope(func() { at = r.service(peer.Unused, 0) })
	ctx, cancel := r.wait()
	defer cancel()
	conn, err := (&rdmacm.Dialer{LocalAddr: r.session.Local.String()}).Dial(ctx, at.String())
	if err == nil {
		r.Close(conn)
		r.Failf("a connection to a port on which no program listens is made")
	}
	r.want(errors.Is(err, syscall.ECONNREFUSED), "the error is %v", err)
	if !r.iWARP() {
		r.Case("no program listens", spec(rdmacm.ReasonNoListener.String()), ended(err))
	}
}

func addresses(r *rig) {
	foreign := netip.MustParseAddr("203.0.113.77") // for documentation, so no host should have it
	if r.session.Local.Is6() {
		foreign = netip.MustParseAddr("2001:db8:ffff::77")
	}
	r.Case("bind to another host's address", spec("EADDRNOTAVAIL", "ENODEV"), ended(r.hand().BindAddr(netip.AddrPortFrom(foreign, 0))))
	first := r.hand()
	r.ok(first.BindAddr(netip.AddrPortFrom(r.session.Local, 0)))
	r.want(first.LocalAddr().Addr() == r.session.Local && first.LocalAddr().Port() != 0, "an ID is bound to %v", first.LocalAddr())
	r.ok(first.Listen(1))
	r.Case("bind to a port in use", spec("EADDRINUSE"), ended(r.hand().BindAddr(first.LocalAddr())))
}

func ends(r *rig) {
	l := r.line(r.dial(peer.Ends, 0, 0))
	ctx, cancel := r.wait()
	defer cancel()
	r.ok(l.Send(ctx, l.out.Sub(0, 8)))
	_, err := l.Receive(ctx)
	r.want(errors.Is(err, syscall.ECONNRESET), "a receive when the other end has ended the connection: %v", err)
	r.ok(l.Wait(ctx))
	r.want(l.Send(ctx, l.out.Sub(0, 8)) != nil, "a message is sent although the other end has ended the connection")

	own := r.dial(peer.Echo, 0, 0)
	received := make(chan error, 1)
	go func() {
		_, err := own.Receive(context.WithoutCancel(ctx))
		received <- err
	}()
	r.ok(own.Close())
	select {
	case err = <-received:
		r.want(errors.Is(err, os.ErrClosed), "a receive when this end has closed the connection: %v", err)
	case <-ctx.Done():
		r.Failf("a receive waits although this end has closed the connection")
	}
}

func many(r *rig) {
	const n = 16
	ctx, cancel := r.wait()
	defer cancel()
	type made struct {
		conn *rdmacm.Conn
		err  error
	}
	all := make(chan made, n)
	for range n {
		go func() {
			conn, err := r.session.Dial(ctx, peer.Echo, 0, 0, rdmacm.Config{SendQueue: 1, RecvQueue: 1, MessageSize: 4096})
			all <- made{conn, err}
		}()
	}
	var conns []*rdmacm.Conn
	var errs []error
	for range n {
		m := <-all
		if m.err == nil {
			r.Close(m.conn)
			conns = append(conns, m.conn)
		}
		errs = append(errs, m.err)
	}
	r.ok(errors.Join(errs...))
	for i, conn := range conns {
		r.Scope(func() { r.line(conn).echo(2000, byte(i)) })
	}
}
