// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

// operation is a work request, or several that are posted together.
type operation struct {
	state    atomic.Int32
	wc       ibverbs.WC           // completion of the last request, or of the first that failed
	failed   bool                 // whether wc is the completion of a failed request
	err      error                // if not nil, replaces the error of wc, for example when only some of the requests were posted
	what     work                 // description for errors
	requests int                  // number of places in the send queue that the operation's end frees; 0 for a receive
	finish   func()               // if not nil, called when the device no longer needs a send's memory
	segments []ibverbs.Segment    // destination of the message, for a receive of a connection with a Pool
	slot     int                  // slot in headers, for a datagram receive
	header   [ibverbs.GRHLen]byte // received header, for a datagram receive
	waiters  []chan struct{}      // parked goroutines, guarded by the operations' mutex
}

// States of an operation.
const (
	idle     = iota // the operation was never posted
	inFlight        // the device has the operation
	over            // the operation's wc or err is set
)

// operations holds the work requests of a queue pair.
type operations struct {
	queues *queues
	*collector
	maxInline   int    // maximum number of inline bytes
	prepared    bool   // whether the program posts on a PreparedQP itself, so that no operations are held here
	maxSegments int    // maximum number of segments of a receive
	num         uint32 // queue pair number
	base        uint64 // base of the request IDs; 0 if the queue pair has its own completion queue

	intake intake // set when the queues are created

	mu        sync.Mutex   // guards the fields below, and posting
	inFlight  []*operation // operations in flight, by the place in the request ID
	places    []uint32     // free places in inFlight
	completed uint64       // number of operations that have ended
	send      *ibverbs.SendBatch
	recv      *ibverbs.RecvBatch
	headers   *headers      // headers of received datagrams; nil for connections
	closed    error         // reason why no more requests are accepted, or nil
	kept      []keptReceive // receives that calls of Recv have left posted, as their context ended first

	// Transfers and receives not in use, so that the next call need not
	// allocate.
	transfers []*Transfer
	receives  []*Receive
	parked    []chan struct{}

	// sends and recvs count posted requests until their completions are taken
	// from the completion queue, which must never overflow.
	sends, recvs room
	silent       int // number of requests without a completion that were posted after the last request with one

	heard     atomic.Bool   // whether a request that involves the peer has succeeded; on a connection, this shows that the peer's end is up
	posts     atomic.Uint32 // number of calls of Post
	scheduled atomic.Int64  // time from started to the last call of giveWay that yielded

	// failed is called for every failed completion, even if no goroutine waits
	// for its request. Its arguments are the completion's error and the error
	// for the program.
	failed func(wc *ibverbs.WCError, err error)
}

// lastRequest is a bit in the ID of the last request, or the only one, of those
// that were posted together. The other requests complete only if they fail. The
// remaining bits of an ID are a base and a place in operations.inFlight.
const lastRequest = 1 << 62

// keptReceive is a receive that Recv posted before its context ended.
type keptReceive struct {
	receive  *Receive
	segments []ibverbs.Segment
}

func (o *operations) init(size queueSizes) error {
	var err error
	if o.send, err = ibverbs.NewSendBatch(1, size.sendSegments); err != nil {
		return fmt.Errorf("%s.Segments: %w", size.config, err)
	}
	o.maxInline, o.maxSegments = size.inline, size.recvSegments
	o.makeRoom(size.send, size.recv)
	return nil
}

// polledByUser reports whether the program polls the completion queue.
func (o *operations) polledByUser() bool { return o.collector != nil && o.cq == nil }

// isOwn reports whether id can be the ID of a request of these operations.
func (o *operations) isOwn(id uint64) bool {
	return id&^lastRequest-o.base < uint64(len(o.inFlight))
}

func (o *operations) makeRoom(sends, recvs int) {
	o.sends.size, o.recvs.size = sends, recvs
	places := sends + o.intake.places(recvs)
	// One more place, which no operation uses; see silentID.
	o.inFlight = make([]*operation, places+1)
	for i := range places {
		o.places = append(o.places, uint32(i))
	}
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

// wait blocks until op is over or ctx ends. done reports whether op is over. If
// it is, err is the error of op. If op is over and ctx has ended, wait returns
// the result of op.
func (o *operations) wait(ctx context.Context, op *operation) (done bool, err error) {
	if err := o.check(ctx); err != nil {
		return false, err
	}
	err = o.waitUntilOver(ctx, op)
	if op.isOver() {
		return true, o.result(ctx, op)
	}
	return false, err
}

func (o *operations) waitUntilOver(ctx context.Context, op *operation) error {
	for !op.isOver() {
		var err error
		switch {
		case !o.becomePoller():
			err = o.park(ctx, op)
		case o.hasParked.Load():
			err = o.waitBeside(ctx, op)
		default:
			err = o.takeTurn(ctx, op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waitBeside polls for op, and then waits until op is over. The caller is the
// poller beside a goroutine that has parked as the poller. It is not any more
// when waitBeside returns.
func (o *operations) waitBeside(ctx context.Context, op *operation) error {
	began := time.Now()
	n, err := sealed.Open(o.cq.Internals()).Look(o.wcs)
	o.deliverTaken(n)
	o.endTurn()
	if err != nil {
		return o.failure(o.queues.unlessRemoved(err))
	}
	if op.isOver() {
		return nil
	}
	if err := o.park(ctx, op); err != nil {
		return err
	}
	if op.isOver() {
		sealed.Open(o.cq.Internals()).NoteWait(time.Since(began))
	}
	return nil
}

// deliverTaken hands out the n completions that were taken. The caller is the
// poller.
func (o *operations) deliverTaken(n int) {
	o.took = o.took || n > 0
	o.deliver(o.wcs[:n])
}

// takeTurn collects completions, unless op is over. The caller is the poller.
// It is not any more when takeTurn returns.
func (o *operations) takeTurn(ctx context.Context, op *operation) error {
	var err error
	if !op.isOver() { // the previous poller may have completed it
		err = o.collect(ctx, op)
	}
	o.endTurn()
	if err != nil {
		return o.failure(err)
	}
	return nil
}

// park waits until op is over. If the caller becomes the poller before that,
// park calls takeTurn and returns.
func (o *operations) park(ctx context.Context, op *operation) error {
	o.mu.Lock()
	if op.isOver() {
		o.mu.Unlock()
		return nil
	}
	var woken chan struct{}
	if n := len(o.parked); n > 0 {
		woken, o.parked = o.parked[n-1], o.parked[:n-1]
	} else {
		woken = make(chan struct{}, 1)
	}
	op.waiters = append(op.waiters, woken)
	o.mu.Unlock()

	var err error
	if o.want() {
		err = o.takeTurn(ctx, op)
	} else {
		select {
		case <-woken:
		case <-o.vacant:
			if o.becomeWaiter() {
				err = o.takeTurn(ctx, op)
			}
		case <-ctx.Done():
			err = contextError(ctx)
		}
	}
	o.unwant()

	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(op.waiters, woken); i >= 0 {
		op.waiters = slices.Delete(op.waiters, i, i+1)
	}
	select {
	case <-woken:
	default:
	}
	o.parked = append(o.parked, woken)
	return err
}

// await collects completions until the function until returns true. Meanwhile,
// other goroutines may be the poller: those that wait for room.
func (o *operations) await(ctx context.Context, until func() bool) error {
	for {
		if !o.becomeWaiter() && !o.waitVacant(ctx) {
			return contextError(ctx)
		}
		over := until() // as the poller, so that what it looks for is not handed out meanwhile
		var err error
		if !over {
			err = o.collect(ctx, nil)
		}
		o.endTurn()
		switch {
		case err != nil:
			return o.failure(err)
		case over:
			return nil
		}
	}
}

// waitVacant makes the caller the poller, unless ctx ends first.
func (o *operations) waitVacant(ctx context.Context) bool {
	defer o.unwant()
	for polls := o.want(); !polls; polls = o.becomeWaiter() {
		select {
		case <-o.vacant:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// collect waits for completions and hands them out. The caller must be the
// poller, and waits for op, or for something else if op is nil.
func (o *operations) collect(ctx context.Context, op *operation) error {
	o.awaited = op
	n, err := o.cq.Wait(ctx, o.wcs)
	o.deliverTaken(n)
	if err != nil {
		return o.queues.unlessRemoved(err)
	}
	return nil
}

// poll hands out the available completions without blocking and returns their
// number. The caller must be the poller.
func (o *operations) poll() (int, error) {
	n, err := o.cq.Poll(o.wcs)
	o.deliverTaken(n)
	return n, err
}

// handOut records completions of the queue pair in their operations.
func (o *operations) handOut(wcs []ibverbs.WC) {
	for i := range wcs {
		// All failures are noted before any operation ends, so that all
		// waiting goroutines learn the cause.
		o.note(&wcs[i])
	}
	o.mu.Lock()
	for i := range wcs {
		o.complete(&wcs[i])
	}
	o.mu.Unlock() // not deferred, since a defer costs instructions in every call
}

// note records the failure of a request, if wc reports one, and that the peer's
// end is up otherwise.
func (o *operations) note(wc *ibverbs.WC) {
	if err := wc.Err(); err != nil {
		if failed, ok := err.(*ibverbs.WCError); ok {
			o.failed(failed, o.describe(failed))
		}
	} else if !o.heard.Load() && wc.Opcode() != ibverbs.WCBindMW && wc.Opcode() != ibverbs.WCLocalInv {
		o.heard.Store(true)
	}
}

// complete records a completion. The caller must hold o.mu.
func (o *operations) complete(wc *ibverbs.WC) {
	place := wc.ID()&^lastRequest - o.base
	if place >= uint64(len(o.inFlight)) || o.inFlight[place] == nil {
		return // the program has posted the request on QP itself
	}
	op := o.inFlight[place]
	if !op.failed { // requests after a failed one are flushed
		op.wc = *wc
		op.failed = wc.Status() != ibverbs.WCSuccess
	}
	if wc.ID()&lastRequest == 0 {
		return
	}
	o.inFlight[place] = nil
	o.places = append(o.places, uint32(place))
	if op.requests > 0 {
		o.sends.free(op.requests)
	} else {
		o.recvs.free(1)
		if o.headers != nil {
			o.headers.take(op)
		}
	}
	o.end(op)
}

// isOver reports whether the operation has ended.
func (op *operation) isOver() bool { return op.state.Load() == over }

// end ends an operation and wakes the goroutines that wait for it. The caller
// must hold o.mu.
func (o *operations) end(op *operation) {
	o.completed++
	if op.finish != nil {
		op.finish()
		op.finish = nil
	}
	op.state.Store(over)
	for _, woken := range op.waiters {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// abort ends all requests in flight with err. Later requests fail with err.
func (o *operations) abort(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = err
	for place, op := range o.inFlight {
		if op != nil {
			op.err = err
			o.inFlight[place] = nil
			o.end(op)
		}
	}
	if o.intake != nil {
		o.intake.abort()
	}
}

// abandon ends the requests in flight that the device has not completed
// although the queue pair has been in the error state for settlePatience. By
// then, the device no longer reads or writes their memory.
// Linux's siw never completes a request that was posted in that state.
func (o *operations) abandon() {
	o.takeOver() // a completion that another poller has must count
	defer o.endTurn()
	for {
		if n, err := o.poll(); n == 0 || err != nil {
			break
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for place, op := range o.inFlight {
		if op != nil {
			op.err = o.queues.Err()
			o.inFlight[place] = nil
			o.end(op)
		}
	}
}

// result returns the error of a finished request. If the request was flushed,
// result waits for the cause, which usually becomes known a little later.
func (o *operations) result(ctx context.Context, op *operation) error {
	if op.err != nil {
		return op.err
	}
	err := op.wc.Err()
	if err == nil {
		return nil
	}
	if op.wc.Status() == ibverbs.WCFlushed {
		select {
		case <-o.queues.done:
		case <-ctx.Done():
		}
	}
	if failed, ok := err.(*ibverbs.WCError); ok && failed.Status != ibverbs.WCFlushed {
		err = o.failureOf(op.what, failed)
		o.queues.mu.Lock()
		defer o.queues.mu.Unlock()
		return o.queues.naming(err)
	}
	return o.failure(err)
}

// failure returns the cause of the end of the connection if err is only a
// consequence of that end, and err otherwise.
func (o *operations) failure(err error) error {
	failed, ok := err.(*ibverbs.WCError)
	if ok && failed.Status == ibverbs.WCFlushed || errors.Is(err, os.ErrClosed) {
		if cause := o.queues.Err(); cause != nil {
			return cause
		}
	}
	if !ok {
		return err
	}
	o.queues.mu.Lock()
	defer o.queues.mu.Unlock()
	return o.queues.naming(err)
}

// claim puts an operation in flight and returns true, unless the operation is
// already in flight. Other goroutines may call it at the same time.
func (op *operation) claim() bool {
	return op.state.CompareAndSwap(idle, inFlight) || op.state.CompareAndSwap(over, inFlight)
}

// begin puts an operation in flight that is about to be posted. No other
// goroutine may use the operation yet.
func (op *operation) begin(requests int, what *work, finish func()) {
	op.state.Store(inFlight)
	op.failed, op.err, op.requests, op.what, op.finish = false, nil, requests, *what, finish
}

// postSend posts the request that fill adds to an empty batch. It blocks until
// the send queue has room. If postSend succeeds and finish is not nil, finish
// is called when the request has ended. Pass the transfer to recycle when it is
// over.
func (o *operations) postSend(
	ctx context.Context, what *work, fill func(b *ibverbs.SendBatch, id uint64) error, finish func(),
) (*Transfer, error) {
	if err := o.waitToPost(ctx, 1); err != nil {
		return nil, err
	}
	t := o.takeTransfer()
	_, err := o.postOne(&t.operation, what, fill, finish, false)
	if err != nil {
		o.transfers = append(o.transfers, t)
		t = nil
	}
	o.mu.Unlock() // not deferred: see handOut
	return t, err
}

// postOne posts an operation of one request, for which there is room. If poll
// is set, the caller is the poller: postOne also takes the available
// completions, in the same call of C, and returns their number, and the caller
// hands them out. The caller must hold o.mu.
func (o *operations) postOne(
	op *operation, what *work, fill func(b *ibverbs.SendBatch, id uint64) error, finish func(), poll bool,
) (completions int, err error) {
	op.begin(1+o.silent, what, finish)
	o.send.Reset()
	place, id := o.place(op)
	posted := 0
	err = fill(o.send, id)
	switch {
	case err != nil:
	case poll:
		posted, completions, err = o.queues.qp.PostSendAndSpin(o.send, o.cq, o.wcs, 0)
	default:
		posted, err = o.queues.qp.PostSend(o.send)
	}
	if posted == 0 {
		o.withdraw(op, place)
		return 0, err
	}
	o.posted(1)
	return completions, nil // if polling failed, the next call meets the error again
}

// completeAtOnce completes op, which was just posted, if it was successful and
// its completion is the only one of the n that came with the post. The caller
// must be the poller if n is not 0, and hold o.mu.
func (o *operations) completeAtOnce(op *operation, n int) bool {
	if n != 1 || o.cq != o.queues.cq {
		return false
	}
	wc := &o.wcs[0]
	place := wc.ID()&^lastRequest - o.base
	if wc.Status() != ibverbs.WCSuccess || wc.ID()&lastRequest == 0 || place >= uint64(len(o.inFlight)) || o.inFlight[place] != op {
		return false
	}
	if !o.heard.Load() {
		o.note(wc) // takes no lock for a success
	}
	o.complete(wc)
	return true
}

// unlockAndHandOut unlocks o.mu. If polls is set, the caller is the poller:
// unlockAndHandOut ends its turn, and before that hands out the n completions
// that came with a post, unless completeAtOnce has done so.
func (o *operations) unlockAndHandOut(polls bool, n int, done bool) {
	o.mu.Unlock() // not deferred: see handOut
	switch {
	case done:
		o.took = true
	case n > 0:
		o.deliverTaken(n)
	}
	if polls {
		o.endTurn()
	}
}

// posted records that the given number of requests have been posted, and that
// the last of them will have a completion.
func (o *operations) posted(requests int) {
	o.sends.used += requests
	o.silent = 0
}

// mayBeSilent reports whether the given number of requests can be posted
// without a completion. Such requests may fill half of the queue, so that a
// full queue always contains a request that will complete.
func (o *operations) mayBeSilent(requests int) bool { return 2*(o.silent+requests) <= o.sends.size }

// silentID returns the ID for requests that complete only if they fail. Its
// place in inFlight is always empty.
func (o *operations) silentID() uint64 { return o.base | uint64(len(o.inFlight)-1) }

// confirm posts an empty write, if there is room. Its completion shows that the
// requests without a completion are done. The caller must hold o.mu.
func (o *operations) confirm() {
	if o.silent == 0 || !o.sends.has(1) || o.over() != nil {
		return
	}
	t := o.takeTransfer()
	if _, err := o.postOne(&t.operation, &work{kind: confirming}, writeNothing, t.giveBack, false); err != nil {
		t.giveBack()
		o.queues.fail(err)
	}
}

// writeNothing adds a write of no bytes to a batch. It needs no memory at
// either end.
func writeNothing(b *ibverbs.SendBatch, id uint64) error {
	return b.Write(id, ibverbs.RemoteBuffer{}, ibverbs.SendSignaled)
}

// takeTransfer returns an unused transfer. The caller must hold o.mu.
func (o *operations) takeTransfer() *Transfer {
	if n := len(o.transfers); n > 0 {
		t := o.transfers[n-1]
		o.transfers = o.transfers[:n-1]
		return t
	}
	t := &Transfer{ops: o}
	t.giveBack = func() { o.transfers = append(o.transfers, t) }
	return t
}

// recycle keeps a transfer for reuse. The transfer must be from takeTransfer
// and over, and no caller may have it any more.
func (o *operations) recycle(t *Transfer) {
	o.mu.Lock()
	o.transfers = append(o.transfers, t)
	o.mu.Unlock() // not deferred: see handOut
}

// waitToPost waits until the send queue has room for the given number of
// requests, and returns with o.mu locked. Callers get room in the order of
// their calls.
func (o *operations) waitToPost(ctx context.Context, requests int) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	o.mu.Lock()
	err := o.over()
	if err == nil && (len(o.sends.waiting) > 0 || !o.sends.has(requests)) {
		err = o.waitForRoom(ctx, requests)
	}
	if err != nil {
		o.mu.Unlock()
	}
	return err
}

// waitForRoom waits for room in the send queue. The caller must hold o.mu,
// which waitForRoom releases meanwhile.
func (o *operations) waitForRoom(ctx context.Context, requests int) error {
	turn := o.sends.wait()
	defer o.sends.leave(turn)
	for {
		first := o.sends.isFirst(turn)
		if first && o.sends.has(requests) {
			return nil
		}
		if first {
			o.confirm()
		}
		o.mu.Unlock()
		err := o.waitForTurn(ctx, turn, first, requests)
		o.mu.Lock()
		if err == nil {
			err = o.over()
		}
		if err != nil {
			return err
		}
	}
}

// waitForTurn waits until there may be room for the requests, or returns an
// error. first says whether the caller is the first in the queue of waiting
// goroutines. Only completions make room, so the first goroutine also tries to
// become the poller and to collect them. More completions will come, because
// the first goroutine waits only while requests are in flight.
func (o *operations) waitForTurn(ctx context.Context, turn chan struct{}, first bool, requests int) error {
	select {
	case <-turn:
		return nil
	default:
	}
	var vacant chan struct{}
	if first {
		defer o.unwant()
		if o.want() {
			return o.collectRoom(ctx, requests)
		}
		vacant = o.vacant
	}
	select {
	case <-turn:
	case <-vacant:
		if o.becomeWaiter() {
			return o.collectRoom(ctx, requests)
		}
	case <-o.queues.done:
	case <-ctx.Done():
		return contextError(ctx)
	}
	return nil
}

// collectRoom collects completions, unless the send queue has room. The caller
// is the poller. It is not any more when collectRoom returns.
func (o *operations) collectRoom(ctx context.Context, requests int) error {
	var err error
	if !o.hasRoom(requests) { // if the previous poller made room, there may be no completion to come
		err = o.collect(ctx, nil)
	}
	o.endTurn()
	if err != nil {
		return o.failure(err)
	}
	return nil
}

// place finds a place in inFlight for an operation. Call it before posting the
// operation, because the completion may arrive before posting returns. place
// returns the place and the ID for the operation's last request. The caller
// must hold o.mu.
func (o *operations) place(op *operation) (place uint32, id uint64) {
	last := len(o.places) - 1
	place, o.places = o.places[last], o.places[:last]
	o.inFlight[place] = op
	return place, o.base | uint64(place) | lastRequest
}

// withdraw undoes place and begin for an operation that was not posted.
func (o *operations) withdraw(op *operation, place uint32) {
	o.inFlight[place] = nil
	o.places = append(o.places, place)
	op.finish = nil
	op.state.Store(idle)
}

func (o *operations) hasRoom(requests int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.has(requests)
}

var started = time.Now()

// giveWay calls runtime.Gosched if a goroutine may have posted for long without
// yielding. Without that call, the runtime's monitor would preempt the
// goroutine after 10 ms, and from then on check it every 20 us. If posting
// makes system calls that take longer, the monitor would find the goroutine in
// such a call, and give its processor to another goroutine.
func (o *operations) giveWay() {
	const every, calls = 8 * time.Millisecond, 16
	if o.posts.Add(1)%calls != 0 {
		return
	}
	if now := time.Since(started); now >= time.Duration(o.scheduled.Load())+every {
		o.scheduled.Store(int64(now))
		runtime.Gosched()
	}
}

// postRecv posts a receive. If r is nil, postRecv takes an unused receive or
// creates one, which the caller passes to recycleReceive when it is over.
func (o *operations) postRecv(r *Receive, segments []ibverbs.Segment) (*Receive, error) {
	return o.postRecvIn(r, segments, false, false)
}

// postAndPoll is like postRecv, for a caller that is about to wait. It also
// polls if no goroutine is the poller, in the call of C that posts.
func (o *operations) postAndPoll(segments []ibverbs.Segment) (*Receive, error) {
	return o.postRecvIn(nil, segments, false, true)
}

// postOwn is like postRecv, for memory of a Receiver of a connection with a
// Pool.
func (o *operations) postOwn(r *Receive, segments []ibverbs.Segment) (*Receive, error) {
	return o.postRecvIn(r, segments, true, false)
}

func (o *operations) postRecvIn(r *Receive, segments []ibverbs.Segment, own, poll bool) (*Receive, error) {
	if err := o.queues.check(); err != nil {
		return nil, err
	}
	for {
		posted, err := o.take(r, segments, own, poll)
		if posted != nil || err != nil {
			return posted, err
		}
		// Receives may be full of messages whose completions no
		// goroutine has taken.
		n, err := o.pollOnce()
		if err != nil {
			return nil, o.failure(err)
		}
		if n == 0 {
			return nil, cerr.Argument("ibv_post_recv", o.queues.name(), cerr.InvalidAs(syscall.ENOBUFS,
				"%d receives are posted, as many as Config.RecvQueue allows", o.recvs.size))
		}
	}
}

// takeReceive returns an unused receive. The caller must hold o.mu.
func (o *operations) takeReceive() *Receive {
	if n := len(o.receives); n > 0 {
		r := o.receives[n-1]
		o.receives = o.receives[:n-1]
		return r
	}
	return &Receive{ops: o}
}

// recycleReceive keeps a receive for reuse. The receive must be from postRecv
// and over, and no caller may have it any more.
func (o *operations) recycleReceive(r *Receive) {
	o.mu.Lock()
	r.conn = nil
	o.receives = append(o.receives, r)
	o.mu.Unlock() // not deferred: see handOut
}

func (o *operations) postedNone() error {
	if o.recvs.used > 0 {
		return cerr.Argument("NewReceiver", o.queues.name(), cerr.InvalidAs(syscall.ENOBUFS, "a Receiver posts all receives itself, and %d are posted already", o.recvs.used))
	}
	return nil
}

// pollOnce hands out the available completions and returns their number. If
// another goroutine is the poller, pollOnce does nothing and returns 0.
func (o *operations) pollOnce() (int, error) {
	if !o.becomePoller() {
		return 0, nil
	}
	defer o.endTurn()
	return o.poll()
}

// isReleased returns an error if the connection uses a Pool and has been
// closed, so that its messages are gone.
func (o *operations) isReleased() error {
	if !o.intake.outlives() || o.queues.isUp() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// over returns the reason why no more requests can be posted, or nil. The
// caller must hold o.mu.
func (o *operations) over() error {
	if o.closed != nil {
		return o.closed
	}
	if !o.queues.isUp() {
		return o.queues.Err()
	}
	if o.prepared {
		return cerr.Refuse("ibv_post_send", o.queues.name(), "the program created the queue pair (PreparedQP): post to that queue pair")
	}
	return nil
}
