// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// onProcessors sets how many the program starts with, until the test ends.
func onProcessors(t *testing.T, n int32) {
	before := processors
	processors = n
	t.Cleanup(func() {
		processors = before
		require.Zero(t, spinning.Load(), "each that began has ended")
	})
}

func TestSpinnerLearns(t *testing.T) {
	onProcessors(t, 4)
	var s spinner
	s.init(0)
	require.Equal(t, DefaultSpin, s.limit)
	require.False(t, s.begin(), "nothing is known yet")
	for range 2 * fullTrust {
		s.learn(true)
	}
	vain := 0
	for ; s.begin(); vain++ {
		s.end(false, 0)
	}
	require.Equal(t, fullTrust/distrust, vain)
	s.learn(false)
	s.learn(true)
	require.True(t, s.begin(), "what was in vain is soon forgotten")
	s.end(true, 0)
}

func TestSpinnerParksOnceInAWhile(t *testing.T) {
	onProcessors(t, 4)
	var s spinner
	s.init(time.Microsecond)
	s.learn(true)
	parked := 0
	const step = spinsFor / 10
	for now := spinsFor + 1; now < 4*spinsFor; now += step {
		if s.begin() {
			s.end(true, now)
		} else {
			parked++
		}
	}
	require.Equal(t, 3, parked)
}

// With few processors, a wait takes no detour unless the program has asked for it.
func TestSpinnersOnFewProcessors(t *testing.T) {
	for _, tt := range []struct {
		processors int32
		limit      time.Duration
		most       int
	}{
		{1, 0, 0}, {1, DefaultSpin, 0}, {2, 0, 0}, {2, DefaultSpin, 1}, {3, 0, 0}, {3, MaxSpin, 1}, {4, 0, 1}, {7, MaxSpin, 1}, {8, 0, 2}, {8, -1, 0},
	} {
		onProcessors(t, tt.processors)
		var s spinner
		s.init(tt.limit)
		s.learn(true)
		n := 0
		for s.begin() {
			n++
		}
		for range n {
			s.end(true, 0)
		}
		require.Equal(t, tt.most, n, "%+v", tt)
	}
}

func TestFewSpin(t *testing.T) {
	onProcessors(t, 8)
	spinners := make([]spinner, 3)
	for i := range spinners {
		spinners[i].init(time.Microsecond)
		spinners[i].learn(true)
	}
	require.True(t, spinners[0].begin())
	require.True(t, spinners[1].begin())
	require.False(t, spinners[2].begin())
	spinners[0].end(true, 0)
	require.True(t, spinners[2].begin())
	spinners[1].end(true, 0)
	spinners[2].end(true, 0)

	var never spinner
	never.init(-1)
	never.learn(true)
	require.False(t, never.begin())
}
