// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTurns(t *testing.T) {
	few := turns{make(chan struct{}, 3), time.Hour}
	var at, most atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			defer few.begin()()
			n := at.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			at.Add(-1)
		})
	}
	all.Wait()
	require.LessOrEqual(t, most.Load(), int32(3))
	require.Empty(t, few.places)
}

// One who takes long holds up nobody for long.
func TestTurnsAreNotWaitedForInVain(t *testing.T) {
	one := turns{make(chan struct{}, 1), time.Millisecond}
	end := one.begin()
	one.begin()() // although the first has not ended
	require.Len(t, one.places, 1)
	end()
	require.Empty(t, one.places)
}
