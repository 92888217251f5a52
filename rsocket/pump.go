// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// pump takes completions from a completion queue, which belongs to one
// connection or to a part of a pool. It has no goroutine of its own: each
// goroutine that has to wait tries to lock the pump. The one that holds the
// lock takes completions for all connections until its own wait is over. The
// others wait until their side is woken or they get the lock.
type pump struct {
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
	handle  handler              // called with taken completions
	woken   func()               // if not nil, also called to wake the goroutine that holds the pump; must not block
	lock    chan struct{}        // full while a goroutine holds the pump
	wanted  atomic.Bool          // whether Hold has failed since woken was called for that reason
	wcs     []ibverbs.WC         // completions that the goroutine that holds the pump is taking
	got     [completions]message // what those that are receives have received
	from    *receives            // receives of words whose completions are in the queue; nil: it has none

	mu      sync.Mutex
	onTaken []func() // functions that were passed to afterTaken; guarded by mu
}

// handler is a function that gets taken completions, and what those that are
// receives have received. If the queue has failed, err is the reason.
type handler func(wcs []ibverbs.WC, got []message, err error)

// init sets the function that gets completions, and the receives of words.
func (p *pump) init(handle handler, from *receives) {
	p.handle, p.from, p.lock = handle, from, make(chan struct{}, 1)
}

// pass passes the first n completions in p.wcs to p.handle. The caller holds
// the pump.
func (p *pump) pass(n int, err error) {
	for i := 0; p.from != nil && i < n; i++ {
		p.got[i] = p.from.message(&p.wcs[i])
	}
	p.handle(p.wcs[:n], p.got[:n], err)
}

// tryLock locks the pump if it is free, and reports whether it was.
func (p *pump) tryLock() bool {
	select {
	case p.lock <- struct{}{}:
		return true
	default:
		return false
	}
}

// unlock unlocks the pump. If Hold has failed meanwhile, unlock calls woken, so
// that the caller of Hold tries again.
func (p *pump) unlock() {
	<-p.lock
	if p.wanted.Load() && p.wanted.Swap(false) && p.woken != nil {
		p.woken()
	}
}

// unlockAfterWait is unlock for a goroutine that has waited for the queue's
// events. As it may have taken the event that a thread waits for after Arm, it
// always calls woken.
func (p *pump) unlockAfterWait() {
	<-p.lock
	if p.woken != nil {
		p.woken()
	}
}

// create creates the completion queue. After an error, the caller must call
// close.
func (p *pump) create(device *ibverbs.Device, entries int, spin time.Duration) (err error) {
	if p.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	p.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: entries, Channel: p.channel, Spin: spin})
	p.wcs = make([]ibverbs.WC, completions)
	return err
}

// completions is the largest number of completions that are taken at a time.
const completions = 32

// close closes the completion queue and its channel.
func (p *pump) close() error {
	var errs []error
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.channel != nil {
		errs = append(errs, p.channel.Close())
	}
	return errors.Join(errs...)
}

// afterTaken makes the goroutine that holds the pump call f as soon as all
// completions that are in the queue now were taken.
func (p *pump) afterTaken(f func()) {
	p.mu.Lock()
	p.onTaken = append(p.onTaken, f)
	p.mu.Unlock()
	p.wake()
}

// wake makes the goroutine that holds the pump check all conditions.
func (p *pump) wake() {
	p.cq.Wake()
	if p.woken != nil {
		p.woken()
	}
}

// takeAll takes all completions that are in the queue, or waits until the
// goroutine that holds the pump has taken them.
func (p *pump) takeAll() {
	taken := make(chan struct{})
	p.afterTaken(func() { close(taken) })
	select {
	case <-taken:
	case p.lock <- struct{}{}:
		p.catchUp()
		p.unlock()
	}
}

// catchUp calls the functions that were passed to afterTaken, if any. Before
// that, it takes all completions in the queue. The caller holds the pump.
func (p *pump) catchUp() {
	p.mu.Lock()
	calls := p.onTaken
	p.onTaken = nil
	p.mu.Unlock()
	if len(calls) == 0 {
		return
	}
	p.empty()
	for _, f := range calls {
		f()
	}
}

// background is the context of most waits, which only CQ.Wake ends early.
var background = context.Background()

// takeUntil takes completions until the side s is woken. It returns an error if
// the deadline has passed or the connection is closed. The caller holds the
// pump.
func (p *pump) takeUntil(c *Conn, s *side) error {
	for {
		p.catchUp()
		switch {
		case fired(s.wake): // checked first, as the caller's condition may be met
			return nil
		case fired(c.closed):
			return net.ErrClosed
		case s.deadline.hasPassed():
			return os.ErrDeadlineExceeded
		}
		n, err := p.cq.Wait(background, p.wcs)
		if n > 0 || err != nil {
			p.pass(n, err)
		}
	}
}

// await waits until the function until returns true. Meanwhile it takes
// completions, or lets another goroutine take them. It calls until again when a
// request of the connection has completed or the connection has ended. await
// returns early if ctx ends or the queue fails. The caller has locked c.closer.
func (p *pump) await(ctx context.Context, c *Conn, until func() bool) {
	for !until() {
		select {
		case <-c.closer.wake:
			continue
		case <-ctx.Done():
			return
		case p.lock <- struct{}{}:
		}
		var failed error
		for failed == nil && !until() {
			p.catchUp()
			if until() {
				break
			}
			var n int
			n, failed = p.cq.Wait(ctx, p.wcs)
			if failed != nil && ctx.Err() != nil {
				p.pass(n, nil)
			} else {
				p.pass(n, failed)
			}
		}
		p.unlockAfterWait()
		if failed != nil {
			return
		}
	}
}

// poll takes the completions in the queue, unless another goroutine holds the
// pump.
func (p *pump) poll() {
	if !p.tryLock() {
		return
	}
	if n, err := p.cq.Poll(p.wcs); n > 0 || err != nil {
		p.pass(n, err)
	}
	p.unlock()
}

// refresh is like poll, and also calls the functions that were passed to
// afterTaken.
func (p *pump) refresh() {
	if !p.tryLock() {
		return
	}
	p.catchUp()
	if n, err := p.cq.Poll(p.wcs); n > 0 || err != nil {
		p.pass(n, err)
	}
	p.unlock()
}

// empty takes all completions in the queue. The caller holds the pump.
func (p *pump) empty() {
	for left := p.cq.Cap(); left > 0; {
		n, err := p.cq.Poll(p.wcs)
		if n > 0 || err != nil {
			p.pass(n, err)
		}
		if n == 0 {
			return
		}
		left -= n
	}
}
