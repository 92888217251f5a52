// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
)

// seats are for goroutines that occupy a processor of the runtime while they wait. There are few, and who wants one takes turns with the others.
type seats struct {
	n       int32
	taken   atomic.Int32
	refused atomic.Uint32
}

// Those who spin, and those who sleep in C. On a processor that is never idle the runtime does not look at the netpoller, which the others
// wait for.
var (
	spinning = seats{n: share(runtime.GOMAXPROCS(0))}
	napping  = seats{n: share(runtime.GOMAXPROCS(0))}
)

// share returns how many of the runtime's processors may be occupied by those who wait: a quarter, or one of two or three. Those whom they
// wait for, and the netpoller, need the others.
func share(processors int) int32 { return int32(max(processors/4, min(processors-1, 1))) }

// take reports whether the caller has a seat, which it leaves afterwards. Nobody has one twice in a row while others are refused. seen belongs to
// whom the seat is for.
func (s *seats) take(seen *atomic.Uint32) bool {
	if refused := s.refused.Load(); seen.Swap(refused) != refused {
		return false
	}
	if s.taken.Add(1) > s.n {
		s.taken.Add(-1)
		seen.Store(s.refused.Add(1))
		return false
	}
	return true
}

func (s *seats) leave() { s.taken.Add(-1) }
