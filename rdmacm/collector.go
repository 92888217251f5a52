// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// collector takes completions from a completion queue. Of the goroutines that
// wait for a request, one is the poller: it polls the queue and hands out the
// completions of all requests. A connection with its own queue has its own
// collector; the connections of a Pool share one.
//
// With a queue of its own, a poller that parks until a completion comes is not
// the poller meanwhile. Others may then be the poller for a short time, to poll
// for what they have just posted, so that a goroutine which waits for messages
// need not wake for each request of another one. They do not park as the
// poller, and completions do not wake the parked goroutine meanwhile.
type collector struct {
	cq      *ibverbs.CQ            // nil if the program polls
	wcs     []ibverbs.WC           // used by the poller
	turns   uint                   // number of times that a goroutine has become the poller; used by the poller
	yielded time.Duration          // time since started of the last call of runtime.Gosched; used by the poller
	deliver func(wcs []ibverbs.WC) // called by the poller

	polling atomic.Int32 // whether a goroutine is the poller: unpolled, polled or claimed

	// The goroutine that has parked as the poller.
	hasParked atomic.Bool   // whether there is one; changed by the poller
	back      chan struct{} // receives when it is the poller again, after polling was claimed
	awaited   *operation    // what it waits for, or nil if that is not an operation; used by the poller
	muted     bool          // whether completions do not wake it; used by the poller
	took      bool          // whether pollers have taken completions since it has parked; used by the poller

	wanting atomic.Int32 // number of goroutines that wait until they can become the poller
	// vacant receives when a goroutine has stopped being the poller while
	// others wait. The receiver calls becomePoller, even if its request is over
	// by then, because it may be the only goroutine that knows. vacant is nil
	// if the program polls, so that no goroutine becomes the poller.
	vacant chan struct{}

	takers   atomic.Int32  // number of goroutines in takeOver
	handover chan struct{} // receives when one of them has become the poller
}

// Values of collector.polling.
const (
	unpolled = iota // no goroutine is the poller
	polled          // one is
	claimed         // one is, beside a goroutine that has parked as the poller, and now waits to be the poller again
)

func newCollector(cq *ibverbs.CQ, deliver func([]ibverbs.WC)) *collector {
	return &collector{
		cq: cq, wcs: make([]ibverbs.WC, 16), deliver: deliver, back: make(chan struct{}, 1),
		vacant: make(chan struct{}, 1), handover: make(chan struct{}, 1),
	}
}

// The goroutine that stops being the poller calls runtime.Gosched when none has
// for yieldAfter. An immediate completion parks no goroutine, so a few
// goroutines could otherwise monopolize the processors. Each such call may wake
// a thread of Go's runtime, so it must be rare. It looks at the clock every
// turnsPerLook turns.
const (
	yieldAfter   = 500 * time.Microsecond
	turnsPerLook = 32
)

// becomePoller makes the caller the poller, unless another goroutine is the
// poller or the program polls. It is a compare and swap and not a mutex or a
// channel, because each transfer calls it.
func (c *collector) becomePoller() bool {
	if c.vacant == nil || !c.polling.CompareAndSwap(unpolled, polled) {
		return false
	}
	if c.hasParked.Load() && !c.muted {
		c.muted = sealed.Open(c.cq.Internals()).Mute()
	}
	return true
}

// becomeWaiter makes the caller the poller, as becomePoller does, unless
// another goroutine has parked as the poller. The caller may park.
func (c *collector) becomeWaiter() bool {
	if c.hasParked.Load() || !c.becomePoller() {
		return false
	}
	if c.hasParked.Load() {
		c.endTurn()
		return false
	}
	return true
}

// beforePark is called before the poller parks.
func (c *collector) beforePark() {
	c.took = false
	c.hasParked.Store(true)
	c.polling.Store(unpolled)
}

// afterPark makes the goroutine that has parked as the poller the poller again.
func (c *collector) afterPark() {
	for !c.polling.CompareAndSwap(unpolled, polled) {
		if c.polling.CompareAndSwap(polled, claimed) {
			<-c.back
			break
		}
	}
	c.hasParked.Store(false)
}

// want must be called before a goroutine waits for vacant. It returns true if
// the caller has become the poller, and need not wait. The caller calls unwant
// in any case.
func (c *collector) want() bool {
	c.wanting.Add(1)
	return c.becomeWaiter() // after wanting has changed, so that endTurn sees it or becomeWaiter succeeds
}

// unwant ends what want began.
func (c *collector) unwant() { c.wanting.Add(-1) }

// takeOver makes the caller the poller, after the current one has handed out
// the completions that it has taken. No other goroutine has parked as the
// poller then. The caller goes before the goroutines that wait for vacant. The
// program must not be the one that polls.
func (c *collector) takeOver() {
	c.takers.Add(1)
	defer c.takers.Add(-1)
	defer c.unwant()
	if c.want() {
		return
	}
	c.cq.Wake() // the poller may wait for completions that do not come
	for {
		select {
		case <-c.handover:
			return
		case <-c.vacant:
			if c.becomeWaiter() {
				return
			}
		}
	}
}

// endTurn makes the caller, which is the poller, stop being the poller.
func (c *collector) endTurn() {
	c.turns++
	yield := c.turns%turnsPerLook == 0 && c.mustYield(time.Since(started))
	switch {
	case c.hasParked.Load():
		c.endBeside()
	case c.takers.Load() > 0:
		c.handover <- struct{}{}
		return
	default:
		c.polling.Store(unpolled)
		if c.wanting.Load() > 0 {
			select {
			case c.vacant <- struct{}{}:
			default: // an earlier value is still there, and has the same effect
			}
		}
	}
	if yield {
		runtime.Gosched()
	}
}

// endBeside makes the caller, which is the poller beside the goroutine that has
// parked, stop being the poller. Completions wake that goroutine again, and its
// wait ends if it is over.
func (c *collector) endBeside() {
	failed := false // if so, the goroutine that has parked meets the error
	for c.muted {
		n, err := sealed.Open(c.cq.Internals()).Unmute(c.wcs)
		if n > 0 {
			c.took = true
			c.deliver(c.wcs[:n])
			continue
		}
		c.muted, failed = false, err != nil
	}
	ends := failed || c.awaited == nil && c.took || c.awaited != nil && c.awaited.isOver()
	if ends {
		c.took = false
	}
	if !c.polling.CompareAndSwap(polled, unpolled) {
		c.polling.Store(polled)
		c.back <- struct{}{}
	}
	if ends {
		c.cq.Wake() // perhaps in vain, if it has gone on by itself
	}
}

// mustYield reports whether the goroutine that stops being the poller at the
// time now must let others run.
func (c *collector) mustYield(now time.Duration) bool {
	if now-c.yielded < yieldAfter {
		return false
	}
	c.yielded = now
	return true
}
