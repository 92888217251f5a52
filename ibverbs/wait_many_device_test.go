package ibverbs_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// bound is far more than a wait takes to end (which the tests log), so that a
// slow machine is no failure.
const bound = 5 * time.Second

// Goroutines that wait for completion queues hold no threads, and each wait
// ends soon after its cancel and after its queue's Close.
func TestManyWaitersHoldNoThreads(t *testing.T) {
	const waiters = 200
	r := open(t)
	for name, channels := range map[string]int{"a channel each": waiters, "one channel": 1, "ten channels": 10} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			var chs []*ibverbs.CompChannel
			for range channels {
				chs = append(chs, r.channel())
			}
			var cqs []*ibverbs.CQ
			for i := range waiters {
				cqs = append(cqs, r.cq(1, chs[i%channels]))
			}

			type result struct {
				i   int
				at  time.Time
				err error
			}
			results := make(chan result, waiters)
			start := func(ctx func(i int) context.Context) {
				for i, cq := range cqs {
					go func() {
						err := waitErr(ctx(i), cq)
						results <- result{i, time.Now(), err}
					}()
				}
				for _, cq := range cqs {
					untilWaiting(t, cq)
				}
			}
			one := func() result {
				select {
				case got := <-results:
					return got
				case <-time.After(patience):
					require.FailNow(t, "a wait did not end")
					return result{}
				}
			}

			before := testdevice.Threads(t)
			cancels := make([]context.CancelFunc, waiters)
			ctxs := make([]context.Context, waiters)
			for i := range ctxs {
				ctxs[i], cancels[i] = context.WithCancel(t.Context())
			}
			start(func(i int) context.Context { return ctxs[i] })
			var slowest time.Duration
			for i, cancel := range cancels { // one at a time
				begin := time.Now()
				cancel()
				got := one()
				require.Equal(t, i, got.i, "only this one ends")
				require.ErrorIs(t, got.err, context.Canceled)
				slowest = max(slowest, got.at.Sub(begin))
			}
			require.Less(t, slowest, bound)
			t.Logf("slowest of %d cancels, one at a time: %v", waiters, slowest)

			ctx, cancel := context.WithCancel(t.Context())
			start(func(int) context.Context { return ctx })
			begin := time.Now()
			cancel()
			slowest = 0
			for range waiters {
				got := one()
				require.ErrorIs(t, got.err, context.Canceled)
				slowest = max(slowest, got.at.Sub(begin))
			}
			require.Less(t, slowest, bound)
			t.Logf("%d waits of one context, all ended after: %v", waiters, slowest)

			start(func(int) context.Context { return limit(t) })
			slowest = 0
			threads := testdevice.Threads(t)
			for i, cq := range cqs {
				begin := time.Now()
				require.NoError(t, cq.Close())
				got := one()
				require.Equal(t, i, got.i)
				require.True(t, errors.Is(got.err, os.ErrClosed), "%v", got.err)
				slowest = max(slowest, got.at.Sub(begin))
			}
			require.Less(t, slowest, bound)
			t.Logf("slowest of %d closes, one at a time: %v", waiters, slowest)
			t.Logf("threads: %d before, %d while %d wait", before, threads, waiters)
			require.Less(t, threads-before, 20, "threads must not follow the number of waiters")
		})
	}
}
