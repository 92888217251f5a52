package rdmacm

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
)

// Receiver takes messages, and keeps receives posted for those to come. It is
// for one goroutine, and for ends on which nobody else receives.
type Receiver struct {
	post  func(...ibverbs.Segment) (incoming, error)
	slots []slot // whose receives are posted in turn, and so take messages in turn
	next  int
	taken *slot // whose message the caller has
}

// slot is a receive with its memory.
type slot struct {
	memory  []ibverbs.Segment // one, or none
	receive incoming
	err     error // why it could not be posted
}

// incoming is a receive of either kind.
type incoming interface {
	Wait(ctx context.Context) (int, error)
	Imm() (uint32, bool)
	Sender() (Peer, error)
	isWrite() bool
}

// connReceive is a receive of a Conn.
type connReceive struct{ *Receive }

func (connReceive) Sender() (Peer, error) {
	return Peer{}, fmt.Errorf("sender of a message of a connection, which is its peer: %w", syscall.EINVAL)
}

func (r *Receive) isWrite() bool { return r.op.wc.Opcode() == ibverbs.WCRecvImm }

func (r *DatagramReceive) isWrite() bool { return false }

// Message is one that a Receiver has taken. It is valid until the next call of
// Next, and so are its bytes.
type Message struct {
	Data []byte // in the receiver's memory; empty for WriteImm
	// Len is how many bytes the peer has sent, or has written with WriteImm.
	Len     int
	receive incoming
}

// NewReceiver posts Config.RecvQueue receives of size bytes and returns what
// takes their messages. Its place is Setup, before the peer can send. Messages
// that carry nothing but immediate data, as those of WriteImm, need no bytes.
func (c *Conn) NewReceiver(size int) (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, fmt.Errorf("receiver of messages of %d bytes: %w", size, syscall.EINVAL)
	}
	return c.newReceiver(size, func(s ...ibverbs.Segment) (incoming, error) {
		r, err := c.PostRecv(s...)
		return connReceive{r}, err
	})
}

// NewReceiver posts DatagramConfig.RecvQueue receives of MTU bytes and returns
// what takes their datagrams. Its place is Setup, before anybody can send.
func (c *DatagramConn) NewReceiver() (*Receiver, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	return c.newReceiver(c.mtu, func(s ...ibverbs.Segment) (incoming, error) { return c.PostRecv(s...) })
}

func (q *queues) newReceiver(size int, post func(...ibverbs.Segment) (incoming, error)) (*Receiver, error) {
	r := &Receiver{post: post, slots: make([]slot, cap(q.ops.recvSlots))}
	var memory *ibverbs.MR
	if size > 0 {
		var err error
		if memory, err = q.alloc(len(r.slots)*size, ibverbs.AccessLocalWrite); err != nil {
			return nil, err
		}
	}
	for i := range r.slots {
		s := &r.slots[i]
		if memory != nil {
			s.memory = []ibverbs.Segment{memory.Sub(i*size, size)}
		}
		if s.receive, s.err = post(s.memory...); s.err != nil {
			return nil, s.err
		}
	}
	return r, nil
}

// Next waits for a message. That of the call before is over then: its receive
// is posted again. If ctx ends earlier, nothing is lost, and Next can be called
// again.
//
// When the peer has ended the connection and its last message was taken, the
// error is syscall.ECONNRESET; see Err for others.
func (r *Receiver) Next(ctx context.Context) (*Message, error) {
	if r == nil || r.post == nil {
		return nil, fmt.Errorf("receiver that is nil, or was not made by this package: %w", os.ErrInvalid)
	}
	if s := r.taken; s != nil {
		r.taken = nil
		// If that fails, it is over, but the other receives may have messages still.
		s.receive, s.err = r.post(s.memory...)
	}
	s := &r.slots[r.next]
	if s.err != nil {
		return nil, s.err
	}
	n, err := s.receive.Wait(ctx)
	if err != nil {
		return nil, err
	}
	r.taken, r.next = s, (r.next+1)%len(r.slots)
	m := &Message{Len: n, receive: s.receive}
	if len(s.memory) > 0 && !s.receive.isWrite() {
		b := s.memory[0].Bytes()
		if b == nil { // Close has taken the memory, and the message with it
			return nil, fmt.Errorf("receiver: %w", os.ErrClosed)
		}
		m.Data = b[:n:n]
	}
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

// Sender returns who sent a datagram, for SendTo, as DatagramReceive.Sender does.
// For a message of a Conn, whose peer is known, it fails.
func (m *Message) Sender() (Peer, error) {
	if m == nil || m.receive == nil {
		return Peer{}, errNoReceive
	}
	return m.receive.Sender()
}
