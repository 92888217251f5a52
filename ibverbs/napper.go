// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"
)

// napper decides whether a wait sleeps in C for a moment before it parks. A goroutine that parks in the netpoller is woken by way of
// another thread, which costs several context switches and system calls; one that sleeps in C is woken by the kernel itself. But it
// occupies a thread and, until the runtime's monitor takes it away, a processor of the runtime. So only few sleep at a time, not for long,
// and only where completions have mostly come that soon lately.
type napper struct {
	off   bool
	trust trust
	naps  atomic.Uint32
	seen  atomic.Uint32
	paid  int // naps in a row that have paid; guarded by the queue's turn
}

const (
	// napFor is how long a nap takes at most. Nothing but an event ends it, so that deadlines and Close may have to wait for it.
	napFor = 500 * time.Microsecond
	// After so many naps, others are let run, as who naps never parks.
	napsInARow = 32
	// After so many naps in a row that have paid, the netpoller does not watch the channel any more: each event would wake one of its
	// threads, too.
	enoughNaps = 32
)

// isDue reports whether a nap is likely to pay.
func (n *napper) isDue() bool { return !n.off && napping.n > 0 && n.trust.holds() }

// begin reports whether the caller may nap. If so, it calls napping.leave afterwards.
func (n *napper) begin() bool {
	if n.naps.Add(1)%napsInARow == 0 {
		runtime.Gosched()
	}
	return napping.take(&n.seen)
}

// learn notes whether a nap has paid, and reports whether the netpoller need not watch any more.
func (n *napper) learn(paid bool) (enough bool) {
	n.trust.learn(paid)
	if n.paid++; !paid {
		n.paid = 0
	}
	if enough = n.paid == enoughNaps; enough {
		n.paid = 0
	}
	return enough
}
