// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// connInternals gives the package with C's rsocket functions what programs in C
// have and net.Conn lacks: calls that do not wait, and waiting for several
// connections and descriptors in one thread. See package sealed.
//
// A connection has no descriptor that becomes readable with it. A thread that
// wants to wait tries to take the pump with Hold. If it gets the pump, it calls
// Arm and waits for the descriptor of the pump in poll(2). Otherwise, another
// thread or goroutine takes the completions, and the function that was passed
// to NotifyOf is called. The connection must not belong to a pool.
type connInternals struct{ c *Conn }

// Internals gives other packages of this module access to the connection. Other
// modules cannot use the result.
func (c *Conn) Internals() sealed.Of[connInternals] { return sealed.Seal(connInternals{c}) }

// errWouldBlock is the error of calls that do not wait.
var errWouldBlock = fmt.Errorf("the call would block: %w", syscall.EAGAIN)

// TryRead reads what has arrived into the buffers, one after the other. If peek
// is true, the bytes remain unread. It fails with an error matching
// syscall.EAGAIN instead of waiting. The buffers must have room for a byte.
func (i connInternals) TryRead(to [][]byte, peek bool) (int, error) {
	c := i.c
	if err := c.reader.tryBegin(c.closed); err != nil {
		return 0, err
	}
	defer c.reader.end()
	offset, first, wrapped, err := c.tryNext()
	if errors.Is(err, syscall.EAGAIN) {
		c.pump.refresh()
		offset, first, wrapped, err = c.tryNext()
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, part := range [2][]byte{c.received[offset : offset+first], c.received[:wrapped]} {
		for len(part) > 0 && len(to) > 0 {
			k := copy(to[0], part)
			n, part, to[0] = n+k, part[k:], to[0][k:]
			if len(to[0]) == 0 {
				to = to[1:]
			}
		}
	}
	if !peek {
		c.consume(n)
	}
	return n, nil
}

// tryNext is like next(1), but does not wait.
func (c *Conn) tryNext() (offset, first, wrapped int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.readClosed:
		return 0, 0, 0, io.EOF
	case c.state.Unread() > 0:
		offset, first = c.state.Next()
		return offset, first, c.state.Unread() - first, nil
	case c.state.Ended() && !errors.Is(c.err, protocol.ErrViolation):
		return 0, 0, 0, io.EOF
	case c.err != nil:
		return 0, 0, 0, c.err
	}
	return 0, 0, 0, errWouldBlock
}

// TryWrite writes as many of the total bytes of the buffers as there is room
// for, and removes them from *v. It fails with an error matching syscall.EAGAIN
// instead of waiting for more room.
func (i connInternals) TryWrite(v *net.Buffers, total int) (int, error) {
	c := i.c
	if err := c.writer.tryBegin(c.closed); err != nil {
		return 0, err
	}
	defer c.writer.end()
	n, err := c.writeNext(v, total, false)
	if errors.Is(err, syscall.EAGAIN) {
		c.pump.refresh()
		var more int
		more, err = c.writeNext(v, total-n, false)
		n += more
	}
	return n, err
}

// readiness is what a program can do with a connection.
type readiness struct {
	Readable bool  // a read would not wait
	Unread   bool  // a read would return bytes
	Writable bool  // a write of any length would not wait
	Ended    bool  // a read would return the end of file after what has arrived
	HungUp   bool  // nothing can be sent, and nothing more arrives
	Err      error // why the connection has failed, or nil
}

// Readiness returns what the program can do now. If refresh is true, it takes
// completions before that, unless another call does so.
func (i connInternals) Readiness(refresh bool) readiness {
	c := i.c
	if refresh {
		c.pump.refresh()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := c.err != nil && !c.state.Disconnected() && !errors.Is(c.err, net.ErrClosed)
	r := readiness{
		Ended:  c.readClosed || c.state.Ended(),
		HungUp: c.err != nil || c.state.Disconnected() || (c.readClosed || c.state.Ended()) && c.writeClosed,
	}
	if failed {
		r.Err = c.err
	}
	r.Unread = c.state.Unread() > 0 && !c.readClosed
	r.Readable = r.Unread || r.Ended || c.err != nil
	r.Writable = c.writeClosed || r.HungUp || !c.isOver && c.state.Room(protocol.LongData) > 0
	return r
}

// NotifyOf makes the connection call changed when its readiness may have
// changed, and when the pump has become free after Hold has failed. changed
// must not block, and must not call the connection.
func (i connInternals) NotifyOf(changed func()) { i.c.onChange.Store(&changed) }

// changed calls the function that was passed to NotifyOf, if any.
func (c *Conn) changed() {
	if f := c.onChange.Load(); f != nil {
		(*f)()
	}
}

// Hold takes the pump if it is free, and reports whether it was. The caller
// must call Release soon after it was notified that the connection is closed.
func (i connInternals) Hold() bool {
	p := i.c.pump
	if fired(i.c.closed) {
		return false
	}
	if p.tryLock() {
		return true
	}
	p.wanted.Store(true)
	return p.tryLock() // the pump may have become free before the Store
}

// Release gives up the pump.
func (i connInternals) Release() { i.c.pump.unlock() }

// Descriptor returns a descriptor that becomes readable when completions have
// arrived since Arm. It fails, and returns -1, if the connection is closed, or
// if the process may open no more files. The caller holds the pump.
func (i connInternals) Descriptor() (int, error) {
	return sealed.Open(i.c.pump.cq.Internals()).Descriptor()
}

// Arm takes all completions and requests an event for the next one. The caller
// holds the pump.
func (i connInternals) Arm() {
	p := i.c.pump
	for {
		p.catchUp()
		n, err := sealed.Open(p.cq.Internals()).PollOrArm(p.wcs)
		if n == 0 && err == nil {
			return
		}
		p.pass(n, err)
		if err != nil {
			return
		}
	}
}

// TakeEvents takes the events that have made the descriptor readable. The
// caller holds the pump.
func (i connInternals) TakeEvents() { sealed.Open(i.c.pump.cq.Internals()).TakeEvents() }

// packetInternals gives the package with C's rsocket functions what programs in
// C have and net.PacketConn lacks.
type packetInternals struct{ c *PacketConn }

// Internals gives other packages of this module access to the PacketConn. Other
// modules cannot use the result.
func (c *PacketConn) Internals() sealed.Of[packetInternals] { return sealed.Seal(packetInternals{c}) }

// TryRead reads a datagram into the buffers, one after the other, and returns
// its whole length as size. If peek is true, the datagram remains unread. It
// fails with an error matching syscall.EAGAIN instead of waiting.
func (i packetInternals) TryRead(to [][]byte, peek bool) (n, size int, from netip.AddrPort, err error) {
	c := i.c
	if err := c.reader.tryBegin(c.closed); err != nil {
		return 0, 0, from, err
	}
	defer c.reader.end()
	return c.tryRead(to, peek)
}

// TryWrite sends the bytes of the buffers, which are total, as a datagram. It
// fails with an error matching syscall.EAGAIN instead of waiting for a datagram
// in flight.
func (i packetInternals) TryWrite(from [][]byte, total int, to netip.AddrPort) error {
	c := i.c
	if err := c.writer.tryBegin(c.closed); err != nil {
		return err
	}
	defer c.writer.end()
	return c.tryWrite(from, total, to)
}

// Readiness returns what the program can do now. If refresh is true, it takes
// completions before that.
func (i packetInternals) Readiness(refresh bool) readiness {
	c := i.c
	if refresh {
		c.refresh()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := readiness{Readable: len(c.unread) > 0 || c.err != nil, Unread: len(c.unread) > 0, Err: c.err}
	r.Writable = len(c.ports) == 0 || c.err != nil
	for _, p := range c.ports {
		r.Writable = r.Writable || len(p.free) > 0 || p.broken.Load()
	}
	return r
}

// NotifyOf makes the PacketConn call changed when its readiness may have
// changed. Between Watch and Unwatch, changed is called for what the device
// does, too. changed must not block, and must not call the PacketConn.
func (i packetInternals) NotifyOf(changed func()) { i.c.onChange.Store(&changed) }

// Watch makes goroutines take completions, until Unwatch.
func (i packetInternals) Watch() { i.c.watch() }

// Unwatch undoes a call of Watch.
func (i packetInternals) Unwatch() { i.c.unwatch() }

// Connect makes the address the only one whose datagrams are read. It returns
// the local address from which datagrams go there.
func (i packetInternals) Connect(to netip.AddrPort) (netip.Addr, error) {
	to, err := i.c.destination(to)
	if err != nil {
		return netip.Addr{}, err
	}
	peer, err := i.c.peer(to)
	if err != nil {
		return netip.Addr{}, err
	}
	i.c.mu.Lock()
	defer i.c.mu.Unlock()
	i.c.connected = to
	return peer.port.local, nil
}

// listenerInternals gives the package with C's rsocket functions what programs
// in C have and net.Listener lacks.
type listenerInternals struct{ ln *Listener }

// Internals gives other packages of this module access to the listener. Other
// modules cannot use the result.
func (ln *Listener) Internals() sealed.Of[listenerInternals] {
	return sealed.Seal(listenerInternals{ln})
}

// SetConfig sets the Config of the connections whose handshake has not begun.
func (i listenerInternals) SetConfig(c Config) { i.ln.setConfig(c) }

// configInternals gives the package with C's rsocket functions what a Config
// stands for.
type configInternals struct{ config Config }

// Internals gives other packages of this module access to the Config. Other
// modules cannot use the result.
func (c Config) Internals() sealed.Of[configInternals] { return sealed.Seal(configInternals{c}) }

// WithIOMaps returns the Config for connections whose peers can each announce a
// number of parts of their memory for direct writes. It also returns that
// number, which is n or slightly less.
func (i configInternals) WithIOMaps(n int) (Config, int) {
	i.config.ioMaps = protocol.IOMaps(n)
	return i.config, i.config.ioMaps
}

// Complete returns the Config with all defaults filled in.
func (i configInternals) Complete() Config { return i.config.complete() }
