// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRounds(t *testing.T) {
	for n := range 20 {
		if n < 2 {
			continue
		}
		all := rounds(n)
		require.Len(t, all, n-1+n%2, n)
		seen := map[[2]int]bool{}
		for _, round := range all {
			busy := map[int]bool{}
			for _, pair := range round {
				require.Less(t, pair[0], pair[1])
				require.Less(t, pair[1], n)
				require.False(t, seen[pair], "%d: %v", n, pair)
				require.False(t, busy[pair[0]] || busy[pair[1]], "%d: %v", n, round)
				seen[pair], busy[pair[0]], busy[pair[1]] = true, true, true
			}
		}
		require.Len(t, seen, n*(n-1)/2, n)
	}
}
