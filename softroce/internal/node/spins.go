// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import "time"

// spins tells whether goroutines that attended to the bell could lately have
// spun until it was rung or their waits were over. It decides as a wait of
// package ibverbs does.
type spins struct {
	// score rises by 1 with each silence that is over within the limit for
	// spins, to at most bestScore, and falls by failureCost with each other.
	score  int
	nearly int // number of silences that took a few times the limit
	// yielded is the time at which yields last returned true.
	yielded time.Duration
}

const (
	bestScore   = 8
	failureCost = 2
	// nearlySpins is the time, as a multiple of the limit, within which a
	// goroutine that parked nearly saw what a spin sees: if both ends park, a
	// message takes two wake-ups. After nearlyPerSpin such silences, one spins.
	nearlySpins   = 4
	nearlyPerSpin = 16
	// yieldAfter is the time after which a wait that spins lets other
	// goroutines run.
	yieldAfter = 500 * time.Microsecond
)

// pay reports whether the next silence is likely to be over soon.
func (s *spins) pay() bool { return s.score > 0 }

// note records how long the bell was silent. limit is the longest time of a
// spin.
func (s *spins) note(took, limit time.Duration) {
	if took <= limit {
		s.score = min(s.score+1, bestScore)
		return
	}
	s.score = max(s.score-failureCost, 0)
	if took <= nearlySpins*limit {
		if s.nearly++; s.nearly%nearlyPerSpin == 0 {
			s.score = max(s.score, 1)
		}
	}
}

// yields reports whether the goroutine, whose wait has spun until the time now,
// must let others run. That may wake a thread of Go's runtime, so it is rare.
func (s *spins) yields(now time.Duration) bool {
	if now-s.yielded < yieldAfter {
		return false
	}
	s.yielded = now
	return true
}
