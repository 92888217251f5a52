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

// reaping is how a path learns what its device has done: flights that are over,
// and messages that have come. The goroutine that has the turn reaps them for
// all that wait.
//
// A call that waits for one path alone takes the turn itself, since the device
// wakes it sooner than a goroutine of the path could. Otherwise the path's
// keeper has the turn. The keeper gives way to calls, and then stays away while
// there are calls that reap.
type reaping struct {
	turn   chan struct{} // full while a goroutine has the turn
	posted chan *flight  // in the order of the posts
	fault  chan struct{} // closed when broken is set
	recall chan struct{} // has an element when the keeper is to come back at once
	ready  func() bool   // path.isReady
	away   atomic.Bool   // whether the keeper is away
	wanted atomic.Int32  // number of calls that wait for the turn
	calls  atomic.Uint32 // number of times that a call had the turn
	waits  atomic.Bool   // whether the goroutine that has the turn waits
	kicked atomic.Bool   // whether it must return from its wait
	broken atomic.Bool   // whether only path.run reaps, which ends the path
	// What the call waits for that has the turn, while it waits.
	awaited  atomic.Pointer[Batch] // nil: no batch
	receives atomic.Bool           // whether it waits for mail
	// looks is the number of times that the goroutine that has the turn has
	// found no flight, although one may have been about to be added.
	looks atomic.Uint32

	// Of the goroutine that has the turn.
	first   *flight            // the oldest that is not reaped; nil if it is in posted
	deaf    bool               // whether no more messages come
	answer  *ibverbs.SendBatch // for acknowledgements
	guarded <-chan struct{}    // Done of the context whose end kicks
	unguard func() bool        // ends that; nil: no context does
}

// patience is how long a keeper stays away while no call reaps. Tests change
// it.
var patience = time.Millisecond

func (r *reaping) init(ready func() bool) (err error) {
	r.turn, r.posted = make(chan struct{}, 1), make(chan *flight, flights)
	r.fault, r.recall, r.ready = make(chan struct{}), make(chan struct{}, 1), ready
	r.answer, err = ibverbs.NewSendBatch(1, 1)
	return err
}

// tryTurn takes the turn for a call if no goroutine has it, and reports whether
// it did.
func (p *path) tryTurn() bool {
	select {
	case p.turn <- struct{}{}:
		p.calls.Add(1)
		return true
	default:
		return false
	}
}

// takeTurn waits for the turn for a call. It returns early if done receives,
// which fired reports, if ctx ends, or if the path does not work any more.
func (p *path) takeTurn(ctx context.Context, done <-chan struct{}) (has, fired bool) {
	if p.tryTurn() {
		return true, false
	}
	p.wanted.Add(1)
	defer p.wanted.Add(-1)
	select {
	case p.turn <- struct{}{}:
		p.calls.Add(1)
		return true, false
	case <-done:
		return false, true
	case <-p.fault:
	case <-ctx.Done():
	}
	return false, false
}

// endTurn ends the turn of a call.
func (p *path) endTurn() {
	<-p.turn
	if p.session.peer.idle.Load() > 0 {
		p.recallKeeper()
	}
}

// recallKeeper makes the keeper come back, for calls that wait but do not reap.
func (p *path) recallKeeper() {
	if p.away.Load() {
		select {
		case p.recall <- struct{}{}:
		default:
		}
	}
}

// keep reaps while no call does, until the path does not work any more.
func (p *path) keep() {
	for !p.broken.Load() {
		select {
		case p.turn <- struct{}{}:
		case <-p.fault:
			return
		}
		sealed.Open(p.conn.Internals()).SetAside(true)
		for p.wanted.Load() == 0 && p.reap(context.Background()) == nil {
		}
		sealed.Open(p.conn.Internals()).SetAside(false)
		<-p.turn
		p.away.Store(true)
		for p.stayAway() {
		}
		p.away.Store(false)
	}
}

// stayAway waits until no call has reaped for a while, and reports whether the
// keeper is to stay away.
func (p *path) stayAway() bool {
	select {
	case <-p.recall: // one that came too late
	default:
	}
	peer := p.session.peer
	if peer.idle.Load() == 0 { // after away was set: a call that begins to wait now recalls the keeper
		peer.engine.absences.add(p)
		select {
		case <-p.recall:
		case <-p.fault:
		}
		peer.engine.absences.remove(p)
	}
	if peer.idle.Load() > 0 {
		return false
	}
	select {
	case p.turn <- struct{}{}:
		<-p.turn
		return false
	default:
	}
	select { // a call has waited for long
	case p.turn <- struct{}{}:
		<-p.turn
		return true
	case <-p.recall:
	case <-p.fault:
	}
	return false
}

// absences are the paths of an engine whose keepers are away. One timer looks
// after all of them, as each wakes a thread.
type absences struct {
	mu    sync.Mutex
	calls map[*path]uint32 // path.calls at the last look
	timer *time.Timer      // nil before the first; runs while there are paths
}

func (a *absences) add(p *path) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[*path]uint32{}
	}
	switch {
	case len(a.calls) > 0:
	case a.timer == nil:
		a.timer = time.AfterFunc(patience, a.look)
	default:
		a.timer.Reset(patience)
	}
	a.calls[p] = p.calls.Load()
}

func (a *absences) remove(p *path) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.calls, p); len(a.calls) == 0 {
		a.timer.Stop()
	}
}

// look recalls the keepers of paths whose turn no call has taken since the last
// look.
func (a *absences) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, before := range a.calls {
		if calls := p.calls.Load(); calls != before {
			a.calls[p] = calls
		} else {
			p.recallKeeper()
		}
	}
	if len(a.calls) > 0 {
		a.timer.Reset(patience)
	}
}

// reap waits until there is something to reap or for kick, and reaps it. After
// an error, the path does not work any more, or ctx has ended. The caller has
// the turn.
func (p *path) reap(ctx context.Context) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	return p.record()
}

// await waits until there is something to reap, or for kick.
func (p *path) await(ctx context.Context) error {
	if p.isReady() {
		return ctx.Err() // a path that is busy is ready each time
	}
	if done := ctx.Done(); done != nil && done != p.guarded {
		p.dropGuard()
		p.guarded, p.unguard = done, context.AfterFunc(ctx, p.kick)
	}
	if ctx.Err() != nil { // after the guard was set, which kicks later
		return ctx.Err()
	}
	p.waits.Store(true)
	// A queue whose waits have one context after the other parks in many.
	err := sealed.Open(p.conn.Internals()).Await(context.Background(), p.ready)
	p.waits.Store(false)
	if err != nil {
		p.breakDown()
	}
	return err
}

// dropGuard forgets the context of the last wait. The caller has the turn.
func (p *path) dropGuard() {
	if p.unguard != nil {
		p.unguard()
	}
	p.guarded, p.unguard = nil, nil
}

// isReady reports whether await is over.
func (p *path) isReady() bool {
	if p.kicked.Load() && p.kicked.Swap(false) || p.broken.Load() {
		return true
	}
	if f := p.oldest(); f != nil {
		if over, _ := p.isOver(f); over {
			return true
		}
	}
	if p.deaf {
		return false
	}
	has, _ := sealed.Open(p.conn.Internals()).HasMessage()
	return has
}

// kick ends a wait of the goroutine that has the turn, or else its next one.
func (p *path) kick() {
	p.kicked.Store(true)
	if p.waits.Load() {
		sealed.Open(p.conn.Internals()).Wake()
	}
}

// breakDown leaves the path to run.
func (p *path) breakDown() {
	if !p.broken.Swap(true) {
		close(p.fault)
		p.kick()
	}
}

// record reaps some of what the device has done by now. The caller may not have
// to wait any more, so record does not go on for as long as there is more.
func (p *path) record() error {
	for range flights {
		f := p.oldest()
		if f == nil {
			break
		}
		over, failed := p.isOver(f)
		if failed {
			p.breakDown()
		}
		if !over || p.broken.Load() {
			break
		}
		p.first = nil
		p.landed(f)
		p.pump()
	}
	if p.broken.Load() {
		return errBroken
	}
	p.hear()
	return nil
}

var errBroken = errors.New("transfer: the connection does not work")

// add adds a flight that was posted when looks had the given value. Another
// goroutine may have it then.
func (p *path) add(f *flight, looks uint32) {
	failed := f.err != nil // no completion will end a wait
	p.posted <- f          // has room for all flights
	if p.waits.Load() && (failed || p.looks.Load() != looks) {
		p.kick()
	}
}

// oldest returns the oldest flight that is not reaped, or nil. The caller has
// the turn.
func (p *path) oldest() *flight {
	if p.first == nil {
		select {
		case p.first = <-p.posted:
		default:
			p.looks.Add(1)
		}
	}
	return p.first
}

// isOver reports whether a flight is over, and if it is, whether it has failed.
func (p *path) isOver(f *flight) (over, failed bool) {
	if f.err != nil {
		return true, true
	}
	return sealed.Open(p.conn.Internals()).IsOver(&f.transfer)
}
