// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// collector takes completions from a completion queue. Of the goroutines that
// wait for a request, one is the poller: it polls the queue and hands out the
// completions of all requests. A connection with its own queue has its own
// collector; the connections of a Pool share one.
type collector struct {
	cq      *ibverbs.CQ            // nil if the program polls
	wcs     []ibverbs.WC           // used by the poller
	turns   uint                   // number of times that a goroutine has become the poller; used by the poller
	yielded time.Duration          // time since started of the last call of runtime.Gosched; used by the poller
	deliver func(wcs []ibverbs.WC) // called by the poller

	polling atomic.Bool  // whether a goroutine is the poller
	wanting atomic.Int32 // number of goroutines that wait until they can become the poller
	// vacant receives when a goroutine has stopped being the poller while
	// others wait. The receiver calls becomePoller, even if its request is over
	// by then, because it may be the only goroutine that knows. vacant is nil
	// if the program polls, so that no goroutine becomes the poller.
	vacant chan struct{}

	takers   atomic.Int32  // number of goroutines in takeOver
	handover chan struct{} // receives when one of them has become the poller
}

func newCollector(cq *ibverbs.CQ, deliver func([]ibverbs.WC)) *collector {
	return &collector{cq: cq, wcs: make([]ibverbs.WC, 16), deliver: deliver, vacant: make(chan struct{}, 1), handover: make(chan struct{}, 1)}
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
	return c.vacant != nil && c.polling.CompareAndSwap(false, true)
}

// want must be called before a goroutine waits for vacant. It returns true if
// the caller has become the poller, and need not wait. The caller calls unwant
// in any case.
func (c *collector) want() bool {
	c.wanting.Add(1)
	return c.becomePoller() // after wanting has changed, so that endTurn sees it or becomePoller succeeds
}

// unwant ends what want began.
func (c *collector) unwant() { c.wanting.Add(-1) }

// takeOver makes the caller the poller, after the current one has handed out
// the completions that it has taken. It goes before the goroutines that wait
// for vacant. The program must not be the one that polls.
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
			if c.becomePoller() {
				return
			}
		}
	}
}

// endTurn makes the caller, which is the poller, stop being the poller.
func (c *collector) endTurn() {
	c.turns++
	yield := c.turns%turnsPerLook == 0 && c.mustYield(time.Since(started))
	if c.takers.Load() > 0 {
		c.handover <- struct{}{}
		return
	}
	c.polling.Store(false)
	if c.wanting.Load() > 0 {
		select {
		case c.vacant <- struct{}{}:
		default: // an earlier value is still there, and has the same effect
		}
	}
	if yield {
		runtime.Gosched()
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
