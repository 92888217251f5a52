// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"
)

// napper decides whether a wait sleeps in C for a moment before it parks. A
// goroutine that parks in the netpoller is woken by way of another thread,
// which costs several context switches and system calls. A goroutine that
// sleeps in C is woken by the kernel itself. But it occupies a thread and,
// until the runtime's monitor takes it away, a processor of the runtime. So
// only few goroutines nap at a time, for a short time, and only if recent
// completions usually came that soon.
type napper struct {
	off   bool
	trust trust
	naps  atomic.Uint32
	seen  atomic.Uint32
	paid  int // number of naps in a row that have paid: ended with a completion; guarded by the queue's turn
}

const (
	// napFor is the longest time of a nap. Only an event ends a nap earlier, so
	// deadlines and Close may have to wait for it.
	napFor = 500 * time.Microsecond
	// napsInARow is the number of naps after which other goroutines get to run,
	// as a goroutine that naps never parks.
	napsInARow = 32
	// enoughNaps is the number of naps in a row that must have paid before the
	// netpoller stops watching the channel. While it watches, each event also
	// wakes one of the runtime's threads for nothing.
	enoughNaps = 32
)

// isDue reports whether a nap is likely to pay: to end with a completion.
func (n *napper) isDue() bool { return !n.off && napping.n > 0 && n.trust.holds() }

// begin reports whether the caller may nap. If so, the caller calls
// napping.leave afterwards.
func (n *napper) begin() bool {
	if n.naps.Add(1)%napsInARow == 0 {
		runtime.Gosched()
	}
	return napping.take(&n.seen)
}

// learn records whether a nap has paid, or would have. It returns true if the
// netpoller need not watch the channel any more.
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
