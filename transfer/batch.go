// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A Batch is a list of requests to one peer, which are submitted together. Make
// it once and use it again: filling and submitting it allocates nothing, unless
// it has a notification, waits for room or registers memory. Its methods must
// not be called concurrently, except Cancel, Progress and Wait.
//
// Read, Write and Notify fill the batch. Submit starts its requests, which are
// carried out in any order, and at the same time as those of other batches.
// Each batch of a peer gets its turn.
type Batch struct {
	peer     *Peer
	capacity int // number of requests that there is room for
	requests []request
	message  []byte // notification; nil: none

	// Guarded by the peer's mu.
	state          batchState
	canceled       bool
	nextRequest    int // first request that may not have been issued whole
	unfinished     int // requests that are not done
	moved          int64
	total          int64     // bytes of all requests
	err            error     // of the notification
	firstPath      *path     // path that carries the first slice; nil before that
	spread         bool      // whether other paths carry some
	carriers       []carrier // paths that carry slices now
	mayTrail       bool      // whether the notification is or may become the session's trailer
	trailerArrived bool      // whether it was, and the peer has it
	stuck          time.Time // since when no connection can carry the first request that is not issued; may be zero
	prev           *Batch
	next           *Batch // neighbors in the peer's queue, or the next one in its list of finished batches

	done chan struct{} // has an element when the batch is done
}

// carrier is a path that has slices of a batch in flight.
type carrier struct {
	path   *path
	slices int
}

type batchState uint8

const (
	filling   batchState = iota // by the program
	submitted                   // its requests are in progress
	notifying                   // its requests are done, its notification is not
	finished
)

type request struct {
	write  bool
	memory []byte // the program's; nil: the program named local
	local  *Region
	at     int // where the memory begins in local
	remote *RemoteRegion
	offset uint64
	n      int
	held   bool // whether the request keeps local; if not, one before it does

	// Guarded by the peer's mu.
	issued   int // bytes of which slices were made
	moved    int // bytes of slices that are done
	inFlight int // number of slices that are made and not done
	done     bool
	err      error
}

// NewBatch returns a batch with room for that many requests.
func (p *Peer) NewBatch(requests int) *Batch {
	return &Batch{peer: p, capacity: max(requests, 0), requests: make([]request, 0, min(max(requests, 1), 1<<16)), done: make(chan struct{}, 1)}
}

// Reset removes all requests and the notification. A batch that is in progress
// stays as it is.
func (b *Batch) Reset() {
	if b.change() == nil {
		clear(b.requests)
		b.requests, b.message = b.requests[:0], nil
	}
}

// change prepares a change by the program.
func (b *Batch) change() error {
	if b == nil || b.peer == nil {
		return cerr.Refuse("Batch", "", "the Batch is nil or was not made by Peer.NewBatch")
	}
	b.peer.mu.Lock()
	state := b.state
	if state == finished {
		b.state = filling
	}
	b.peer.mu.Unlock()
	switch state {
	case submitted, notifying:
		return cerr.Argument("Batch", b.peer.String(), cerr.InvalidAs(syscall.EBUSY, "the batch is in progress; Wait first"))
	case finished:
		<-b.done
	}
	return nil
}

// Len returns the number of requests.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.requests)
}

// Read adds a request that reads len(into) bytes of the peer's region, starting
// at an offset. The memory is registered if no region of the engine has all of
// it; see Engine.Forget. Leave it alone until the batch is done. Read fails
// with an error matching ibverbs.ErrBatchFull if the batch has no room.
func (b *Batch) Read(into []byte, from *RemoteRegion, offset uint64) error {
	return b.add("Batch.Read", request{memory: into, n: len(into), remote: from, offset: offset})
}

// Write adds a request that writes data to the peer's region, starting at an
// offset. The memory is as for Read.
func (b *Batch) Write(to *RemoteRegion, offset uint64, data []byte) error {
	return b.add("Batch.Write", request{write: true, memory: data, n: len(data), remote: to, offset: offset})
}

// ReadRegion is like Read, but for n bytes of a region of this engine, which
// may be memory that the program cannot access.
func (b *Batch) ReadRegion(into *Region, at, n int, from *RemoteRegion, offset uint64) error {
	return b.addRegion("Batch.ReadRegion", into, request{at: at, n: n, remote: from, offset: offset})
}

// WriteRegion is like Write, but for n bytes of a region of this engine, which
// may be memory that the program cannot access.
func (b *Batch) WriteRegion(to *RemoteRegion, offset uint64, data *Region, at, n int) error {
	return b.addRegion("Batch.WriteRegion", data, request{write: true, at: at, n: n, remote: to, offset: offset})
}

func (b *Batch) addRegion(op string, local *Region, r request) error {
	switch {
	case local == nil || b == nil || b.peer == nil || local.engine != b.peer.engine:
		return cerr.Refuse(op, "", "the Region is nil or of another Engine")
	case r.at < 0 || r.n < 0 || r.at > local.length-r.n:
		return cerr.Refuse(op, local.String(), "%d bytes at offset %d are outside of the region", r.n, r.at)
	}
	r.local = local
	return b.add(op, r)
}

func (b *Batch) add(op string, r request) error {
	if err := b.change(); err != nil {
		return err
	}
	need := ReadAccess
	if r.write {
		need = WriteAccess
	}
	switch {
	case r.remote == nil || r.remote.session == nil || r.remote.session.peer != b.peer:
		return cerr.Refuse(op, b.peer.String(), "the RemoteRegion is nil or of another Peer")
	case r.offset > r.remote.offer.length || uint64(r.n) > r.remote.offer.length-r.offset:
		return cerr.Refuse(op, b.peer.String(), "%d bytes at offset %d are outside of region %q, which has %d bytes",
			r.n, r.offset, r.remote.offer.name, r.remote.offer.length)
	case r.remote.offer.access&need == 0:
		return cerr.Argument(op, b.peer.String(), cerr.InvalidAs(syscall.EACCES, "the peer does not permit it for region %q", r.remote.offer.name))
	case len(b.requests) >= b.capacity:
		return cerr.Argument(op, b.peer.String(), cerr.InvalidAs(ibverbs.ErrBatchFull, "the batch has room for %d requests", b.capacity))
	}
	b.requests = append(b.requests, r)
	return nil
}

// Notify makes the batch send the peer a message of at most MaxNotification
// bytes once all its requests are done. The peer's Receive returns the message
// exactly once, and then sees what the requests wrote. If a request fails, no
// message is sent. Notify copies the message, which may be empty. The message
// of a batch without requests is for the session that there is when Submit
// returns, also if Notify was called before a restart of the peer.
//
// On iWARP, a device may complete a write before its data are in place. So the
// message may come before them, unless it follows them on the same connection.
// Let the peer read the data there instead.
func (b *Batch) Notify(message []byte) error {
	if err := b.change(); err != nil {
		return err
	}
	if err := b.peer.checkMessage("Batch.Notify", message); err != nil {
		return err
	}
	b.message = bytes.Clone(append(message[:len(message):len(message)], 0))[:len(message)] // not nil
	return nil
}

// checkMessage returns an error if a message is too long.
func (p *Peer) checkMessage(op string, message []byte) error {
	if len(message) > MaxNotification {
		return cerr.Refuse(op, p.String(), "the message has %d bytes; at most %d are possible", len(message), MaxNotification)
	}
	return nil
}

// Submit hands the batch to the peer's connections. It waits for room as
// Config.Pending says, and if ctx ends before there is any, nothing was
// submitted and the error matches ctx.Err(). It may register memory, which
// blocks. Afterwards, Wait tells how the batch ended.
//
// A ctx that ends later does not end the batch. To make it do so, call
// context.AfterFunc(ctx, batch.Cancel) after Submit: Cancel does nothing to a
// batch that is not submitted yet. After Wait, call the function that AfterFunc
// has returned. If that returns false, Cancel may still be called, and would
// cancel the next use of the batch: make a new batch instead.
func (b *Batch) Submit(ctx context.Context) error {
	if err := cmp.Or(b.change(), checkContext("Batch.Submit", ctx)); err != nil {
		return err
	}
	p := b.peer
	if len(b.requests) == 0 && b.message == nil {
		return cerr.Refuse("Batch.Submit", p.String(), "the batch is empty")
	}
	if len(b.requests) == 0 {
		// A message alone is not for a session that has ended.
		if err := p.await(ctx, func() bool { return p.session != nil && p.session.err == nil }); err != nil {
			return err
		}
	}
	if err := b.acquire(); err != nil {
		b.release()
		return err
	}
	if err := p.reserve(ctx, b.weight()); err != nil {
		b.release()
		return err
	}
	p.mu.Lock()
	b.state, b.canceled, b.nextRequest, b.unfinished, b.moved, b.total, b.err, b.stuck = submitted, false, 0, len(b.requests), 0, 0, nil, time.Time{}
	b.firstPath, b.spread, b.mayTrail, b.trailerArrived = nil, false, b.message != nil, false
	for i := range b.requests {
		r := &b.requests[i]
		b.mayTrail = b.mayTrail && r.write // a read that is repeated would read what comes later
		r.issued, r.moved, r.inFlight, r.done, r.err = 0, 0, 0, false, nil
		b.total += int64(r.n)
		if err := r.remote.check(); err != nil || r.n == 0 {
			b.finishRequest(r, err)
		}
	}
	if len(b.requests) == 0 {
		b.requestsDone()
	}
	if b.unfinished > 0 {
		if p.head == nil && !p.noPath.IsZero() {
			p.noPath = time.Now() // earlier, no request waited for a connection
		}
		p.enqueue(b)
		p.watch()
	}
	p.unlock()
	p.postAll()
	return nil
}

// acquire finds the regions of the requests' memory, and keeps them. Requests
// in a row that use one region keep it once.
func (b *Batch) acquire() error {
	var last *Region
	for i := range b.requests {
		r := &b.requests[i]
		if r.n == 0 {
			continue
		}
		if last == nil || !r.isIn(last) {
			if err := r.acquire(b.peer.engine.cache); err != nil {
				return err
			}
			last = r.local
		}
		if !r.write && last.readOnly.Load() {
			return cerr.Argument("Batch.Submit", last.String(), cerr.InvalidAs(syscall.EFAULT, "request %d reads into memory that may not be written", i))
		}
	}
	return nil
}

// isIn reports whether the request can use a region that contains its memory,
// and sets where in it.
func (r *request) isIn(local *Region) bool {
	if r.memory == nil {
		return r.local == local
	}
	if !contains(local.bytes, r.memory) || !r.write && local.readOnly.Load() {
		return false
	}
	r.setLocal(local)
	return true
}

func (r *request) setLocal(local *Region) {
	start, _ := span(local.bytes)
	at, _ := span(r.memory)
	r.local, r.at = local, int(at-start)
}

// acquire finds the region of the request's memory, and keeps it.
func (r *request) acquire(c *cache) error {
	if r.memory == nil {
		if err := c.use(r.local); err != nil {
			return err
		}
	} else {
		local, err := c.acquire(r.memory, !r.write)
		switch {
		case errors.Is(err, errEngineClosed):
			return err
		case err != nil:
			return fmt.Errorf("transfer: Batch.Submit: %d bytes at %p: %w", len(r.memory), r.memory, err)
		}
		r.setLocal(local)
	}
	r.held = true
	return nil
}

// release releases the regions of the requests.
func (b *Batch) release() {
	for i := range b.requests {
		if r := &b.requests[i]; r.held {
			b.peer.engine.cache.release(r.local)
			r.held = false
		}
	}
}

// check returns an error if requests to the region cannot succeed. The caller
// holds the peer's mu.
func (r *RemoteRegion) check() error {
	switch {
	case r.session.err != nil:
		return r.session.requestError()
	case r.withdrawn:
		return ErrWithdrawn
	}
	return nil
}

// key returns the key of the peer's region for a path. ok is false if the path
// cannot carry the request. The caller holds the peer's mu.
func (r *request) key(p *path) (k key, ok bool) {
	k = r.remote.offer.keys[p.remote]
	mr := r.local.mrs[p.local.index].Load()
	return k, k.there && k.generation == p.generation && r.remote.session == p.session && mr != nil && mr.domain == p.domain
}

// issue makes s, which is zero, the next slice of the batch for a path. more
// says whether there is another one. The caller holds the peer's mu.
func (b *Batch) issue(p *path, s *slice) (ok, more bool) {
	for ; b.nextRequest < len(b.requests); b.nextRequest++ {
		r := &b.requests[b.nextRequest]
		if r.done || r.err != nil || r.issued == r.n {
			continue
		}
		if err := r.remote.check(); err != nil {
			b.finishRequest(r, err)
			continue
		}
		k, ok := r.key(p)
		if !ok || b.firstPath != p && p.leaves(r) {
			return false, true
		}
		n := min(r.n-r.issued, b.peer.engine.config.SliceSize, int(share(int64(r.n), p.session.devices)))
		if b.firstPath == nil {
			b.firstPath = p
		}
		b.spread = b.spread || b.firstPath != p
		b.mayTrail = b.mayTrail && !b.spread
		s.batch, s.request, s.offset, s.n, s.key = b, b.nextRequest, r.issued, n, k
		r.issued += n
		r.inFlight++
		r.remote.inFlight++
		return true, r.issued < r.n || b.nextRequest+1 < len(b.requests)
	}
	return false, false
}

// expire makes requests fail if the first that is not issued has waited for too
// long, although connections are up: one of its regions is not registered with
// their devices. Others of which that is true would wait in vain as well. The
// caller holds the peer's mu.
func (b *Batch) expire(now time.Time, timeout time.Duration) {
	s := b.peer.session
	waits := func(r *request) bool { return !r.done && r.err == nil && r.issued < r.n }
	fits := func(r *request) bool {
		return slices.ContainsFunc(s.up, func(p *path) bool {
			_, ok := r.key(p)
			return ok
		})
	}
	rest := b.requests[b.nextRequest:]
	first := slices.IndexFunc(rest, func(r request) bool { return waits(&r) })
	switch {
	case first < 0 || s == nil || len(s.up) == 0 || fits(&rest[first]):
		b.stuck = time.Time{}
	case b.stuck.IsZero():
		b.stuck = now
	case now.Sub(b.stuck) > timeout:
		b.stuck = time.Time{}
		for i := first; i < len(rest); i++ {
			if r := &rest[i]; waits(r) && !fits(r) {
				b.failRequest(r, timeoutError{errNoKey})
			}
		}
	}
}

var errNoKey = errors.New("transfer: no device that is connected has the region")

// sliceDone records that a slice is done. The caller holds the peer's mu.
func (b *Batch) sliceDone(s *slice, err error) {
	r := &b.requests[s.request]
	r.inFlight--
	r.remote.release()
	if err == nil {
		r.moved += s.n
		b.moved += int64(s.n)
	} else if r.err == nil {
		r.err = err
	}
	if r.inFlight == 0 && (r.err != nil || r.moved == r.n) {
		b.finishRequest(r, r.err)
	}
}

// abandon ends a slice of which it is not known whether the peer's memory may
// still be written. That its request was canceled, say, must not hide it. If
// the peer has the trailer behind it, it has the slice. The caller holds the
// peer's mu.
func (s *slice) abandon(err error) {
	if s.batch.trailerArrived {
		s.batch.sliceDone(s, nil)
		return
	}
	s.batch.requests[s.request].err = err
	s.batch.sliceDone(s, err)
}

// failRequest makes a request fail once none of its slices is in flight. The
// caller holds the peer's mu.
func (b *Batch) failRequest(r *request, err error) {
	if r.err == nil {
		r.err = err
	}
	if r.inFlight == 0 {
		b.finishRequest(r, r.err)
	}
}

func (b *Batch) finishRequest(r *request, err error) {
	if r.done {
		return
	}
	r.done, r.err = true, err
	b.peer.stats.Requests++
	if err != nil {
		b.peer.stats.Failed++
	}
	b.unfinished--
	if b.unfinished == 0 {
		b.requestsDone()
	}
}

// requestsDone is called when all requests are done.
func (b *Batch) requestsDone() {
	p := b.peer
	p.dequeue(b)
	if b.message == nil || b.firstError() != nil {
		if b.firstPath != nil && b.firstPath.session.trailer.batch == b {
			b.firstPath.session.trailer.batch = nil
		}
		p.finish(b)
		return
	}
	b.state = notifying
	b.notify()
}

// notify sends the notification, unless it was sent with the data.
func (b *Batch) notify() {
	p := b.peer
	switch {
	case b.trailerArrived:
		b.notified(nil)
	case b.firstPath != nil && b.firstPath.session.trailer.batch == b: // trailerDone tells
		if s := b.firstPath.session; s.err != nil {
			b.notified(s.requestError())
		}
	case b.canceled:
		b.notified(ErrCanceled)
	default:
		p.notify(b, func(err error) { // called without the peer's mu
			p.mu.Lock()
			defer p.unlock()
			b.notified(err)
		})
	}
}

// notified records that the peer has the notification, or may not have it. The
// caller holds the peer's mu.
func (b *Batch) notified(err error) {
	p := b.peer
	b.err = err
	if err == nil {
		p.stats.Sent++
	}
	if b.firstPath != nil && b.firstPath.session.trailer.batch == b {
		b.firstPath.session.trailer.batch = nil
	}
	p.finish(b)
}

func (b *Batch) firstError() error {
	for i := range b.requests {
		if err := b.requests[i].err; err != nil {
			return b.requestError(i)
		}
	}
	return b.err
}

func (b *Batch) requestError(i int) error {
	r := &b.requests[i]
	if r.err == nil {
		return nil
	}
	return &RequestError{i, r.remote.offer.name, r.write, r.err}
}

// Wait blocks until the batch is done and returns the first request's error,
// which is a *RequestError, or the notification's. If ctx ends first, the error
// is a *PendingError, and Wait can be called again.
//
// When the batch is done, this end's memory is no longer read or written. Nor
// is the peer's, unless the error of one of the requests, see Err, matches
// syscall.ETIMEDOUT, ErrSessionEnded or os.ErrClosed: then what a lost
// connection carried may still arrive until the peer destroys its end.
func (b *Batch) Wait(ctx context.Context) error {
	if b == nil || b.peer == nil {
		return b.change()
	}
	if err := checkContext("Batch.Wait", ctx); err != nil {
		return err
	}
	b.peer.mu.Lock()
	state := b.state
	b.peer.mu.Unlock()
	if state == filling {
		return cerr.Refuse("Batch.Wait", b.peer.String(), "the batch was not submitted")
	}
	if err := b.await(ctx); err != nil {
		return &PendingError{err}
	}
	b.peer.mu.Lock()
	defer b.peer.mu.Unlock()
	return b.firstError()
}

// await waits until the batch is done, or ctx ends.
func (b *Batch) await(ctx context.Context) error {
	for p := b.pathToPoll(); p != nil && ctx.Err() == nil; p = b.pathToPoll() {
		has, done := p.becomePoller(ctx, b.done)
		if has {
			b.poll(ctx, p)
			p.releasePoller()
		}
		if done {
			b.done <- struct{}{}
		}
	}
	select {
	case <-b.done:
		b.done <- struct{}{} // for other goroutines that wait, and the next call
		return nil
	default:
	}
	b.peer.beginPassiveWait()
	defer b.peer.endPassiveWait()
	select {
	case <-b.done:
	case <-ctx.Done():
		select {
		case <-b.done:
		default:
			return ctx.Err()
		}
	}
	b.done <- struct{}{}
	return nil
}

// pathToPoll returns the path that tells the end of the batch, or one of those
// that do if all of the batch is in flight. It returns nil if the batch is
// done, or if others may tell.
func (b *Batch) pathToPoll() *path {
	b.peer.mu.Lock()
	defer b.peer.mu.Unlock()
	p := b.firstPath
	switch {
	case b.spread && (b.prev != nil || len(b.carriers) == 0): // in the queue, it has more slices
		return nil
	case b.spread:
		p = b.carriers[0].path
	case p == nil:
		p = b.peer.onlyPath()
	}
	switch {
	case p == nil || p.down || p.stopped.Load():
	case b.state == submitted, b.state == notifying && p.session.trailer.batch == b:
		return p
	}
	return nil
}

// carry records that a path has n more slices of the batch in flight. The
// caller holds the peer's mu.
func (b *Batch) carry(p *path, n int) {
	for i := range b.carriers {
		if c := &b.carriers[i]; c.path == p {
			if c.slices += n; c.slices == 0 {
				b.carriers = slices.Delete(b.carriers, i, i+1)
			}
			return
		}
	}
	b.carriers = append(b.carriers, carrier{p, n})
}

// poll polls a path while it is what pathToPoll returns. The caller is the
// poller.
func (b *Batch) poll(ctx context.Context, p *path) {
	for err := error(nil); err == nil; {
		p.awaited.Store(b) // before the look at the batch, so that its end wakes
		over := b.pathToPoll() != p
		if !over {
			err = p.await(ctx)
		}
		p.awaited.Store(nil)
		if over {
			return
		}
		if err == nil {
			err = p.record()
		}
	}
}

// Err returns how request i ended: nil, or a *RequestError. It is nil before
// the request is done.
func (b *Batch) Err(i int) error {
	if b == nil || b.peer == nil || i < 0 || i >= len(b.requests) {
		return cerr.Refuse("Batch.Err", "", "the batch has no request %d", i)
	}
	b.peer.mu.Lock()
	defer b.peer.mu.Unlock()
	if !b.requests[i].done {
		return nil
	}
	return b.requestError(i)
}

// Progress returns how many bytes of how many have been moved since Submit.
func (b *Batch) Progress() (moved, total int64) {
	if b == nil || b.peer == nil {
		return 0, 0
	}
	b.peer.mu.Lock()
	defer b.peer.mu.Unlock()
	for i := range b.requests {
		total += int64(b.requests[i].n)
	}
	if b.state == filling { // then b.moved is of what it was before
		return 0, total
	}
	return b.moved, total
}

// Cancel ends the batch early, and does not wait for its end. What was not
// posted is not transferred, and its requests fail with ErrCanceled. What was
// posted continues, but is not repeated: only after Wait has returned, and
// returned no *PendingError, is the memory at both ends no longer written.
// Requests may have been carried out in part. Cancel does nothing to a batch
// that is not submitted yet, or is done.
//
// A notification that was not sent is not sent any more, and Wait returns the
// error of a request, or else ErrCanceled. It may have been sent with the
// batch's last data, before the requests were done, or once they were done and
// the peer's mailbox had room. One that was sent with data, and is lost with
// their connection, counts as not sent.
func (b *Batch) Cancel() {
	if b == nil || b.peer == nil {
		return
	}
	p := b.peer
	p.mu.Lock()
	defer p.unlock()
	switch b.state {
	case submitted:
		b.canceled = true
		p.drop(func(other *Batch, _ *request) bool { return other == b }, ErrCanceled)
	case notifying:
		b.canceled = true
		if s := p.session; s != nil && s.forgetWaiting(b) {
			b.notified(ErrCanceled)
		}
	}
}

// weight returns how much of Config.Pending the batch takes.
func (b *Batch) weight() int {
	if b.message != nil {
		return len(b.requests) + 1
	}
	return len(b.requests)
}

// String describes the batch.
func (b *Batch) String() string { return fmt.Sprintf("batch of %d requests", b.Len()) }

var errPeerClosed = fmt.Errorf("transfer: the peer is closed: %w", os.ErrClosed)
