// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

// Send sends the segments as one message. It waits for room in the send queue,
// and then until the peer's device has the message; the peer's program may not
// have seen the message yet. If ctx ends before the message is posted, nothing
// is sent. If ctx ends later, the error is a *PendingError, and the memory must
// be left alone. Both errors match ctx.Err().
func (c *Conn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, &work{kind: sending, bytes: lengthOf(segments)}, func(b *ibverbs.SendBatch, id uint64) error {
		return b.Send(id, flags, segments...)
	})
}

// SendImm is like Send, but also sends 32 bits of immediate data.
func (c *Conn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, &work{kind: sending, bytes: lengthOf(segments)}, func(b *ibverbs.SendBatch, id uint64) error {
		return b.SendImm(id, imm, flags, segments...)
	})
}

// Write writes the segments to the peer's memory. Like Send, it blocks until
// the peer's device has the data.
func (c *Conn) Write(ctx context.Context, to ibverbs.RemoteBuffer, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, accessing(writing, lengthOf(segments), to), func(b *ibverbs.SendBatch, id uint64) error {
		return b.Write(id, to, flags, segments...)
	})
}

// WriteImm is like Write, but also completes one of the peer's receives, which
// reports the 32 bits of immediate data.
func (c *Conn) WriteImm(ctx context.Context, to ibverbs.RemoteBuffer, imm uint32, segments ...ibverbs.Segment) error {
	flags := c.sendFlags(segments)
	return c.transfer(ctx, accessing(writing, lengthOf(segments), to), func(b *ibverbs.SendBatch, id uint64) error {
		return b.WriteImm(id, to, imm, flags, segments...)
	})
}

// Read reads into.Len() bytes from the start of the peer's memory, which may be
// longer. It blocks until the data is in the segment. If ctx ends first, the
// error is as for Send. On iWARP, the segment's region needs
// ibverbs.AccessRemoteWrite.
func (c *Conn) Read(ctx context.Context, into ibverbs.Segment, from ibverbs.RemoteBuffer) error {
	return c.fetch(ctx, accessing(reading, into.Len(), from), func(b *ibverbs.SendBatch, id uint64) error {
		return b.Read(id, from, ibverbs.SendSignaled, into)
	})
}

// CompareSwap atomically replaces the first 8 bytes of the peer's memory by
// swap if they equal compare. The address of these bytes must be a multiple of
// 8. The previous value goes into result, which must have 8 bytes. Each memory
// holds the value in the native byte order of its own host.
func (c *Conn) CompareSwap(ctx context.Context, at ibverbs.RemoteBuffer, compare, swap uint64, result ibverbs.Segment) error {
	return c.fetch(ctx, accessing(swapping, atomicLen, at), func(b *ibverbs.SendBatch, id uint64) error {
		return b.CompareSwap(id, at, compare, swap, ibverbs.SendSignaled, result)
	})
}

// FetchAdd atomically adds the value add to the first 8 bytes of the peer's
// memory. The address of these bytes must be a multiple of 8. The previous
// value goes into result, which must have 8 bytes. Each memory holds the value
// in the native byte order of its own host.
func (c *Conn) FetchAdd(ctx context.Context, at ibverbs.RemoteBuffer, add uint64, result ibverbs.Segment) error {
	return c.fetch(ctx, accessing(adding, atomicLen, at), func(b *ibverbs.SendBatch, id uint64) error {
		return b.FetchAdd(id, at, add, ibverbs.SendSignaled, result)
	})
}

func (c *Conn) sendFlags(segments []ibverbs.Segment) ibverbs.SendFlags {
	if c == nil {
		return 0
	}
	return c.ops.sendFlags(segments)
}

// fetch is like transfer, for reads and atomics. It fails if either end allows
// no reads and atomics, because the device would wait forever.
func (c *Conn) fetch(ctx context.Context, what *work, fill func(*ibverbs.SendBatch, uint64) error) error {
	if c != nil && c.noReads.Load() {
		return c.noFetch()
	}
	return c.transfer(ctx, what, fill)
}

func (c *Conn) noFetch() error {
	return cerr.Refuse("ibv_post_send", c.name(), "this end or the peer allows no reads and atomics on this connection; see Config.ReadDepth")
}

func (c *Conn) transfer(ctx context.Context, what *work, fill func(*ibverbs.SendBatch, uint64) error) error {
	if err := c.self().check(); err != nil {
		return err
	}
	return c.ops.transfer(ctx, what, fill)
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

// transfer posts the request that fill adds to an empty batch, and waits for
// it. If no goroutine is the poller, the caller polls in the call of C that
// posts, because a fast device may be done by then.
func (o *operations) transfer(ctx context.Context, what *work, fill func(*ibverbs.SendBatch, uint64) error) error {
	if err := o.waitToPost(ctx, 1); err != nil {
		return err
	}
	t := o.takeTransfer()
	polls := o.becomePoller()
	n, err := o.postOne(&t.operation, what, fill, nil, polls)
	done := o.completeAtOnce(&t.operation, n)
	if done || err != nil {
		o.transfers = append(o.transfers, t)
	}
	o.unlockAndHandOut(polls, n, done)
	if done || err != nil {
		return err
	}
	return o.finish(ctx, t)
}

// finish waits for a transfer that was posted, and recycles it when it is done.
func (o *operations) finish(ctx context.Context, t *Transfer) error {
	done, err := t.wait(ctx)
	if done {
		o.recycle(t)
	}
	return err
}

// Post posts the batch's requests in one call and does not wait for them, so
// that many transfers can be in flight. t.Wait waits until all requests are
// done. Transfers of a connection end in the order in which they were posted,
// so a caller that has waited for the last transfer has waited for all.
//
// If t is nil, no call waits for the requests, and the device reports only one
// completion for each half of the send queue. The requests are done when a
// transfer that was posted later is done. If one of them fails, Err returns the
// error, as always.
//
// Post waits until the send queue has room for all requests, behind the
// transfers that began to wait before. Leave the requests' memory alone,
// including memory that is only sent, until Wait returns anything but a
// *PendingError. The batch can be used again for the next Post, and t when it
// is done. Post allocates nothing. It sets the requests' IDs, and sets
// SendSignaled for at most the last request.
//
// If ctx ends before anything is posted, the error matches ctx.Err(). If the
// device refuses a request other than the first, the error is a *PendingError,
// because the requests before that one are in flight.
func (c *Conn) Post(ctx context.Context, t *Transfer, batch *ibverbs.SendBatch) error {
	if err := c.self().check(); err != nil {
		return err
	}
	o, n := &c.ops, batch.Len()
	switch {
	case n == 0:
		return cerr.Refuse("Conn.Post", c.name(), "the batch is empty")
	case n > o.sends.size:
		return cerr.Refuse("Conn.Post", c.name(), "the batch has %d requests, more than Config.SendQueue, which is %d", n, o.sends.size)
	}
	o.giveWay()
	if err := o.waitToPost(ctx, n); err != nil {
		return err
	}
	defer o.mu.Unlock()
	if t == nil && o.mayBeSilent(n) {
		return c.postSilent(batch)
	}
	var finish func()
	switch {
	case t == nil:
		t = o.takeTransfer()
		finish = t.giveBack
	case !t.claim():
		return cerr.Argument("Conn.Post", c.name(), cerr.InvalidAs(syscall.EBUSY, "the Transfer is still in flight: wait for it, or use another Transfer"))
	}
	t.ops = o
	t.begin(n+o.silent, &work{kind: posting, bytes: n}, finish)
	place, id := o.place(&t.operation)
	posted, err := c.postBatch(batch, id&^lastRequest, id, true)
	switch {
	case err == nil:
		o.posted(n)
		return nil
	case posted == 0:
		o.withdraw(&t.operation, place)
		if finish != nil {
			finish()
		}
		return err
	}
	if finish != nil { // after the error, the caller waits for the transfer
		t.finish = nil
	}
	return c.endEarly(t, id, posted, err)
}

// postBatch posts a batch. The last request gets the ID last, and the others
// get id. signaled says whether the last request has a completion. postBatch
// returns the number of posted requests.
func (c *Conn) postBatch(batch *ibverbs.SendBatch, id, last uint64, signaled bool) (int, error) {
	if fetches := sealed.Open(batch.Internals()).Mark(id, last, signaled); fetches && c.noReads.Load() {
		return 0, c.noFetch()
	}
	return c.qp.PostSend(batch)
}

// postSilent posts a batch whose requests complete only if they fail.
func (c *Conn) postSilent(batch *ibverbs.SendBatch) error {
	o, id := &c.ops, c.ops.silentID()
	posted, err := c.postBatch(batch, id, id, false)
	if err == nil {
		o.sends.used += posted
		o.silent += posted
		return nil
	}
	if posted == 0 {
		return err
	}
	t := &Transfer{ops: o}
	_, id = o.place(&t.operation)
	t.begin(0, &work{kind: posting, bytes: posted}, nil)
	return c.endEarly(t, id, posted, err)
}

// endEarly completes a transfer of which only some requests were posted,
// because err stopped the others. It posts an empty write, whose completion
// ends the transfer, and returns the error for the caller.
func (c *Conn) endEarly(t *Transfer, id uint64, posted int, err error) error {
	o := &c.ops
	t.requests, t.err = posted+1+o.silent, err
	o.posted(posted + 1)
	o.send.Reset()
	end := writeNothing(o.send, id)
	if end == nil {
		_, end = c.qp.PostSend(o.send)
	}
	if end != nil {
		o.queues.fail(end)
	}
	return &PendingError{Transfer: t, Err: err}
}

// A Transfer is a posted send, write, read or atomic operation, or several
// requests that Conn.Post has posted together. The zero Transfer is ready for
// Post. Several goroutines may wait for a Transfer, but none may wait while it
// is posted again.
type Transfer struct {
	ops *operations
	operation
	giveBack func() // makes a transfer from takeTransfer available again; nil for a Transfer of the program
}

// Wait blocks until the transfer is done and returns its error. If ctx ends
// first, the error is a *PendingError, and Wait can be called again.
func (t *Transfer) Wait(ctx context.Context) error {
	if t == nil || t.state.Load() == idle {
		return cerr.Argument("Transfer.Wait", "", cerr.InvalidAs(os.ErrInvalid, "the Transfer is nil or was not posted"))
	}
	_, err := t.wait(ctx)
	return err
}

func (t *Transfer) wait(ctx context.Context) (done bool, err error) {
	done, err = t.ops.wait(ctx, &t.operation)
	if !done && ctx != nil && ctx.Err() != nil {
		return false, &PendingError{Transfer: t, Err: err}
	}
	return done, err
}

// A PendingError reports that a wait ended before its transfer. The device may
// still read or write the memory at this end and at the peer. Leave that memory
// alone until Transfer.Wait returns anything but a *PendingError, or the
// connection is closed.
type PendingError struct {
	Transfer *Transfer
	Err      error // reason why the wait ended; usually the context's error
}

// Error reports that the transfer goes on, and why the wait ended.
func (e *PendingError) Error() string {
	const text = "the transfer goes on"
	if e.Err == nil {
		return text
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns the reason why the wait ended.
func (e *PendingError) Unwrap() error { return e.Err }
