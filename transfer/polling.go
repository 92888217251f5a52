// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// polling is how a path learns what its device has done: flights that are over,
// and messages that have come. One goroutine at a time, the poller, polls for
// all that wait.
//
// A call that waits for one path alone becomes the poller itself, since the
// device wakes it sooner than another goroutine could. Otherwise a goroutine of
// the path is the poller, in the background. It gives way to calls, and then
// pauses while there are calls that poll.
type polling struct {
	poller  chan struct{} // full while there is a poller
	posted  chan *flight  // in the order of the posts
	stop    chan struct{} // closed when stopped is set
	resume  chan struct{} // has an element when the pause is to end at once
	ready   func() bool   // path.isReady
	paused  atomic.Bool   // whether the background poller pauses
	waiters atomic.Int32  // number of calls that wait to become the poller
	polls   atomic.Uint32 // number of times that a call became the poller
	waiting atomic.Bool   // whether the poller waits
	woken   atomic.Bool   // whether it must return from its wait
	stopped atomic.Bool   // whether only path.run polls, which ends the path
	// What a call that is the poller waits for, while it waits.
	awaited   atomic.Pointer[Batch] // nil: no batch
	receiving atomic.Bool           // whether it waits for mail
	// misses is the number of times that the poller has found no flight,
	// although one may have been about to be added.
	misses atomic.Uint32

	// Used by the poller.
	head       *flight            // the oldest that is not recorded; nil if it is in posted
	noMessages bool               // whether no more messages come
	ack        *ibverbs.SendBatch // for acknowledgements
	ctxDone    <-chan struct{}    // Done of the context whose end wakes the poller
	ctxStop    func() bool        // ends that; nil: there is no such context
}

// pauseTime is how long a background poller pauses while no call polls. Tests
// change it.
var pauseTime = time.Millisecond

func (r *polling) init(ready func() bool) (err error) {
	r.poller, r.posted = make(chan struct{}, 1), make(chan *flight, maxFlights)
	r.stop, r.resume, r.ready = make(chan struct{}), make(chan struct{}, 1), ready
	r.ack, err = ibverbs.NewSendBatch(1, 1)
	return err
}

// tryBecomePoller makes a call the poller if there is none, and reports whether
// it did.
func (p *path) tryBecomePoller() bool {
	select {
	case p.poller <- struct{}{}:
		p.polls.Add(1)
		return true
	default:
		return false
	}
}

// becomePoller waits until it can make a call the poller. It returns early if
// done receives, which fired reports, if ctx ends, or if polling has stopped.
func (p *path) becomePoller(ctx context.Context, done <-chan struct{}) (has, fired bool) {
	if p.tryBecomePoller() {
		return true, false
	}
	p.waiters.Add(1)
	defer p.waiters.Add(-1)
	select {
	case p.poller <- struct{}{}:
		p.polls.Add(1)
		return true, false
	case <-done:
		return false, true
	case <-p.stop:
	case <-ctx.Done():
	}
	return false, false
}

// releasePoller ends what becomePoller began.
func (p *path) releasePoller() {
	<-p.poller
	if p.session.peer.passive.Load() > 0 {
		p.resumeBackground()
	}
}

// resumeBackground ends the pause of the background poller, for calls that wait
// but do not poll.
func (p *path) resumeBackground() {
	if p.paused.Load() {
		select {
		case p.resume <- struct{}{}:
		default:
		}
	}
}

// pollInBackground polls while no call does, until polling has stopped.
func (p *path) pollInBackground() {
	for !p.stopped.Load() {
		select {
		case p.poller <- struct{}{}:
		case <-p.stop:
			return
		}
		sealed.Open(p.conn.Internals()).SetAside(true)
		for p.waiters.Load() == 0 && p.poll(context.Background()) == nil {
		}
		sealed.Open(p.conn.Internals()).SetAside(false)
		<-p.poller
		p.paused.Store(true)
		for p.pause() {
		}
		p.paused.Store(false)
	}
}

// pause waits until no call has polled for a while, and reports whether the
// background poller is to pause again.
func (p *path) pause() bool {
	select {
	case <-p.resume: // one that came too late
	default:
	}
	peer := p.session.peer
	if peer.passive.Load() == 0 { // after paused was set: a call that begins to wait now ends the pause
		peer.engine.pauses.add(p)
		select {
		case <-p.resume:
		case <-p.stop:
		}
		peer.engine.pauses.remove(p)
	}
	if peer.passive.Load() > 0 {
		return false
	}
	select {
	case p.poller <- struct{}{}:
		<-p.poller
		return false
	default:
	}
	select { // a call has waited for long
	case p.poller <- struct{}{}:
		<-p.poller
		return true
	case <-p.resume:
	case <-p.stop:
	}
	return false
}

// pauses are the paths of an engine whose background pollers pause. They share
// one timer, since each timer wakes a thread.
type pauses struct {
	mu    sync.Mutex
	polls map[*path]uint32 // path.polls at the last check
	timer *time.Timer      // nil before the first; runs while there are paths
}

func (a *pauses) add(p *path) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.polls == nil {
		a.polls = map[*path]uint32{}
	}
	switch {
	case len(a.polls) > 0:
	case a.timer == nil:
		a.timer = time.AfterFunc(pauseTime, a.check)
	default:
		a.timer.Reset(pauseTime)
	}
	a.polls[p] = p.polls.Load()
}

func (a *pauses) remove(p *path) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.polls, p); len(a.polls) == 0 {
		a.timer.Stop()
	}
}

// check ends the pauses of paths that no call has polled since the last check.
func (a *pauses) check() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, before := range a.polls {
		if calls := p.polls.Load(); calls != before {
			a.polls[p] = calls
		} else {
			p.resumeBackground()
		}
	}
	if len(a.polls) > 0 {
		a.timer.Reset(pauseTime)
	}
}

// poll waits until there is something to record or for wake, and records it.
// After an error, polling has stopped, or ctx has ended. The caller is the
// poller.
func (p *path) poll(ctx context.Context) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	return p.record()
}

// await waits until there is something to record, or for wake.
func (p *path) await(ctx context.Context) error {
	if p.isReady() {
		return ctx.Err() // a path that is busy is ready each time
	}
	if done := ctx.Done(); done != nil && done != p.ctxDone {
		p.releaseContext()
		p.ctxDone, p.ctxStop = done, context.AfterFunc(ctx, p.wake)
	}
	if ctx.Err() != nil { // after AfterFunc, which wakes later
		return ctx.Err()
	}
	p.waiting.Store(true)
	// A queue whose waits have one context after the other parks in many.
	err := sealed.Open(p.conn.Internals()).Await(context.Background(), p.ready)
	p.waiting.Store(false)
	if err != nil {
		p.stopPolling()
	}
	return err
}

// releaseContext forgets the context of the last wait. The caller is the
// poller.
func (p *path) releaseContext() {
	if p.ctxStop != nil {
		p.ctxStop()
	}
	p.ctxDone, p.ctxStop = nil, nil
}

// isReady reports whether await is over.
func (p *path) isReady() bool {
	if p.woken.Load() && p.woken.Swap(false) || p.stopped.Load() {
		return true
	}
	if f := p.oldest(); f != nil {
		if over, _ := p.isOver(f); over {
			return true
		}
	}
	if p.noMessages {
		return false
	}
	has, _ := sealed.Open(p.conn.Internals()).HasMessage()
	return has
}

// wake ends a wait of the poller, or else its next one.
func (p *path) wake() {
	p.woken.Store(true)
	if p.waiting.Load() {
		sealed.Open(p.conn.Internals()).Wake()
	}
}

// stopPolling leaves the path to run.
func (p *path) stopPolling() {
	if !p.stopped.Swap(true) {
		close(p.stop)
		p.wake()
	}
}

// record records some of what the device has done by now. The caller may not
// have to wait any more, so record does not go on for as long as there is more.
func (p *path) record() error {
	for range maxFlights {
		f := p.oldest()
		if f == nil {
			break
		}
		over, failed := p.isOver(f)
		if failed {
			p.stopPolling()
		}
		if !over || p.stopped.Load() {
			break
		}
		p.head = nil
		p.complete(f)
		p.postAll()
	}
	if p.stopped.Load() {
		return errStopped
	}
	p.receiveMessages()
	return nil
}

var errStopped = errors.New("transfer: the connection does not work")

// add adds a flight that was posted when misses had the given value. Another
// goroutine may have it then.
func (p *path) add(f *flight, misses uint32) {
	failed := f.err != nil // no completion will end a wait
	p.posted <- f          // has room for all flights
	if p.waiting.Load() && (failed || p.misses.Load() != misses) {
		p.wake()
	}
}

// oldest returns the oldest flight that is not recorded, or nil. The caller is
// the poller.
func (p *path) oldest() *flight {
	if p.head == nil {
		select {
		case p.head = <-p.posted:
		default:
			p.misses.Add(1)
		}
	}
	return p.head
}

// isOver reports whether a flight is over, and if it is, whether it has failed.
func (p *path) isOver(f *flight) (over, failed bool) {
	if f.err != nil {
		return true, true
	}
	return sealed.Open(p.conn.Internals()).IsOver(&f.transfer)
}
