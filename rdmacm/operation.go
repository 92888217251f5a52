package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// operation is a work request that is under way.
type operation struct {
	wc     ibverbs.WC
	err    error         // set instead of wc if there is no completion to come
	done   chan struct{} // closed when either is set
	isSend bool
	finish func()               // of a send, if not nil: the device is done with what it needed
	slot   int                  // of a receive, in headers
	header [ibverbs.GRHLen]byte // and what was there
}

// operations are the work requests of a queue pair. Whoever waits for one polls
// the completion queue for all: one goroutine leads, and tells the others.
type operations struct {
	queues *queues
	lead   chan struct{} // full while somebody polls
	wcs    []ibverbs.WC  // of the leader

	// A place in the completion queue for each request, until its completion
	// is taken from there: the queue must never overflow.
	slots     chan struct{} // of send requests
	recvSlots chan struct{}

	mu      sync.Mutex // guards what follows, and posting
	pending map[uint64]*operation
	lastID  uint64
	send    *ibverbs.SendBatch
	recv    *ibverbs.RecvBatch
	headers *headers // of the datagrams that are received, nil on connections
	closed  error

	// failed is told of every completion that reports a failure, whether
	// anybody waits for its request or not.
	failed func(*ibverbs.WCError)
}

func (o *operations) init(q *queues, size queueSizes) error {
	var err error
	if o.send, err = ibverbs.NewSendBatch(1, size.sendSegments); err != nil {
		return err
	}
	if o.recv, err = ibverbs.NewRecvBatch(1, size.recvSegments); err != nil {
		return err
	}
	o.queues = q
	o.lead = make(chan struct{}, 1)
	o.wcs = make([]ibverbs.WC, 16)
	o.slots = make(chan struct{}, size.send)
	o.recvSlots = make(chan struct{}, size.recv)
	o.pending = map[uint64]*operation{}
	return nil
}

// check refuses work for what was not made, and waits without a context.
func (o *operations) check(ctx context.Context) error {
	if err := o.queues.check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("wait", "ctx")
	}
	return nil
}

// wait returns when op is done, or ctx ends.
func (o *operations) wait(ctx context.Context, op *operation) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-op.done:
			return o.result(op)
		default:
		}
		select {
		case <-op.done:
			return o.result(op)
		case o.lead <- struct{}{}:
			var err error
			select {
			case <-op.done: // the leader before told us and left
			default:
				err = o.collect(ctx)
			}
			<-o.lead
			if err != nil {
				return o.failure(err)
			}
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
}

// collect waits for completions and hands them out. The caller leads.
func (o *operations) collect(ctx context.Context) error {
	n, err := o.queues.cq.Wait(ctx, o.wcs)
	o.handOut(n)
	return o.queues.unlessRemoved(err)
}

// poll hands out the completions that there are, and returns how many. The
// caller leads.
func (o *operations) poll() (int, error) {
	n, err := o.queues.cq.Poll(o.wcs)
	o.handOut(n)
	return n, err
}

func (o *operations) handOut(n int) {
	for i := range o.wcs[:n] {
		o.complete(&o.wcs[i])
	}
}

func (o *operations) complete(wc *ibverbs.WC) {
	if err, ok := wc.Err().(*ibverbs.WCError); ok {
		o.failed(err) // first, so that all who wait know why it is over
	}
	o.mu.Lock()
	op := o.pending[wc.ID()]
	delete(o.pending, wc.ID())
	if op != nil && !op.isSend && o.headers != nil {
		o.headers.take(op)
	}
	o.mu.Unlock()
	if op == nil {
		return // posted by the caller on the bare queue pair
	}
	if op.isSend {
		<-o.slots
	} else {
		<-o.recvSlots
	}
	op.wc = *wc
	op.end()
}

// end tells whoever waits that the request is done with.
func (op *operation) end() {
	if op.finish != nil {
		op.finish()
	}
	close(op.done)
}

// abort ends everything that is under way and refuses more.
func (o *operations) abort(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = err
	for id, op := range o.pending {
		op.err = err
		op.end()
		delete(o.pending, id)
	}
}

// result returns how a finished operation went.
func (o *operations) result(op *operation) error {
	if op.err != nil {
		return op.err
	}
	return o.failure(op.wc.Err())
}

// failure adds why it is over to an error that follows from that.
func (o *operations) failure(err error) error {
	cause := o.queues.Err()
	if cause != nil && errors.Is(err, os.ErrClosed) {
		return cause
	}
	flushed, ok := err.(*ibverbs.WCError)
	if !ok || flushed.Status != ibverbs.WCFlushed || cause == nil {
		return err
	}
	if first, ok := cause.(*ibverbs.WCError); ok && *first == *flushed {
		return err
	}
	return fmt.Errorf("%w (%w)", cause, err)
}
