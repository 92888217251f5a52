package rdmacm

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// operation is a work request in flight.
type operation struct {
	wc     ibverbs.WC
	err    error         // set instead of wc if no completion will arrive
	done   chan struct{} // closed when wc or err is set
	isSend bool
	finish func()               // for a send, if not nil: called when the device needs nothing more
	slot   int                  // for a datagram receive: its slot in headers
	header [ibverbs.GRHLen]byte // for a datagram receive: the header received
}

// operations are the work requests of a queue pair. One of the goroutines that
// wait for a request leads: it polls the completion queue and hands out
// everyone's completions.
type operations struct {
	queues    *queues
	lead      chan struct{} // full while a goroutine leads
	wcs       []ibverbs.WC  // used by the leader
	turns     uint          // number of turns as leader; used by the leader
	maxInline int           // bytes

	mu      sync.Mutex // guards the fields below, and posting
	pending map[uint64]*operation
	lastID  uint64
	send    *ibverbs.SendBatch
	recv    *ibverbs.RecvBatch
	headers *headers // of received datagrams; nil for connections
	closed  error
	kept    []keptReceive

	// sends and recvs count posted requests until their completions are taken
	// from the completion queue, which must never overflow.
	sends, recvs room

	// failed is called for every failed completion, even if nobody waits for its
	// request.
	failed func(*ibverbs.WCError)
}

// keptReceive is a receive that Recv posted before its context ended.
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

// check returns an error if the queues were not created by this package or ctx
// is nil.
func (o *operations) check(ctx context.Context) error {
	if err := o.queues.check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("Wait", "ctx")
	}
	return nil
}

// yieldEvery is the number of turns as leader after which the leader yields. An
// immediate completion parks no goroutine, so a few goroutines could otherwise
// monopolize the processors.
const yieldEvery = 8

// wait blocks until op is done or ctx ends. It reports whether op is done, and
// its error. If both happen, op wins.
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
			if !op.isDone() { // the previous leader may have completed it
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

// collect waits for completions and hands them out. The caller must lead.
func (o *operations) collect(ctx context.Context) error {
	n, err := o.queues.cq.Wait(ctx, o.wcs)
	o.handOut(n)
	return o.queues.unlessRemoved(err)
}

// poll hands out the available completions without blocking and returns their
// number. The caller must lead.
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
		o.failed(err) // first, so that all waiting goroutines learn the cause
	}
	op := o.take(wc.ID())
	if op == nil {
		return // posted by the caller directly on the queue pair
	}
	op.wc = *wc
	op.end()
}

// take frees the place of a completed request and returns the request.
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

// isDone reports whether the request has ended.
func (op *operation) isDone() bool {
	select {
	case <-op.done:
		return true
	default:
		return false
	}
}

// end wakes the goroutines that wait for the request.
func (op *operation) end() {
	if op.finish != nil {
		op.finish()
	}
	close(op.done)
}

// abort ends all requests in flight with err and refuses new ones.
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

// result returns the error of a finished request. The cause of a flushed
// request may become known only a little later.
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

// failure replaces an error that is a mere consequence of the end by the cause
// of the end.
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

// postSend posts the request that fill adds to an empty batch. It blocks until
// the send queue has room. If it succeeds, it calls finish, unless nil, when
// the request has ended.
func (o *operations) postSend(
	ctx context.Context, fill func(b *ibverbs.SendBatch, id uint64) error, finish func(),
) (*operation, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	op := &operation{isSend: true, finish: finish, done: make(chan struct{})}
	for {
		turn, err := o.trySend(op, fill)
		if err != nil {
			return nil, err
		}
		if turn == nil {
			return op, nil
		}
		if err := o.waitForRoom(ctx, turn); err != nil {
			return nil, err
		}
	}
}

// trySend posts the request. If the queue is full, it returns a channel to wait
// on before trying again.
func (o *operations) trySend(op *operation, fill func(b *ibverbs.SendBatch, id uint64) error) (turn chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		o.sends.wakeAll() // they must learn of it too
		return nil, err
	}
	if o.sends.isFull() {
		return o.sends.wait(), nil
	}
	err = o.post(op, &o.sends, func(id uint64) error {
		o.send.Reset()
		if err := fill(o.send, id); err != nil {
			return err
		}
		_, err := o.queues.qp.PostSend(o.send)
		return err
	})
	if err != nil {
		o.sends.wakeNext() // the caller may have been promised room that it does not use
	}
	return nil, err
}

// waitForRoom waits for room in the send queue. Only completions make room, so
// the caller takes its turn in polling for them.
func (o *operations) waitForRoom(ctx context.Context, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	default:
	}
	var err error
	select {
	case <-turn:
		return nil
	case o.lead <- struct{}{}:
		// The previous leader may have made room; then no completion may follow.
		if o.isFull() {
			err = o.collect(ctx)
		}
		<-o.lead
		if err != nil {
			err = o.failure(err)
		}
	case <-o.queues.done:
	case <-ctx.Done():
		err = contextError(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sends.leave(turn)
	return err
}

func (o *operations) isFull() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.isFull()
}

func (o *operations) postRecv(segments []ibverbs.Segment) (*operation, error) {
	if err := o.queues.check(); err != nil {
		return nil, err
	}
	for {
		op, err := o.tryRecv(segments)
		if op != nil || err != nil {
			return op, err
		}
		// Messages may have arrived that nobody has waited for yet.
		n, err := o.pollOnce()
		if err != nil {
			return nil, o.failure(err)
		}
		if n == 0 {
			return nil, cerr.Argument("ibv_post_recv", o.queues.kind, cerr.InvalidAs(syscall.ENOBUFS,
				"%d receives are posted, as many as Config.RecvQueue allows", o.recvs.size))
		}
	}
}

// tryRecv posts a receive. It returns nil if there is no room.
func (o *operations) tryRecv(segments []ibverbs.Segment) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		return nil, err
	}
	if o.recvs.isFull() {
		return nil, nil
	}
	op := &operation{done: make(chan struct{})}
	err := o.post(op, &o.recvs, func(id uint64) error {
		o.recv.Reset()
		if o.headers != nil {
			segments = o.headers.add(op, segments)
		}
		err := o.recv.Recv(id, segments...)
		if err == nil {
			_, err = o.queues.qp.PostRecv(o.recv)
		}
		if err != nil && o.headers != nil {
			o.headers.take(op)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return op, nil
}

// receivesNothing returns an error if any receives are posted.
func (o *operations) receivesNothing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		return err
	}
	if o.recvs.used > 0 {
		return cerr.Argument("NewReceiver", o.queues.kind, cerr.InvalidAs(syscall.ENOBUFS, "%d receives are posted already", o.recvs.used))
	}
	return nil
}

// pollOnce hands out the available completions unless another goroutine leads.
func (o *operations) pollOnce() (int, error) {
	select {
	case o.lead <- struct{}{}:
		defer func() { <-o.lead }()
		return o.poll()
	default:
		return 0, nil
	}
}

// over returns why no more requests can be posted, or nil.
func (o *operations) over() error {
	if o.closed != nil {
		return o.closed
	}
	return o.queues.Err()
}

// post posts a request. There must be room for it, and the caller must hold
// o.mu.
func (o *operations) post(op *operation, r *room, post func(id uint64) error) error {
	o.lastID++
	// Before posting, because the completion may arrive first.
	o.pending[o.lastID] = op
	if err := post(o.lastID); err != nil {
		delete(o.pending, o.lastID)
		return err
	}
	r.used++
	return nil
}
