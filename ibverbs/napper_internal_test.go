// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// letNap sets how many goroutines may nap at a time, until the test ends.
func letNap(t *testing.T, n int32) {
	before := napping.n
	napping.n = n
	t.Cleanup(func() {
		napping.n = before
		require.Zero(t, napping.taken.Load(), "each that began has ended")
	})
}

func TestNapperLearns(t *testing.T) {
	letNap(t, 1)
	var n napper
	require.False(t, n.isDue(), "nothing is known yet")
	unwatch := 0
	for i := range 3 * enoughNaps {
		if n.learn(true) {
			unwatch++
			require.Equal(t, unwatch*enoughNaps-1, i)
		}
		require.True(t, n.isDue())
	}
	require.Equal(t, 3, unwatch)

	vain := 0
	for ; n.isDue(); vain++ {
		require.False(t, n.learn(false))
	}
	require.Equal(t, fullTrust/distrust, vain)
	for range enoughNaps - 1 {
		require.False(t, n.learn(true))
	}
	require.False(t, n.learn(false), "one in vain begins the row again")
	for range enoughNaps - 1 {
		require.False(t, n.learn(true))
	}

	n.off = true
	require.False(t, n.isDue())
}

func TestFewNap(t *testing.T) {
	letNap(t, 1)
	var n napper
	n.learn(true)
	require.True(t, n.begin())
	require.False(t, n.begin())
	napping.leave()
	require.True(t, n.begin())
	napping.leave()

	letNap(t, 0)
	require.False(t, n.isDue(), "with a single processor")
}
