// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
)

// part returns what a pool holds for its connections. They must all be on one
// device.
func (p *Pool) part() *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, shared := range p.parts {
		return shared
	}
	return nil
}

// PostedReceives returns how many receives of a pool are posted, and how many
// should be.
func PostedReceives(p *Pool) (posted, want int) {
	s := &p.part().receives
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posted, s.want
}

// PoolConns returns how many connections use a pool.
func PoolConns(p *Pool) int {
	s := p.part()
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Waiting returns how many requests wait for Accept.
func Waiting(ln *Listener) int { return len(ln.requests) }

// HasPoller reports whether a goroutine waits for completions.
func HasPoller(c *Conn) bool { return c.ops.polling.Load() != unpolled || c.ops.hasParked.Load() }

// Inject hands a connection an event, as if it had come from C.
func Inject(c *Conn, ev *Event) { c.handle(ev) }

// WaitingDatagrams is like Waiting, for datagrams.
func WaitingDatagrams(ln *DatagramListener) int { return Waiting(ln.listener) }

// InjectDatagram is like Inject, for an end for datagrams.
func InjectDatagram(c *DatagramConn, ev *Event) { c.handle(ev) }

// KnownPaths returns how many address handles an end for datagrams keeps.
func KnownPaths(c *DatagramConn) int {
	c.handles.mu.Lock()
	defer c.handles.mu.Unlock()
	return len(c.handles.known)
}

// LimitPaths limits the address handles that an end keeps, apart from those in
// use.
func LimitPaths(c *DatagramConn, n int) { c.handles.limit = n }

// IBAddrRoundTrip gives an address to C and reads it back.
func IBAddrRoundTrip(a IBAddr) IBAddr { return ibAddr(a.sockaddr().ptr()) }

// Refusing returns how many requests wait to be refused.
func Refusing(ln *Listener) int {
	q := &ln.dispatcher.refusals
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Handlers returns how many ids have a handler on the dispatcher of all
// connections. The dispatcher must have a user.
func Handlers() int {
	shared.Lock()
	defer shared.Unlock()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	return len(shared.handlers)
}

// CheckPeer checks at once whether a connection's peer is there.
func CheckPeer(c *Conn) { c.checkPeer() }

// Sending returns how many send requests of a connection are under way.
func Sending(c *Conn) int { return c.ops.sending() }

// Completions returns how many operations of a connection have ended.
func Completions(c *Conn) uint64 { return c.ops.completions() }

// InFlight returns how many operations of a connection are under way, receives
// included.
func InFlight(c *Conn) int {
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	return len(c.ops.inFlight) - 1 - len(c.ops.places)
}

// WaitingForRoom returns how many goroutines wait for room in a connection's
// send queue.
func WaitingForRoom(c *Conn) int {
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	return len(c.ops.sends.waiting)
}

// HoldEvents keeps the events of an object's channel from being read until
// release is called, as C does while it works on an event.
func HoldEvents(of any) (release func()) {
	var id *ID
	switch of := of.(type) {
	case *Listener:
		id = of.id
	case *DatagramListener:
		id = of.listener.id
	case *ID:
		id = of
	}
	return id.lockChannel().Unlock
}

// HoldMove makes an ID's channel act as if the ID were moving, until release is
// called.
func HoldMove(id *ID) (release func()) { return id.channel.Load().hold(id) }

// FailureOf returns the error of a connection's send that has completed with
// wc.
func FailureOf(c *Conn, wc *ibverbs.WCError) error { return c.ops.failureOf(work{kind: sending}, wc) }

// HangUp does what a connection does when the peer has ended it.
func HangUp(c *Conn) { c.hangUp() }

// MayAbandon reports whether a connection will end requests that the device
// does not complete.
func MayAbandon(c *Conn) bool {
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	return c.patience != nil
}

// HoldCompletions takes completions of a connection as the poller does, at
// least one, and keeps them until release is called.
func HoldCompletions(ctx context.Context, c *Conn) (release func(), err error) {
	c.ops.takeOver()
	n, err := c.ops.cq.Wait(ctx, c.ops.wcs)
	return func() {
		c.ops.deliver(c.ops.wcs[:n])
		c.ops.endTurn()
	}, err
}

// Abandon ends the requests that the device has not completed.
func Abandon(c *Conn) { c.ops.abandon() }

// WantsPoller reports whether a goroutine waits to become the poller.
func WantsPoller(c *Conn) bool { return c.ops.wanting.Load() > 0 }
