// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

const (
	sendQueue = 1024
	recvQueue = 1024 // as many as the server has: its writes take receives, too
	// unconfirmed is the maximum number of requests of which the server has not
	// confirmed that it has taken them. It is well below the server's number of
	// receives. Twice as many fit sendQueue: the server may confirm what it has
	// not taken, but only once until its device has the question. So posting
	// never has to wait.
	unconfirmed = 384
	// linger is how long Close waits for the server's device to have everything
	// that was written.
	linger = time.Second
)

// The control messages of a connection, in its memory for them.
const (
	sayGet = iota // asks for the server's features
	saySet
	sayAlive
	sayFirst  // offers the first window
	saySecond // offers the second window
	sayings
)

// Conn is a connection to a Valkey server. It is a net.Conn, whose methods may
// be called concurrently.
//
// Errors are *net.OpErrors, except for io.EOF when the server has closed the
// connection or was killed. They match os.ErrDeadlineExceeded when a deadline
// has passed, net.ErrClosed after Close, and syscall.ECONNRESET for a Write
// after the server has closed the connection.
type Conn struct {
	window   int // size of a window, in bytes
	rdma     *rdmacm.Conn
	messages *rdmacm.Receiver
	ring     []byte      // the two windows; stays valid when the connection has ended
	control  *ibverbs.MR // the control messages
	staging  staging

	ctx     context.Context // ended by Close
	end     context.CancelCauseFunc
	reads   deadline
	writes  deadline
	closing sync.Once

	reading  sync.Mutex    // held by Read
	readable chan struct{} // has a value after bytes have arrived
	writing  sync.Mutex    // held by Write
	writable chan struct{} // has a value after there may be room to write

	posting sync.Mutex // guards batch
	batch   *ibverbs.SendBatch
	// The last question for the server's features, and the last offer of each
	// window. None is posted again before the server's device has it, whatever
	// the server says.
	question rdmacm.Transfer
	offers   [2]rdmacm.Transfer

	over  chan struct{} // closed when the connection has ended, and err is set
	err   error
	gone  chan struct{} // closed when the goroutine that receives has ended
	ready chan struct{} // has a value when the server has answered the first messages

	mu sync.Mutex // guards the fields below
	// Positions in the stream of bytes that arrive. That at p is in byte
	// p % (2*window) of the ring.
	arrived  uint64 // end of what has arrived
	taken    uint64 // end of what was read
	offered  uint64 // end of the windows that were offered
	offering bool   // whether a call of offer offers the next one
	// The server's window.
	peer    ibverbs.RemoteBuffer
	written uint64 // bytes in it
	// Requests, counted from the start of the connection.
	posted    uint64 // those of Write
	confirmed uint64 // those of them that the server has taken for sure
	asking    bool   // whether the server has been asked for its features, and has not answered
	asked     uint64 // posted when it was
}

var _ net.Conn = (*Conn)(nil)

func newConn(window int) *Conn {
	c := &Conn{
		window: window, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		over: make(chan struct{}), gone: make(chan struct{}), ready: make(chan struct{}, 1),
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.reads.init(c.ctx)
	c.writes.init(c.ctx)
	return c
}

// setup prepares the connection before the server can send.
func (c *Conn) setup(rdma *rdmacm.Conn) (err error) {
	if c.batch, err = ibverbs.NewSendBatch(1, 1); err != nil {
		return err
	}
	ring, err := rdma.Alloc(2*c.window, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	c.ring = ring.Bytes()
	if c.control, err = rdma.Alloc(sayings*messageSize, 0); err != nil {
		return err
	}
	if c.staging.mr, err = rdma.Alloc(2*half, 0); err != nil {
		return err
	}
	first, second := ring.Remote(), ring.Remote()
	first.Len, second.Len = uint64(c.window), uint64(c.window)
	second.Addr += uint64(c.window)
	for i, m := range [sayings]message{
		sayGet:    {opcode: getServerFeature},
		saySet:    {opcode: setClientFeature},
		sayAlive:  {opcode: keepalive},
		sayFirst:  {opcode: registerXferMemory, window: first},
		saySecond: {opcode: registerXferMemory, window: second},
	} {
		m.encode(c.control.Bytes()[i*messageSize:])
	}
	c.messages, err = rdma.NewReceiver(messageSize)
	return err
}

// start begins to receive, and waits until the server has said where to write.
// If it fails, the caller closes the connection.
func (c *Conn) start(ctx context.Context, rdma *rdmacm.Conn) error {
	c.rdma, c.asking = rdma, true
	go c.receive()
	err := cmp.Or(c.say(sayGet, &c.question), c.say(saySet, nil), c.offer(ctx))
	if err != nil {
		return fmt.Errorf("the server has ended the handshake: %w", c.reason(err))
	}
	select {
	case <-c.ready:
		return nil
	case <-c.over:
		return fmt.Errorf("the server has ended the handshake: %w", c.err)
	case <-ctx.Done():
		return fmt.Errorf("the server does not answer as Valkey does: %w", ctx.Err())
	}
}

// receive takes what arrives until the connection ends.
func (c *Conn) receive() {
	defer close(c.gone)
	for {
		m, err := c.messages.Next(context.Background())
		if err == nil {
			err = c.take(m)
		}
		if err != nil {
			c.err = err
			close(c.over)      // before requests fail because of what follows
			_ = c.rdma.Close() // Close reports its error
			return
		}
	}
}

// take acts on a message, or on the server's write to the window.
func (c *Conn) take(m *rdmacm.Message) error {
	if _, ok := m.Written(); ok {
		n, _ := m.Imm()
		return c.arrive(uint64(n))
	}
	said, err := parse(m.Data)
	if err != nil {
		return fmt.Errorf("%w: the server has sent %w", syscall.EPROTO, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch said.opcode {
	case getServerFeature:
		if !c.asking {
			return fmt.Errorf("%w: the server has sent its features without being asked", syscall.EPROTO)
		}
		c.confirmed, c.asking = c.asked, false
	case registerXferMemory:
		if c.written != c.peer.Len {
			return fmt.Errorf("%w: the server has offered a window when %d bytes of the last one were free", syscall.EPROTO, c.peer.Len-c.written)
		}
		c.peer, c.written = said.window, 0
	default:
		return nil
	}
	if !c.asking && c.peer.Len > 0 {
		signal(c.ready)
	}
	signal(c.writable)
	return nil
}

// arrive notes that the server has written n bytes.
func (c *Conn) arrive(n uint64) error {
	c.mu.Lock()
	if room := c.offered - c.arrived; n > room {
		c.mu.Unlock()
		return fmt.Errorf("%w: the server has written %d bytes where there was room for %d", syscall.EPROTO, n, room)
	}
	c.arrived += n
	c.mu.Unlock()
	signal(c.readable)
	return c.offer(c.ctx)
}

// offer offers the next window if the last one is full and the next one free.
// If ctx ends first, a later call does. One call at a time offers, until the
// offer is posted: a server that writes before it has the offer would otherwise
// bring about the next offer, which could overtake that one.
func (c *Conn) offer(ctx context.Context) error {
	for {
		next, posted, ok := c.beginOffer()
		if !ok {
			return nil
		}
		var err error
		if posted {
			err = c.offers[next].Wait(ctx) // the server has filled the window and the other one since
		}
		if err == nil {
			c.mu.Lock()
			c.offered += uint64(c.window)
			c.mu.Unlock()
			err = c.say(sayFirst+next, &c.offers[next])
		}
		c.mu.Lock()
		c.offering = false
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// beginOffer returns which window to offer, and whether it was offered before.
// It reports false if none can be offered, or another call is about to.
func (c *Conn) beginOffer() (next int, posted, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	window := uint64(c.window)
	if c.offering || c.arrived < c.offered || c.offered-c.taken > window {
		return 0, false, false
	}
	c.offering = true
	return int(c.offered / window % 2), c.offered >= 2*window, true
}

// Read reads bytes that have arrived. If there are none, it waits.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		ctx := c.reads.context()
		if err := context.Cause(ctx); err != nil {
			return 0, c.opError("read", err)
		}
		if n := c.copyOut(ctx, p); n > 0 || len(p) == 0 {
			return n, nil
		}
		select {
		case <-c.readable:
		case <-ctx.Done():
		case <-c.over:
			if n := c.copyOut(ctx, p); n > 0 { // it arrived before the end
				return n, nil
			}
			if errors.Is(c.err, syscall.ECONNRESET) {
				return 0, io.EOF
			}
			return 0, c.opError("read", c.err)
		}
	}
}

// copyOut copies bytes that have arrived to p, and returns how many. It offers
// the next window if need be.
func (c *Conn) copyOut(ctx context.Context, p []byte) int {
	c.mu.Lock()
	from, n := c.taken, min(int(c.arrived-c.taken), len(p))
	c.mu.Unlock()
	at := int(from % uint64(len(c.ring)))
	copied := copy(p[:n], c.ring[at:])
	copy(p[copied:n], c.ring)
	c.mu.Lock()
	c.taken += uint64(n)
	c.mu.Unlock()
	_ = c.offer(ctx) // if it fails, ctx or the connection has ended, and the next call offers or fails
	return n
}

// Write sends p. It returns when all bytes are on their way, which may be
// before the server's device has them.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := context.Cause(c.writes.context()); err != nil {
		return 0, c.opError("write", err)
	}
	for n < len(p) {
		sent, err := c.write(p[n:])
		n += sent
		if err != nil {
			return n, c.opError("write", err)
		}
	}
	return n, nil
}

// write sends the first bytes of p by one RDMA write, and returns how many.
func (c *Conn) write(p []byte) (int, error) {
	ctx := c.writes.context()
	n, err := c.staging.room(ctx)
	if err != nil {
		return 0, cmp.Or(context.Cause(ctx), err)
	}
	to, err := c.reserve(ctx, min(n, len(p)))
	if err != nil {
		return 0, err
	}
	from, t := c.staging.add(p[:to.Len])
	if err := c.post(t, func() error { return c.batch.WriteImm(0, to, uint32(to.Len), 0, from) }); err != nil {
		return 0, err
	}
	return int(to.Len), nil
}

// reserve waits for room at the server and takes up to n bytes of it.
func (c *Conn) reserve(ctx context.Context, n int) (ibverbs.RemoteBuffer, error) {
	for mayAsk := false; ; {
		if err := context.Cause(ctx); err != nil {
			return ibverbs.RemoteBuffer{}, err
		}
		c.mu.Lock()
		free := c.peer.Len - c.written
		waiting := c.posted - c.confirmed
		ask := !c.asking && waiting >= unconfirmed/2
		if ask && !mayAsk {
			c.mu.Unlock()
			if err := c.question.Wait(ctx); err != nil {
				return ibverbs.RemoteBuffer{}, cmp.Or(context.Cause(ctx), err)
			}
			mayAsk = true
			continue
		}
		if free > 0 && waiting < unconfirmed {
			to := c.peer.Sub(c.written, min(free, uint64(n)))
			c.written += to.Len
			if ask {
				c.asking, c.asked = true, c.posted
				c.posted++ // the question
			}
			c.posted++
			c.mu.Unlock()
			if ask {
				return to, c.say(sayGet, &c.question)
			}
			return to, nil
		}
		c.mu.Unlock()
		select {
		case <-c.writable:
		case <-ctx.Done():
		case <-c.over:
			return ibverbs.RemoteBuffer{}, c.err
		}
	}
}

// say sends a control message. t is as for rdmacm.Conn.Post.
func (c *Conn) say(i int, t *rdmacm.Transfer) error {
	return c.post(t, func() error { return c.batch.Send(0, 0, c.control.Sub(i*messageSize, messageSize)) })
}

// post posts the request that add adds to the batch. There is always room for
// it.
func (c *Conn) post(t *rdmacm.Transfer, add func() error) error {
	c.posting.Lock()
	defer c.posting.Unlock()
	c.batch.Reset()
	if err := add(); err != nil {
		return err
	}
	return c.rdma.Post(context.Background(), t, c.batch)
}

// Close closes the connection. Calls in progress fail. Close waits up to a
// second until the server's device has everything that was written.
func (c *Conn) Close() error {
	err := c.opError("close", net.ErrClosed)
	c.closing.Do(func() {
		err = nil
		c.end(net.ErrClosed)
		c.flush()
		if closeErr := c.rdma.Close(); closeErr != nil {
			err = c.opError("close", closeErr)
		}
		<-c.gone
	})
	return err
}

// flush waits until the server's device has everything that was written.
func (c *Conn) flush() {
	var last rdmacm.Transfer
	if c.say(sayAlive, &last) != nil {
		return // the connection has ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	_ = last.Wait(ctx)
}

// opError returns the error of an operation as package net has them.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: c.reason(err)}
}

// reason returns why the connection has ended, if it has before Close. That
// says more than err, the error of a single request.
func (c *Conn) reason(err error) error {
	select {
	case <-c.over:
		if c.ctx.Err() == nil {
			return c.err
		}
	default:
	}
	return err
}

// LocalAddr returns the local address, a *net.TCPAddr.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.rdma.LocalAddr()) }

// RemoteAddr returns the server's address, a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.rdma.RemoteAddr()) }

// SetDeadline sets the read and write deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.reads, &c.writes) }

// SetReadDeadline sets the time at which Read fails, also a call in progress.
// The zero time means that there is no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.reads) }

// SetWriteDeadline sets the time at which Write fails, also a call in progress.
// The zero time means that there is no deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writes) }

func (c *Conn) setDeadlines(t time.Time, deadlines ...*deadline) error {
	if c.ctx.Err() != nil {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range deadlines {
		d.set(t)
	}
	return nil
}

// signal makes sure that the channel has a value.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
