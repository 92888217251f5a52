package rdmacm

import (
	"context"
	"fmt"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Receiver takes messages, and keeps receives posted for those to come: while
// the caller has a message, as many as before. It is for one goroutine, and for
// ends on which nobody else receives.
type Receiver struct {
	post   func(...ibverbs.Segment) (*Receive, error)
	posted []slot // in the order in which they take messages
	next   int    // the one that takes the next message
	spare  []ibverbs.Segment
}

// slot is a receive with its memory.
type slot struct {
	memory  []ibverbs.Segment // one, or none
	receive *Receive
	err     error // why it could not be posted
}

// Message is one that a Receiver has taken. It is valid until the next call of
// Next, and so are its bytes.
type Message struct {
	Data    []byte // in the receiver's memory; empty for WriteImm, whose bytes are elsewhere
	receive *Receive
}

// NewReceiver posts Config.RecvQueue receives of size bytes and returns what
// takes their messages. Its place is Setup, before the peer can send. Messages
// that carry nothing but immediate data, as those of WriteImm, need no bytes.
func (c *Conn) NewReceiver(size int) (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, cerr.Refuse("Conn.NewReceiver", c.kind, "size is %d, less than 0", size)
	}
	return c.newReceiver(size, c.PostRecv)
}

// NewReceiver posts DatagramConfig.RecvQueue receives of MTU bytes and returns
// what takes their datagrams. Its place is Setup, before anybody can send.
func (c *DatagramConn) NewReceiver() (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	return c.newReceiver(c.mtu, c.PostRecv)
}

func (c *queues) newReceiver(size int, post func(...ibverbs.Segment) (*Receive, error)) (*Receiver, error) {
	if err := c.ops.receivesNothing(); err != nil {
		return nil, err
	}
	r := &Receiver{post: post, posted: make([]slot, c.ops.recvs.size)}
	pieces := make([][]ibverbs.Segment, len(r.posted)+1) // one more, for the message that the caller has
	if size > 0 {
		memory, err := c.alloc(len(pieces)*size, ibverbs.AccessLocalWrite)
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
		if s.receive, s.err = post(s.memory...); s.err != nil {
			return nil, s.err
		}
	}
	r.spare = pieces[len(r.posted)]
	return r, nil
}

// Next waits for a message, and posts a receive in the place of the one that took
// it. The message of the call before is over then. If ctx ends earlier, nothing is
// lost, and Next can be called again.
//
// When the peer has ended the connection and its last message was taken, the
// error is syscall.ECONNRESET; see Err for others.
func (r *Receiver) Next(ctx context.Context) (*Message, error) {
	if r == nil || r.post == nil {
		return nil, notMade("Receiver")
	}
	s := &r.posted[r.next]
	if s.err != nil {
		return nil, s.err
	}
	n, err := s.receive.Wait(ctx)
	if err != nil {
		return nil, err
	}
	m := &Message{receive: s.receive}
	if len(s.memory) > 0 {
		b := s.memory[0].Bytes()
		if b == nil { // Close has taken the memory, and the message with it
			return nil, fmt.Errorf("receiver: %w", os.ErrClosed)
		}
		m.Data = b[:n:n]
	}
	s.memory, r.spare = r.spare, s.memory
	// If that fails, it is over, but the other receives may have messages still.
	s.receive, s.err = r.post(s.memory...)
	r.next = (r.next + 1) % len(r.posted)
	return m, nil
}

// Imm returns the immediate data that came with the message, and whether there
// was any.
func (m *Message) Imm() (uint32, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.Imm()
}

// Written returns how many bytes the peer has written with WriteImm, and whether
// the message was one; see Receive.Written.
func (m *Message) Written() (int, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.Written()
}

// InvalidatedRKey returns the remote key of this end's memory that the message
// made invalid, and whether there is one.
func (m *Message) InvalidatedRKey() (uint32, bool) {
	if m == nil || m.receive == nil {
		return 0, false
	}
	return m.receive.InvalidatedRKey()
}

// Sender returns who sent a datagram, for SendTo, as Receive.Sender does.
// For a message of a Conn, whose peer is known, it fails.
func (m *Message) Sender() (Peer, error) {
	if m == nil || m.receive == nil {
		return Peer{}, errNoReceive("Message.Sender")
	}
	return m.receive.Sender()
}
