package rdmacm

import (
	"context"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Send sends a message made of the segments. It waits for a place in the send
// queue, then until the peer's device has the message, which is not to say that
// the peer's program has seen it. If ctx ends before the message is posted,
// nothing was sent, and the error is ctx.Err(). If it ends later, the error is a
// *PendingError.
func (c *Conn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Send(id, flags, segments...)
	})
}

// SendImm is Send with 32 bits of immediate data.
func (c *Conn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.SendImm(id, imm, flags, segments...)
	})
}

// Write writes the segments to a peer's memory. It waits as Send does, until the
// peer's device has the data.
func (c *Conn) Write(ctx context.Context, to ibverbs.RemoteBuffer, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Write(id, to, flags, segments...)
	})
}

// WriteImm is Write that also takes a receive of the peer's and tells it 32
// bits of immediate data.
func (c *Conn) WriteImm(ctx context.Context, to ibverbs.RemoteBuffer, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.WriteImm(id, to, imm, flags, segments...)
	})
}

// Read reads a peer's memory into the segment, which may be shorter. It waits as
// Send does, until the data is there.
func (c *Conn) Read(ctx context.Context, into ibverbs.Segment, from ibverbs.RemoteBuffer) error {
	return c.fetch(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Read(id, from, ibverbs.SendSignaled, into)
	})
}

// CompareSwap changes the first 8 bytes of a peer's memory, which must be aligned
// to 8 bytes, to swap, if they are compare. What they were goes into result,
// which has 8 bytes. All numbers have the byte order of the host whose memory it
// is.
func (c *Conn) CompareSwap(ctx context.Context, at ibverbs.RemoteBuffer, compare, swap uint64, result ibverbs.Segment) error {
	return c.fetch(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.CompareSwap(id, at, compare, swap, ibverbs.SendSignaled, result)
	})
}

// FetchAdd adds to the first 8 bytes of a peer's memory, as CompareSwap changes
// them.
func (c *Conn) FetchAdd(ctx context.Context, at ibverbs.RemoteBuffer, add uint64, result ibverbs.Segment) error {
	return c.fetch(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.FetchAdd(id, at, add, ibverbs.SendSignaled, result)
	})
}

func (c *Conn) sendFlags(segments []ibverbs.Segment) ibverbs.SendFlags {
	if c == nil {
		return 0
	}
	return c.ops.sendFlags(segments)
}

// fetch is transfer for what brings something back. Without a depth for that, a
// device would wait for ever.
func (c *Conn) fetch(ctx context.Context, fill func(*ibverbs.SendBatch, uint64) error) error {
	if c != nil && c.noReads.Load() {
		return cerr.Refuse("ibv_post_send", c.kind, "the ends allow no reads and atomics here, as Config.ReadDepth says")
	}
	return c.transfer(ctx, fill)
}

func (c *Conn) transfer(ctx context.Context, fill func(*ibverbs.SendBatch, uint64) error) error {
	if err := c.self().check(); err != nil {
		return err
	}
	return c.ops.transfer(ctx, fill, nil)
}

// sendFlags are those of a request that sends the segments: inline, if they fit.
func (o *operations) sendFlags(segments []ibverbs.Segment) ibverbs.SendFlags {
	if o.maxInline == 0 {
		return ibverbs.SendSignaled
	}
	size := 0
	for _, s := range segments {
		if s.Bytes() == nil { // only the device reaches it
			return ibverbs.SendSignaled
		}
		size += s.Len()
	}
	if size > o.maxInline {
		return ibverbs.SendSignaled
	}
	return ibverbs.SendSignaled | ibverbs.SendInline
}

// transfer posts a request as postSend does, and waits for it.
func (o *operations) transfer(ctx context.Context, fill func(*ibverbs.SendBatch, uint64) error, finish func()) error {
	op, err := o.postSend(ctx, fill, finish)
	if err != nil {
		return err
	}
	return (&Transfer{o, op}).Wait(ctx)
}

// Transfer is a send, a write, a read or an atomic operation that is posted.
type Transfer struct {
	ops *operations
	op  *operation
}

// Wait waits until the transfer is done, and returns nil or why it failed. If ctx
// ends earlier, the error is a *PendingError, and Wait can be called again.
func (t *Transfer) Wait(ctx context.Context) error {
	if t == nil || t.op == nil {
		return cerr.Argument("Transfer.Wait", "", cerr.InvalidAs(os.ErrInvalid, "the transfer was not posted"))
	}
	done, err := t.ops.wait(ctx, t.op)
	if !done && ctx != nil && ctx.Err() != nil {
		return &PendingError{Transfer: t, Err: err}
	}
	return err
}

// PendingError says that a wait for a transfer has ended, and the transfer has
// not: the device still reads or writes the memory, of this end and the peer's.
// Leave the memory alone until Transfer.Wait has returned nil or another error, or
// the connection was closed.
type PendingError struct {
	Transfer *Transfer
	Err      error // why the wait has ended, as a rule that of a context
}

func (e *PendingError) Error() string { return "the transfer goes on: " + e.Err.Error() }

// Unwrap returns why the wait has ended.
func (e *PendingError) Unwrap() error { return e.Err }
