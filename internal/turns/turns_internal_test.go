// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// As long as turns end in time, there are never more, however long the last has
// to wait.
func TestTurnsAreWaitedForWhileTheyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := turns{make(chan struct{}, 2), time.Second}
		var at int32
		var all sync.WaitGroup
		began := time.Now()
		for range 20 {
			all.Go(func() {
				defer two.begin()()
				if atomic.AddInt32(&at, 1) > 2 {
					t.Error("a third turn")
				}
				time.Sleep(time.Second - 1)
				atomic.AddInt32(&at, -1)
			})
		}
		all.Wait()
		require.Equal(t, 10*(time.Second-1), time.Since(began))
		require.Empty(t, two.places)
	})
}

// Long turns do not hold up others for long.
func TestTurnsAreNotWaitedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := turns{make(chan struct{}, 2), time.Second}
		began := time.Now()
		var ends []func()
		for range 6 { // none ends
			ends = append(ends, two.begin())
		}
		require.Equal(t, 2*time.Second, time.Since(began))
		for _, end := range ends[:4] { // which do not count any more
			end()
		}
		require.Len(t, two.places, 2)
		for _, end := range ends[4:] {
			end()
		}
		require.Empty(t, two.places)
	})
}
