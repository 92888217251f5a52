// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
)

// A Receiver receives messages, and keeps Config.RecvQueue receives posted for
// later ones, even while the caller processes a message. Only one goroutine may
// use it, and no other call may receive on the same connection.
type Receiver struct {
	post    func(r *Receive, segments []ibverbs.Segment) (*Receive, error)
	posted  []slot // slots in the order in which they take messages
	next    int    // index of the slot that takes the next message
	spare   slot   // slot of the message that the caller has
	message Message
}

// slot is a receive with its memory.
type slot struct {
	memory  []ibverbs.Segment // one segment; none if the Receiver's size is 0
	receive *Receive
	err     error // reason why the receive could not be posted, or nil
}

// A Message is a message that a Receiver has received. The message and its
// bytes are valid until the next message is received.
type Message struct {
	Data    []byte // bytes in the Receiver's memory; empty for WriteImm, which writes to other memory
	receive *Receive
}

// NewReceiver posts Config.RecvQueue receives of size bytes and returns a
// Receiver for their messages. Call it in Setup, before the peer can send. If
// Config.MessageSize is set, the connection already has a Receiver, for
// Conn.Receive. The connection's Close releases the memory.
//
// Messages without a posted receive wait at the peer, as
// Config.PeerRNRRetryCount describes. A size of 0 is enough for messages that
// carry only immediate data, such as those of WriteImm.
func (c *Conn) NewReceiver(size int) (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, cerr.Refuse("Conn.NewReceiver", c.name(), "size is %d, not from 0 to %d", size, uint32(math.MaxUint32))
	}
	if int64(size) > math.MaxUint32 {
		return nil, cerr.Refuse("Conn.NewReceiver", c.name(), "size is %d, not from 0 to %d", size, uint32(math.MaxUint32))
	}
	return c.ops.intake.newReceiver(size)
}

// NewReceiver posts DatagramConfig.RecvQueue receives of MTU bytes and returns
// a Receiver for their datagrams. Call it in Setup, before any peer can send.
func (c *DatagramConn) NewReceiver() (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	return c.newReceiver(c.mtu, c.post)
}

func (c *queues) newReceiver(size int, post func(*Receive, []ibverbs.Segment) (*Receive, error)) (*Receiver, error) {
	c.ops.mu.Lock()
	err := c.ops.over()
	if err == nil {
		err = c.ops.postedNone()
	}
	c.ops.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r := &Receiver{post: post, posted: make([]slot, c.ops.recvs.size)}
	pieces := make([][]ibverbs.Segment, len(r.posted)+1) // one more for the caller's message
	if size > 0 {
		memory, err := c.alloc(len(pieces)*size, ibverbs.AccessLocalWrite, mem.Pages)
		if err != nil {
			return nil, err
		}
		for i := range pieces {
			pieces[i] = []ibverbs.Segment{memory.Sub(i*size, size)}
		}
	}
	for i := range r.posted {
		s := &r.posted[i]
		s.memory = pieces[i]
		if s.receive, s.err = post(nil, s.memory); s.err != nil {
			return nil, s.err
		}
	}
	r.spare.memory = pieces[len(r.posted)]
	return r, nil
}

// newReceiver returns a Receiver with one receive, as further messages wait in
// the pool. The connection may have ended, because the pool may still have
// messages that arrived before.
func (o *pooled) newReceiver(size int) (*Receiver, error) {
	o.ops.mu.Lock()
	err := o.ops.postedNone()
	o.ops.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := canHave(2 * size); err != nil {
		return nil, fmt.Errorf("%s: allocate a receiver of %d bytes: %w", o.ops.queues.name(), size, err)
	}
	r := &Receiver{post: o.ops.postOwn, posted: make([]slot, 1)}
	r.posted[0].memory = []ibverbs.Segment{ibverbs.InlineBytes(make([]byte, size))}
	r.spare.memory = []ibverbs.Segment{ibverbs.InlineBytes(make([]byte, size))}
	s := &r.posted[0]
	if s.receive, s.err = r.post(nil, s.memory); s.err != nil {
		return nil, s.err
	}
	return r, nil
}

// Next waits for a message, and posts a new receive in place of the one that
// took the message. It invalidates the previous message. If ctx ends first, the
// error matches ctx.Err(), no message is lost, and Next can be called again. If
// ctx has already ended, Next may return that error even if a message has
// arrived.
//
// When the peer has closed the connection and all messages have been received,
// the error matches syscall.ECONNRESET. Conn.Err and DatagramConn.Err describe
// the other errors.
func (r *Receiver) Next(ctx context.Context) (*Message, error) {
	if r == nil || r.post == nil {
		return nil, notMade("Receiver")
	}
	s := &r.posted[r.next]
	if s.err != nil {
		return nil, s.err
	}
	n, err := s.receive.Wait(ctx)
	if err == nil {
		err = s.receive.ops.isReleased()
	}
	if err != nil {
		return nil, err
	}
	m := &r.message
	*m = Message{receive: s.receive}
	if len(s.memory) > 0 {
		b := s.memory[0].Bytes()
		if b == nil { // Close has released the memory with the message
			return nil, s.receive.ops.queues.errClosed()
		}
		m.Data = b[:n:n]
	}
	*s, r.spare = r.spare, *s
	// If post fails, the connection is over, but the other receives may
	// still have messages.
	s.receive, s.err = r.post(s.receive, s.memory)
	r.next = (r.next + 1) % len(r.posted)
	return m, nil
}

// Messages returns an iterator over the results of Next. It stops after the
// first error. If the peer has closed the connection and all messages have been
// received, it stops without an error. Each message is valid until the next
// one.
func (r *Receiver) Messages(ctx context.Context) iter.Seq2[*Message, error] {
	return messagesOf(func() (*Message, error) { return r.Next(ctx) })
}

func messagesOf(next func() (*Message, error)) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for {
			m, err := next()
			if errors.Is(err, syscall.ECONNRESET) {
				return
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// Receive waits for a message of at most Config.MessageSize bytes, like
// Receiver.Next on the Receiver that Config.MessageSize gives the connection.
// Receive fails if Config.MessageSize is 0. The message is valid until the next
// call. While a call waits, other calls fail with an error matching
// syscall.EBUSY.
func (c *Conn) Receive(ctx context.Context) (*Message, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	if c.receiver == nil {
		return nil, cerr.Refuse("Conn.Receive", c.name(), "Config.MessageSize is 0: set it, or call Conn.NewReceiver in Config.Setup")
	}
	if c.receiving.Swap(true) {
		return nil, cerr.Argument("Conn.Receive", c.name(), cerr.InvalidAs(syscall.EBUSY, "another goroutine is receiving"))
	}
	defer c.receiving.Store(false)
	return c.receiver.Next(ctx)
}

// Messages returns an iterator over the results of Receive. It stops as the
// iterator of Receiver.Messages does.
func (c *Conn) Messages(ctx context.Context) iter.Seq2[*Message, error] {
	return messagesOf(func() (*Message, error) { return c.Receive(ctx) })
}

// Imm returns the message's immediate data and whether the message has any.
func (m *Message) Imm() (uint32, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.Imm()
}

// Written returns the number of bytes that the peer wrote with WriteImm, and
// whether the message came from WriteImm; see Receive.Written.
func (m *Message) Written() (int, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.Written()
}

// InvalidatedRKey returns the remote key of this end's memory that the message
// invalidated, and whether it invalidated one.
func (m *Message) InvalidatedRKey() (uint32, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.InvalidatedRKey()
}

// Sender returns the sender of a datagram, for use with SendTo; see
// Receive.Sender. It fails for a message of a Conn.
func (m *Message) Sender() (Peer, error) {
	if m == nil || m.receive == nil {
		return Peer{}, errNoReceive("Message.Sender")
	}
	return m.receive.Sender()
}
