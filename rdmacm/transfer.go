package rdmacm

import (
	"context"
	"fmt"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
)

// Send sends a message made of the segments. It returns when the peer's device
// has it, which is not to say that the peer's program has seen it.
func (c *Conn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Send(id, ibverbs.SendSignaled, segments...)
	})
}

// SendImm sends a message with 32 bits of immediate data.
func (c *Conn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.SendImm(id, imm, ibverbs.SendSignaled, segments...)
	})
}

// Write writes the segments to a peer's memory. It returns when the peer's
// device has the data.
func (c *Conn) Write(ctx context.Context, to ibverbs.RemoteBuffer, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Write(id, to, ibverbs.SendSignaled, segments...)
	})
}

// WriteImm is Write that also takes a receive of the peer's and tells it 32
// bits of immediate data.
func (c *Conn) WriteImm(ctx context.Context, to ibverbs.RemoteBuffer, imm uint32, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.WriteImm(id, to, imm, ibverbs.SendSignaled, segments...)
	})
}

// Read reads a peer's memory into the segment, which may be shorter.
func (c *Conn) Read(ctx context.Context, into ibverbs.Segment, from ibverbs.RemoteBuffer) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Read(id, from, ibverbs.SendSignaled, into)
	})
}

// CompareSwap changes the first 8 bytes of a peer's memory, which must be aligned
// to 8 bytes, to swap, if they are compare. What they were goes into result,
// which has 8 bytes. All numbers have the byte order of the host whose memory it
// is.
func (c *Conn) CompareSwap(ctx context.Context, at ibverbs.RemoteBuffer, compare, swap uint64, result ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.CompareSwap(id, at, compare, swap, ibverbs.SendSignaled, result)
	})
}

// FetchAdd adds to the first 8 bytes of a peer's memory, as CompareSwap changes
// them.
func (c *Conn) FetchAdd(ctx context.Context, at ibverbs.RemoteBuffer, add uint64, result ibverbs.Segment) error {
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.FetchAdd(id, at, add, ibverbs.SendSignaled, result)
	})
}

func (c *Conn) transfer(ctx context.Context, fill func(*ibverbs.SendBatch, uint64) error) error {
	if err := c.self().check(); err != nil {
		return err
	}
	op, err := c.ops.postSend(ctx, fill, nil)
	if err != nil {
		return err
	}
	return c.ops.wait(ctx, op)
}

// Receive is a receive that is posted.
type Receive struct {
	ops *operations
	op  *operation
}

// PostRecv posts a receive: the next message that no earlier receive takes
// goes into the segments, in order. It does not wait. At most
// Config.RecvQueue receives may be posted.
func (c *Conn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	op, err := c.ops.postRecv(segments)
	if err != nil {
		return nil, err
	}
	return &Receive{&c.ops, op}, nil
}

// Wait waits for the message and returns its length in bytes. If ctx ends
// earlier, the receive stays posted, and Wait can be called again.
func (r *Receive) Wait(ctx context.Context) (int, error) {
	if r == nil || r.op == nil {
		return 0, errNoReceive
	}
	if err := r.ops.wait(ctx, r.op); err != nil {
		return 0, err
	}
	n := r.op.wc.ByteLen()
	if r.ops.headers != nil {
		n = max(n-ibverbs.GRHLen, 0)
	}
	return n, nil
}

var errNoReceive = fmt.Errorf("receive that was not posted: %w", os.ErrInvalid)

// Imm returns the immediate data that came with the message, and whether there
// was any. It is known when Wait has returned.
func (r *Receive) Imm() (uint32, bool) {
	if !r.isDone() {
		return 0, false
	}
	return r.op.wc.Imm()
}

// isDone reports whether the message is there, or will never be.
func (r *Receive) isDone() bool {
	if r == nil || r.op == nil {
		return false
	}
	select {
	case <-r.op.done:
		return true
	default:
		return false
	}
}

// Recv posts a receive and waits for its message. If ctx ends earlier, the
// receive stays posted and takes a message that nobody will see; use PostRecv
// to wait again.
func (c *Conn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, error) {
	r, err := c.PostRecv(segments...)
	if err != nil {
		return 0, err
	}
	return r.Wait(ctx)
}
