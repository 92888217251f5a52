package rdmacm

import (
	"context"
	"errors"
	"os"
	"runtime"
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
	queues    *queues
	lead      chan struct{} // full while somebody polls
	wcs       []ibverbs.WC  // of the leader
	turns     uint          // that leaders have had; of the leader
	maxInline int           // bytes

	mu      sync.Mutex // guards what follows, and posting
	pending map[uint64]*operation
	lastID  uint64
	send    *ibverbs.SendBatch
	recv    *ibverbs.RecvBatch
	headers *headers // of the datagrams that are received, nil on connections
	closed  error
	kept    []keptReceive

	// What is posted, until its completion is taken from the completion queue,
	// which must never overflow.
	sends, recvs room

	// failed is told of every completion that reports a failure, whether
	// anybody waits for its request or not.
	failed func(*ibverbs.WCError)
}

// keptReceive is a receive that Recv has posted, and whose context ended first.
type keptReceive struct {
	op       *operation
	segments []ibverbs.Segment
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
	o.maxInline = size.inline
	o.sends.size, o.recvs.size = size.send, size.recv
	o.pending = map[uint64]*operation{}
	return nil
}

// check refuses work for what was not made, and waits without a context.
func (o *operations) check(ctx context.Context) error {
	if err := o.queues.check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("Wait", "ctx")
	}
	return nil
}

// yieldEvery is after how many turns of waiting other goroutines may run. A
// completion that is there at once parks nobody, so that a few goroutines could
// have the processors to themselves for long.
const yieldEvery = 8

// wait returns when op is done, and how it went, or when ctx ends. An op that is
// done wins over a ctx that has ended.
func (o *operations) wait(ctx context.Context, op *operation) (done bool, err error) {
	if err := o.check(ctx); err != nil {
		return false, err
	}
	err = o.waitUntilDone(ctx, op)
	if op.isDone() {
		return true, o.result(ctx, op)
	}
	return false, err
}

func (o *operations) waitUntilDone(ctx context.Context, op *operation) error {
	for !op.isDone() {
		select {
		case <-op.done:
		case o.lead <- struct{}{}:
			var err error
			if !op.isDone() { // or the leader before told us and left
				err = o.collect(ctx)
			}
			o.turns++
			yield := o.turns%yieldEvery == 0
			<-o.lead
			if err != nil {
				return o.failure(err)
			}
			if yield {
				runtime.Gosched()
			}
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
	return nil
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
	op := o.take(wc.ID())
	if op == nil {
		return // posted by the caller on the bare queue pair
	}
	op.wc = *wc
	op.end()
}

// take gives up the place of a request whose completion has come, and returns the
// request.
func (o *operations) take(id uint64) *operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.pending[id]
	if op == nil {
		return nil
	}
	delete(o.pending, id)
	if op.isSend {
		o.sends.free()
		return op
	}
	o.recvs.free()
	if o.headers != nil {
		o.headers.take(op)
	}
	return op
}

// isDone reports whether the request is done with.
func (op *operation) isDone() bool {
	select {
	case <-op.done:
		return true
	default:
		return false
	}
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
	o.sends.wakeAll()
}

// result returns how a finished operation went. Of one that was flushed, why it is
// over may be known only a little later.
func (o *operations) result(ctx context.Context, op *operation) error {
	if op.err != nil {
		return op.err
	}
	err := op.wc.Err()
	if op.wc.Status() == ibverbs.WCFlushed {
		select {
		case <-o.queues.done:
		case <-ctx.Done():
		}
	}
	return o.failure(err)
}

// failure replaces an error that only follows from the end by why it is over.
func (o *operations) failure(err error) error {
	cause := o.queues.Err()
	if cause == nil {
		return err
	}
	if failed, ok := err.(*ibverbs.WCError); ok && failed.Status == ibverbs.WCFlushed || errors.Is(err, os.ErrClosed) {
		return cause
	}
	return err
}
