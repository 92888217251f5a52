// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// letSpin sets how many goroutines may spin at a time, until the test ends.
func letSpin(t *testing.T, n int32) {
	before := spinning.n
	spinning.n = n
	t.Cleanup(func() {
		spinning.n = before
		require.Zero(t, spinning.taken.Load(), "each that began has ended")
	})
}

func TestSpinnerLearns(t *testing.T) {
	letSpin(t, 1)
	var s spinner
	s.init(0)
	require.Equal(t, DefaultSpin, s.limit)
	require.False(t, s.begin(), "nothing is known yet")
	for range 2 * fullTrust {
		s.learn(true)
	}
	vain := 0
	for ; s.begin(); vain++ {
		s.end(false)
	}
	require.Equal(t, fullTrust/distrust, vain)
	s.learn(false)
	s.learn(true)
	require.True(t, s.begin(), "what was in vain is soon forgotten")
	s.end(true)
}

func TestSpinnerParksOnceInAWhile(t *testing.T) {
	letSpin(t, 1)
	var s spinner
	s.init(time.Microsecond)
	s.learn(true)
	parked := 0
	for range 3 * (spinsInARow + 1) {
		if s.begin() {
			s.end(true)
		} else {
			parked++
		}
	}
	require.Equal(t, 3, parked)
}

// With a single processor, a wait takes no detour.
func TestNobodySpins(t *testing.T) {
	letSpin(t, 0)
	var s spinner
	s.init(time.Microsecond)
	s.learn(true)
	for range 3 * (spinsInARow + 1) {
		require.False(t, s.begin())
	}
	require.Zero(t, s.waits.Load())
}

func TestFewSpin(t *testing.T) {
	letSpin(t, 2)
	spinners := make([]spinner, 3)
	for i := range spinners {
		spinners[i].init(time.Microsecond)
		spinners[i].learn(true)
	}
	require.True(t, spinners[0].begin())
	require.True(t, spinners[1].begin())
	require.False(t, spinners[2].begin())
	spinners[0].end(true)
	require.False(t, spinners[0].begin(), "another one that was refused takes its turn")
	require.True(t, spinners[2].begin())
	spinners[1].end(true)
	spinners[2].end(true)
	require.True(t, spinners[0].begin())
	spinners[0].end(true)

	var never spinner
	never.init(-1)
	never.learn(true)
	require.False(t, never.begin())
}
