// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
)

// seats limits the goroutines that occupy a processor of the runtime while they
// wait. Goroutines take turns on the seats.
type seats struct {
	n       int32
	taken   atomic.Int32
	refused atomic.Uint32
}

// The seats of goroutines that spin, and of those that sleep in C. If all
// processors were occupied, the runtime would not check the netpoller, which
// the other goroutines wait for.
var (
	spinning = seats{n: share(runtime.GOMAXPROCS(0))}
	napping  = seats{n: share(runtime.GOMAXPROCS(0))}
)

// share returns the number of seats for the runtime's processors: a quarter of
// them, or one of two or three. The goroutines that are waited for, and the
// netpoller, need the others.
func share(processors int) int32 { return int32(max(processors/4, min(processors-1, 1))) }

// take reports whether the caller gets a seat, which the caller leaves
// afterwards. If others were refused since the caller's last attempt, the
// caller lets them go first and is refused itself. seen is the caller's state.
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
