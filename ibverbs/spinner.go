// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"
)

// DefaultSpin is how long CQ.Wait spins before it parks if CQConfig.Spin is 0.
const DefaultSpin = 50 * time.Microsecond

// spinner decides whether a wait spins. It does if recent completions usually
// came within the limit: spinning then avoids the way through the netpoller,
// which takes longer than the wait.
type spinner struct {
	limit time.Duration // how long to spin; 0 for never
	trust trust
	waits atomic.Uint32
	seen  atomic.Uint32
}

const (
	// spinsInARow is the number of spinning waits after which one parks. A
	// spinning goroutine does not let others run, and on a processor that is
	// never idle the runtime does not check the netpoller, which the others
	// wait for.
	spinsInARow = 32
)

func (s *spinner) init(limit time.Duration) {
	if limit == 0 {
		limit = DefaultSpin
	}
	s.limit = max(limit, 0)
}

// begin reports whether the caller may spin. If so, the caller calls end
// afterwards.
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

// learn records whether spinning has paid, or would have.
func (s *spinner) learn(paid bool) { s.trust.learn(paid) }

// trust tells whether a way of waiting has usually paid lately.
type trust struct{ atomic.Int32 }

const (
	fullTrust = 8
	// A wait in vain costs the whole limit. It takes several paid waits to make
	// up for that.
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
