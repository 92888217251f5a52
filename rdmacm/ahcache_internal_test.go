// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// slowKernel looks for the peer of each path for as long as it was told. It
// finds the peers with an even flow label.
type slowKernel struct {
	takes time.Duration

	mu        sync.Mutex
	now, most int // at once
	tried     []uint32
}

func (k *slowKernel) create(path ibverbs.AHAttr) (*ibverbs.AH, error) {
	k.mu.Lock()
	k.now++
	k.most = max(k.most, k.now)
	k.tried = append(k.tried, path.FlowLabel)
	k.mu.Unlock()
	time.Sleep(k.takes)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now--
	if path.FlowLabel%2 != 0 {
		return nil, syscall.ETIMEDOUT
	}
	return new(ibverbs.AH), nil
}

// withSlowKernel calls f in a bubble whose time passes when all its goroutines
// wait.
func withSlowKernel(t *testing.T, f func(t *testing.T, k *slowKernel, hs *handles)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &slowKernel{takes: time.Second}
		hs := new(handles)
		hs.init(k.create, func() error { return os.ErrClosed })
		f(t, k, hs)
		hs.makers.Wait()
		require.Zero(t, hs.making)
		queued, _ := hs.state()
		require.Zero(t, queued)
	})
}

func pathTo(label uint32) ibverbs.AHAttr { return ibverbs.AHAttr{Port: 1, FlowLabel: label} }

// ask calls get for each path, each call in a goroutine.
func (hs *handles) ask(ctx context.Context, labels ...uint32) <-chan error {
	results := make(chan error, len(labels))
	for _, label := range labels {
		go func() {
			h, err := hs.get(ctx, pathTo(label))
			if err == nil {
				hs.put(h)
			}
			results <- err
		}()
	}
	return results
}

// state returns how many handles wait to be made and how many are known.
func (hs *handles) state() (queued, known int) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return len(hs.queued), len(hs.known)
}

// odd returns n odd numbers.
func odd(n int) (labels []uint32) {
	for i := range n {
		labels = append(labels, uint32(2*i+1))
	}
	return labels
}

// However many peers are absent, the numbers of threads that look for them and
// of handles that wait are limited. Further calls fail at once.
func TestFewMakers(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		const more = 30
		results := hs.ask(t.Context(), odd(maxMakers+maxQueued+more)...)
		synctest.Wait()
		require.Len(t, results, more, "some fail at once")
		for range more {
			err := <-results
			require.ErrorIs(t, err, syscall.ENOBUFS)
			require.ErrorContains(t, err, "72 addresses")
		}
		for range maxMakers + maxQueued {
			require.ErrorIs(t, <-results, syscall.ETIMEDOUT)
		}
		require.Equal(t, maxMakers, k.most)
		require.Len(t, k.tried, maxMakers+maxQueued)
	})
}

// Paths that are known do not wait for paths that are not.
func TestKnownPathsDoNotWait(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		require.NoError(t, <-hs.ask(t.Context(), 2))
		hs.ask(t.Context(), odd(2*maxMakers)...)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, <-hs.ask(t.Context(), 2))
		require.Equal(t, start, time.Now())
	})
}

// A failure is known for a while. After that the kernel is asked again.
func TestFailureIsKept(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		require.ErrorIs(t, <-hs.ask(t.Context(), 1), syscall.ETIMEDOUT)
		start := time.Now()
		time.Sleep(unreachableFor)
		require.ErrorIs(t, <-hs.ask(t.Context(), 1), syscall.ETIMEDOUT)
		require.Len(t, k.tried, 1)
		require.Equal(t, unreachableFor, time.Since(start), "it does not wait")

		time.Sleep(time.Nanosecond)
		require.ErrorIs(t, <-hs.ask(t.Context(), 1), syscall.ETIMEDOUT)
		require.Len(t, k.tried, 2)
		require.Equal(t, unreachableFor+time.Nanosecond+k.takes, time.Since(start))
	})
}

// A handle that no goroutine waits for any more is not made, unless it was
// begun.
func TestMakersHeedContexts(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		ctx, cancel := context.WithCancel(t.Context())
		begun := hs.ask(t.Context(), odd(maxMakers)...)
		synctest.Wait()
		gone := hs.ask(ctx, 1001, 1003, 1003)
		stays := hs.ask(t.Context(), 2)
		synctest.Wait()
		queued, known := hs.state()
		require.Equal(t, 3, queued)
		cancel()
		for range 3 {
			require.ErrorIs(t, <-gone, context.Canceled)
		}
		queued, stillKnown := hs.state()
		require.Equal(t, 1, queued)
		require.Equal(t, known-2, stillKnown)
		require.NoError(t, <-stays)
		for range maxMakers {
			require.ErrorIs(t, <-begun, syscall.ETIMEDOUT)
		}
		require.Len(t, k.tried, maxMakers+1)
	})
}

// Close ends at once the waits for handles that were not begun. It waits for
// the others.
func TestCloseWhileMaking(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		begun := hs.ask(t.Context(), odd(maxMakers)...)
		synctest.Wait()
		waits := hs.ask(t.Context(), 101, 103)
		synctest.Wait()
		start := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- hs.close() }()
		for range 2 {
			require.ErrorIs(t, <-waits, os.ErrClosed)
		}
		require.Equal(t, start, time.Now())
		for range maxMakers {
			require.ErrorIs(t, <-begun, syscall.ETIMEDOUT)
		}
		require.NoError(t, <-closed)
		require.ErrorIs(t, <-hs.ask(t.Context(), 1), os.ErrClosed)
		require.Len(t, k.tried, maxMakers)
	})
}

// Failures do not pile up.
func TestFailuresAreForgotten(t *testing.T) {
	withSlowKernel(t, func(t *testing.T, k *slowKernel, hs *handles) {
		hs.limit = 10
		for _, label := range odd(50) {
			require.ErrorIs(t, <-hs.ask(t.Context(), label), syscall.ETIMEDOUT)
		}
		require.Len(t, hs.known, hs.limit)
	})
}
