// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShare(t *testing.T) {
	for processors, most := range map[int]int32{1: 0, 2: 1, 3: 1, 4: 1, 7: 1, 8: 2, 64: 16} {
		require.Equal(t, most, share(processors), "of %d processors", processors)
	}
}

func TestSeats(t *testing.T) {
	s := seats{n: 2}
	var seen [3]atomic.Uint32
	require.True(t, s.take(&seen[0]))
	require.True(t, s.take(&seen[1]))
	require.False(t, s.take(&seen[2]))
	s.leave()
	require.False(t, s.take(&seen[0]), "another one that was refused takes its turn")
	require.True(t, s.take(&seen[2]))
	s.leave()
	s.leave()
	require.True(t, s.take(&seen[0]))
	s.leave()
	require.Zero(t, s.taken.Load())
}
