// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"
)

// DefaultSpin is how long CQ.Wait spins before it parks, unless CQConfig.Spin says otherwise.
const DefaultSpin = 50 * time.Microsecond

// spinner decides whether a wait is worth spinning for. It is if a completion has mostly come that
// soon lately: then spinning spares the way through the netpoller, which takes longer than the wait.
type spinner struct {
	limit time.Duration // how long to spin; not at all if it is 0
	trust trust
	waits atomic.Uint32
	seen  atomic.Uint32
}

const (
	// After so many waits that spun, one parks: who spins does not let others run, and on a processor that is never
	// idle the runtime does not look at the netpoller, which the others wait for.
	spinsInARow = 32
)

func (s *spinner) init(limit time.Duration) {
	if limit == 0 {
		limit = DefaultSpin
	}
	s.limit = max(limit, 0)
}

// begin reports whether the caller may spin. If so, it calls end afterwards.
func (s *spinner) begin() bool {
	if s.limit == 0 || spinning.n == 0 || !s.trust.holds() {
		return false
	}
	if s.waits.Add(1)%(spinsInARow+1) == 0 {
		runtime.Gosched() // the completion may be there before the caller parks
		return false
	}
	return spinning.take(&s.seen)
}

func (s *spinner) end(paid bool) {
	spinning.leave()
	s.learn(paid)
}

// learn notes whether spinning has paid, or would have.
func (s *spinner) learn(paid bool) { s.trust.learn(paid) }

// trust says whether what to do while waiting has mostly paid lately.
type trust struct{ atomic.Int32 }

const (
	fullTrust = 8
	// One wait in vain costs the limit, which takes some that were not in vain to make up for.
	distrust = 2
)

func (t *trust) holds() bool { return t.Load() > 0 }

func (t *trust) learn(paid bool) {
	now := t.Load()
	switch {
	case paid && now < fullTrust:
		t.Store(now + 1)
	case !paid && now > 0:
		t.Store(now - distrust)
	}
}
