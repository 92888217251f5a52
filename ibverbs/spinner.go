// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"
)

// DefaultSpin is how long CQ.Wait spins before it parks, unless CQConfig.Spin says otherwise.
const DefaultSpin = 20 * time.Microsecond

// spinner decides whether a wait is worth spinning for. It is if a completion has mostly come that
// soon lately: then spinning spares the way through the netpoller, which takes longer than the wait.
type spinner struct {
	limit time.Duration // how long to spin; not at all if it is 0
	most  int32         // how many goroutines of the program may then spin at a time
	trust atomic.Int32  // up to fullTrust; above 0: spin
	since atomic.Int64  // when a wait last had to park, by the clock of package datapath
	tired atomic.Bool   // the next wait has to
}

const (
	fullTrust = 8
	// One wait in vain costs the limit, which takes some that were not in vain to make up for.
	distrust = 2
	// After so long, a wait parks: who spins does not let others run, and on a processor that is never idle the runtime does not look at
	// the netpoller, which the others wait for.
	spinsFor = int64(100 * time.Millisecond)
)

// A goroutine that spins occupies a processor of the runtime, so at most a quarter of them may spin. With two or three, one may if the
// program has asked for it: those whom it waits for, and the netpoller, have to do with the others.
var (
	spinning   atomic.Int32
	processors = int32(runtime.GOMAXPROCS(0))
)

func (s *spinner) init(limit time.Duration) {
	s.limit, s.most = max(limit, 0), processors/4
	switch {
	case limit == 0:
		s.limit = DefaultSpin
	case processors > 1:
		s.most = max(s.most, 1)
	}
}

// begin reports whether the caller may spin. If so, it calls end afterwards.
func (s *spinner) begin() bool {
	if s.limit == 0 || s.most == 0 || s.trust.Load() <= 0 {
		return false
	}
	if s.tired.Load() && s.tired.Swap(false) {
		runtime.Gosched() // the completion may be there before the caller parks
		return false
	}
	if spinning.Add(1) > s.most {
		spinning.Add(-1)
		return false
	}
	return true
}

// end takes whether a completion has come, and the time, or 0 if it came at once.
func (s *spinner) end(paid bool, now int64) {
	spinning.Add(-1)
	s.learn(paid)
	if now-s.since.Load() > spinsFor {
		s.since.Store(now)
		s.tired.Store(true)
	}
}

// learn notes whether spinning has paid, or would have.
func (s *spinner) learn(paid bool) {
	trust := s.trust.Load()
	switch {
	case paid && trust < fullTrust:
		s.trust.Store(trust + 1)
	case !paid && trust > 0:
		s.trust.Store(trust - distrust)
	}
}
