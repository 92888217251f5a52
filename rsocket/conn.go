// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/turns"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Conn is a connection. It is a net.Conn. Like a *net.TCPConn, it can close
// each direction separately. Its methods may be called concurrently.
//
// Errors are *net.OpErrors, except for io.EOF, and match
//
//   - os.ErrDeadlineExceeded when a deadline has passed,
//   - net.ErrClosed after Close,
//   - syscall.EPIPE for a Write after CloseWrite,
//   - syscall.ECONNRESET when the peer has closed the connection (Write only),
//     or has ended without closing it, or when the listener has ended the
//     handshake although Dial has returned; then also rdmacm.ErrBacklogFull if
//     that was to make room for another and the device is that of package
//     softroce,
//   - syscall.ETIMEDOUT when the peer's device no longer answers,
//   - syscall.EPROTO when the peer has violated the protocol.
type Conn struct {
	config        Config
	accepted      bool // whether the peer has dialed
	local, remote Addr
	rdma          *rdmacm.Conn
	queues
	memory

	closed   chan struct{}          // closed when Close begins
	reader   side                   // used by calls that read
	writer   side                   // used by calls that write
	closer   side                   // used by CloseRead, CloseWrite and Close; has no deadline
	pump     *pump                  // pump of the connection itself, or of its part of a pool
	part     *part                  // part of the pool with the shared resources; nil: no pool
	direct   direct                 // memory of ReadFrom
	onChange atomic.Pointer[func()] // what is called after changes; see NotifyOf
	ioMaps   ioMaps                 // memory to which the peer writes directly
	scratch  []byte                 // bytes that Peek returns; used by the call that reads

	mu          sync.Mutex // guards the fields below, and posting
	state       *protocol.State
	err         error         // reason why calls fail; data that arrived before can still be read
	over        error         // reason that rdmacm reported for the connection's end; earlier completions may still be in the queue
	isOver      bool          // whether rdmacm has reported the end
	readClosed  bool          // whether CloseRead was called
	writeClosed bool          // whether CloseWrite was called
	aborts      bool          // whether the peer has broken the protocol and is to be disconnected
	awaitsCause bool          // whether requests were flushed before rdmacm gave the reason
	ready       bool          // whether prepare has succeeded
	connected   bool          // whether establish was called
	early       []ibverbs.WC  // completions that were taken before establish was called
	earlyGot    []message     // what those that are receives have received
	filling     bool          // whether a Write is copying to the send buffer
	released    bool          // whether Close has released the memory, which calls in progress may still use
	linger      time.Duration // longest time for which Close waits

	keepAlive  keepAlive
	announcing sync.Once // guards the part of Close that announces the end to the peer
	freeing    sync.Once // guards the part of Close that frees resources and sets closeErr
	closeErr   error
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// newConn returns a connection without resources, which prepare creates.
func newConn(config Config) *Conn {
	c := &Conn{
		config: config, closed: make(chan struct{}), linger: DefaultLinger,
	}
	c.direct.lock = make(chan struct{}, 1)
	c.reader.init()
	c.writer.init()
	c.closer.init()
	c.reader.deadline.init(c.wake)
	c.writer.deadline.init(c.wake)
	return c
}

// wake wakes the goroutine that waits for completions, which then checks all
// conditions.
func (c *Conn) wake() { c.pump.wake() }

// establish completes the connection after the handshake. peer is the peer's
// Hello.
func (c *Conn) establish(rdma *rdmacm.Conn, peer protocol.Hello) {
	c.mu.Lock()
	c.rdma, c.local, c.remote = rdma, Addr{rdma.LocalAddr()}, Addr{rdma.RemoteAddr()}
	c.state.Connect(peer)
	c.connected = true
	if early, got := c.early, c.earlyGot; len(early) > 0 {
		c.early, c.earlyGot = nil, nil
		c.take(early, got)
	}
	c.post(c.state.Update())
	c.unlock()
	c.keepAlive.start(c.config.KeepAlive, c.checkPeer)
}

// ended records that rdmacm has reported the end of the connection, with the
// reason.
func (c *Conn) ended(cause error) {
	c.mu.Lock()
	c.over, c.isOver = cause, true
	ready := c.ready
	c.mu.Unlock()
	c.signalAll()
	if ready && (c.part == nil || c.part.has(c)) {
		c.pump.afterTaken(c.finish)
	}
}

// finish fails a connection whose end rdmacm has reported. All completions from
// before the end must have been taken.
func (c *Conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Disconnected() {
		c.fail(errReset)
	} else {
		c.fail(endedBy(c.over))
	}
}

// fail makes calls of the connection fail with err, unless they fail already.
// The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.wakeAll() // the goroutine that holds the pump may be waiting for this connection
}

// signalAll makes the calls that use the connection check their conditions.
func (c *Conn) signalAll() {
	c.reader.signal()
	c.writer.signal()
	c.closer.signal()
	c.changed()
}

// wakeAll makes all waiting calls check their conditions, including the one
// that waits for completions.
func (c *Conn) wakeAll() {
	c.signalAll()
	c.wake()
}

// check returns an error if c is nil or was not made by this package.
func (c *Conn) check() error {
	if c == nil || c.closed == nil {
		return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the Conn is nil, or was not made by this package"))
	}
	return nil
}

// LocalAddr returns the local address, of type Addr.
func (c *Conn) LocalAddr() net.Addr {
	if c == nil {
		return Addr{}
	}
	return c.local
}

// RemoteAddr returns the peer's address, of type Addr.
func (c *Conn) RemoteAddr() net.Addr {
	if c == nil {
		return Addr{}
	}
	return c.remote
}

// SetDeadline sets the read and write deadlines. See SetReadDeadline and
// SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the time at which calls that read fail, including calls
// in progress. The zero time means that there is no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the time at which calls that write fail, including
// calls in progress. The zero time means that there is no deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// setDeadlines sets the deadlines of the selected directions.
func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	if err := c.open("set"); err != nil {
		return err
	}
	if read {
		c.reader.deadline.set(t)
	}
	if write {
		c.writer.deadline.set(t)
	}
	return nil
}

// open returns an error of the operation op if the connection is closed.
func (c *Conn) open(op string) error {
	if err := c.check(); err != nil {
		return err
	}
	if fired(c.closed) {
		return c.opError(op, net.ErrClosed)
	}
	return nil
}

// CloseRead makes calls that read return io.EOF. The peer does not learn of it:
// its writes block once this end's ReadBuffer is full.
func (c *Conn) CloseRead() error {
	return c.closeOne(func() { c.readClosed = true }, (*protocol.State).CloseRead)
}

// CloseWrite ends writing. The peer reads the end of file after all data that
// was written, and can still write. A Write in progress fails with an error
// matching syscall.EPIPE. CloseWrite ignores deadlines. It may wait for the
// peer's device, but not for its program. On iWARP, an end that has accepted
// the connection also waits for a first message of the peer, which a peer with
// this package sends right after the handshake.
func (c *Conn) CloseWrite() error {
	return c.closeOne(func() { c.writeClosed = true }, (*protocol.State).CloseWrite)
}

// closeOne closes one direction. note records that it is closed, and say
// returns the control message that announces it.
func (c *Conn) closeOne(note func(), say func(*protocol.State) (protocol.Post, bool)) error {
	if err := c.open("close"); err != nil {
		return err
	}
	c.mu.Lock()
	note() // makes the call that uses the direction return
	c.mu.Unlock()
	c.wakeAll()
	if err := c.begin(&c.closer); err != nil {
		return c.opError("close", err)
	}
	defer c.closer.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.isOver && !c.state.HasControl() && !c.state.Disconnected() {
		if err := c.wait(&c.closer); err != nil {
			return c.opError("close", err)
		}
	}
	if c.err == nil && !c.isOver {
		c.post(say(c.state))
	}
	return nil
}

// SetLinger sets the number of seconds for which Close waits until the data
// that was written has arrived. With 0, Close discards the data, and the peer's
// Read fails with an error matching syscall.ECONNRESET. A negative value
// restores DefaultLinger.
func (c *Conn) SetLinger(sec int) error {
	if err := c.open("set"); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = time.Duration(min(int64(sec), int64(math.MaxInt64/time.Second))) * time.Second
	if sec < 0 {
		c.linger = DefaultLinger
	}
	return nil
}

// DefaultLinger is the time for which Close waits if SetLinger was not called.
const DefaultLinger = 5 * time.Second

// Close closes both directions. The peer reads the end of file after all data
// that was written. Close ignores deadlines. It blocks until the peer's device
// has all data, for the time set by SetLinger at most. Reads and Writes in
// progress fail with an error matching net.ErrClosed. Further calls of Close
// have no effect.
func (c *Conn) Close() error {
	if err := c.check(); err != nil {
		return err
	}
	c.announcing.Do(func() {
		close(c.closed)
		c.keepAlive.stop()
		c.wakeAll()
		c.closer.lock <- struct{}{} // never released, so that no later call uses c.closer
		c.sayEnd()
		c.ioMaps.close()
		c.mu.Lock() // no goroutine is posting
		if c.err == nil {
			c.err = net.ErrClosed
		}
		c.mu.Unlock()
	})
	err := c.rdma.Close() // may call the logger's handler, which may call Close again
	if c.part != nil && errors.Is(err, syscall.EBUSY) {
		sealed.Open(c.rdma.Internals()).AwaitFlushed() // another Close is in takeLast
		err = c.rdma.Close()
	}
	c.freeing.Do(func() {
		c.closeErr = c.opError("close", errors.Join(err, c.free()))
		c.reader.deadline.set(time.Time{}) // a running timer would keep the Conn's memory alive
		c.writer.deadline.set(time.Time{})
	})
	return c.closeErr
}

// sayEnd announces the end to the peer, and waits until the peer's device has
// all data or the linger time is over. The caller has locked c.closer.
func (c *Conn) sayEnd() {
	c.mu.Lock()
	linger := c.linger
	c.mu.Unlock()
	if linger == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	c.pump.await(ctx, c, c.announceEnd)
}

// announceEnd sends the last control message if it can. It returns true when
// nothing is left to wait for.
func (c *Conn) announceEnd() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.isOver || c.state.Gone() {
		return true
	}
	if !c.state.Disconnected() && !c.state.HasControl() {
		return false
	}
	c.post(c.state.Disconnect())
	return c.state.Idle() || c.err != nil
}

// lastPatience limits the time for which takeLast waits for the device to flush
// requests.
const lastPatience = 5 * time.Second

// takeLast takes the last completions of the queue pair before it is destroyed.
// It is needed only with a pool, whose completion queue other connections still
// use.
func (c *Conn) takeLast() {
	if c.part == nil || !c.ready {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastPatience)
	defer cancel()
	c.pump.await(ctx, c, func() bool {
		if c.part.hasFailed() {
			return true
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.inFlight == 0
	})
	c.pump.takeAll()
}

// free frees the resources that do not belong to the rdmacm.Conn. The
// rdmacm.Conn must have been closed, or not have been created.
func (c *Conn) free() error {
	if c.pump == nil { // the connection never got a device
		return nil
	}
	defer turns.Begin()()
	if c.part == nil {
		c.giveMemory()
		return c.pump.close()
	}
	var err error
	if c.region != nil {
		err = c.region.Close()
		c.giveMemory()
	}
	if c.qp != nil {
		c.part.remove(c)
	}
	c.mu.Lock()
	c.released = true
	c.giveBack()
	inFlight := c.inFlight
	c.mu.Unlock()
	return errors.Join(err, c.part.leave(&c.config, inFlight))
}

// giveMemory lets another connection use the memory of this one, unless its
// region could not be closed, so that the peer may still write there, or a call
// or the program may still use it. Keys of closed regions do not open the
// region that the memory gets next.
func (c *Conn) giveMemory() {
	if c.region == nil || c.region.Bytes() != nil || !c.reader.retire() || !c.writer.retire() || c.lent {
		return
	}
	c.mu.Lock()
	c.table = make([]byte, len(c.table)) // for messages whose completions come late
	c.received = nil
	if c.part == nil {
		c.sending = nil
	}
	c.mu.Unlock()
	c.layout.give(c.bytes)
	c.bytes = nil
}

// giveBack returns memory to the pool, unless a request or a call uses it. The
// caller holds c.mu.
func (c *Conn) giveBack() {
	if c.part == nil {
		return
	}
	if c.slab != nil && !c.filling && (c.released || c.state.Buffered() == 0) {
		c.part.memory.give(c.slab)
		c.slab, c.sending = nil, nil
	}
	if d := &c.direct; d.slab != nil && !d.inUse && (c.released || d.pending == [chunks]int{}) {
		c.part.memory.give(d.slab)
		d.slab, d.memory = nil, nil
	}
}
