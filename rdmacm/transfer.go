package rdmacm

import (
	"context"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Send sends the segments as one message. It waits for room in the send queue,
// and then until the peer's device has the message; the peer's program may not
// have seen it yet. If ctx ends before the message is posted, nothing is sent.
// If ctx ends later, the error is a *PendingError, and the memory must be left
// alone. Both errors match ctx.Err().
func (c *Conn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Send(id, flags, segments...)
	})
}

// SendImm is like Send, but also sends 32 bits of immediate data.
func (c *Conn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.SendImm(id, imm, flags, segments...)
	})
}

// Write writes the segments to the peer's memory. Like Send, it blocks until
// the peer's device has the data.
func (c *Conn) Write(ctx context.Context, to ibverbs.RemoteBuffer, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Write(id, to, flags, segments...)
	})
}

// WriteImm is like Write, but also consumes one of the peer's receives, which
// reports the 32 bits of immediate data.
func (c *Conn) WriteImm(ctx context.Context, to ibverbs.RemoteBuffer, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.WriteImm(id, to, imm, flags, segments...)
	})
}

// Read reads into.Len() bytes from the start of the peer's memory, which may be
// longer. It blocks until the data is there, or ctx ends as described for Send.
func (c *Conn) Read(ctx context.Context, into ibverbs.Segment, from ibverbs.RemoteBuffer) error {
	return c.fetch(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Read(id, from, ibverbs.SendSignaled, into)
	})
}

// CompareSwap atomically replaces the first 8 bytes of the peer's memory by
// swap if they equal compare. They must be aligned to 8 bytes. The previous
// value goes into result, which must have 8 bytes. Each memory holds the value
// in the native byte order of its own host.
func (c *Conn) CompareSwap(ctx context.Context, at ibverbs.RemoteBuffer, compare, swap uint64, result ibverbs.Segment) error {
	return c.fetch(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return b.CompareSwap(id, at, compare, swap, ibverbs.SendSignaled, result)
	})
}

// FetchAdd atomically adds to the first 8 bytes of the peer's memory. They must
// be aligned to 8 bytes. The previous value goes into result, which must have 8
// bytes. Each memory holds the value in the native byte order of its own host.
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

// fetch is like transfer, for requests that return data. If their limit is 0,
// fetch fails; the device would wait forever.
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

// sendFlags returns the flags of a request that sends the segments, inline if
// they fit.
func (o *operations) sendFlags(segments []ibverbs.Segment) ibverbs.SendFlags {
	if o.maxInline == 0 {
		return ibverbs.SendSignaled
	}
	size := 0
	for _, s := range segments {
		if s.Bytes() == nil { // only the device can access it
			return ibverbs.SendSignaled
		}
		size += s.Len()
	}
	if size > o.maxInline {
		return ibverbs.SendSignaled
	}
	return ibverbs.SendSignaled | ibverbs.SendInline
}

// transfer posts a request with postSend and waits for it.
func (o *operations) transfer(ctx context.Context, fill func(*ibverbs.SendBatch, uint64) error, finish func()) error {
	op, err := o.postSend(ctx, fill, finish)
	if err != nil {
		return err
	}
	return (&Transfer{o, op}).Wait(ctx)
}

// A Transfer is a posted send, write, read or atomic operation.
type Transfer struct {
	ops *operations
	op  *operation
}

// Wait blocks until the transfer is done and returns its error. If ctx ends
// first, the error is a *PendingError, and Wait can be called again.
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

// A PendingError reports that a wait ended before its transfer. The device may
// still read or write the memory at this end and at the peer. Leave that memory
// alone until Transfer.Wait returns anything but a *PendingError, or the
// connection is closed.
type PendingError struct {
	Transfer *Transfer
	Err      error // why the wait ended; usually the context's error
}

func (e *PendingError) Error() string { return "the transfer goes on: " + e.Err.Error() }

// Unwrap returns the reason why the wait ended.
func (e *PendingError) Unwrap() error { return e.Err }
