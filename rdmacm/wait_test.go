package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// waiters is how many goroutines wait at once.
const waiters = 200

// waiter is something to wait for and to close.
type waiter struct {
	wait  func(context.Context) error
	close func() error
}

func TestWaitingCostsNoThreads(t *testing.T) {
	needDevice(t)
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	for _, tt := range []struct {
		name string
		open func(t *testing.T) waiter
	}{
		{"event channels", func(t *testing.T) waiter {
			ch, err := rdmacm.NewEventChannel()
			require.NoError(t, err)
			return waiter{func(ctx context.Context) error { _, err := ch.Next(ctx); return err }, ch.Close}
		}},
		{"completion queues", func(t *testing.T) waiter {
			ch, err := devices[0].CreateCompChannel()
			require.NoError(t, err)
			cq, err := devices[0].CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: ch})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ch.Close()) })
			return waiter{func(ctx context.Context) error {
				_, err := cq.Wait(ctx, make([]ibverbs.WC, 1))
				return err
			}, cq.Close}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { testWaiters(t, tt.open) })
	}
}

func testWaiters(t *testing.T, open func(*testing.T) waiter) {
	var all []waiter
	for range waiters {
		w := open(t)
		t.Cleanup(func() { require.NoError(t, w.close()) })
		all = append(all, w)
	}
	before := testdevice.Threads(t)
	parked := parkedGoroutines()
	type result struct {
		n   int
		at  time.Time
		err error
	}
	results := make(chan result)
	cancels := make([]context.CancelFunc, waiters)
	for n, w := range all {
		var ctx context.Context
		ctx, cancels[n] = context.WithCancel(t.Context())
		defer cancels[n]()
		go func() {
			err := w.wait(ctx)
			results <- result{n, time.Now(), err}
		}()
	}
	require.Eventually(t, func() bool { return parkedGoroutines() == parked+waiters }, patience, 10*time.Millisecond)
	threads := testdevice.Threads(t)
	t.Logf("threads: %d before, %d with %d waiting goroutines", before, threads, waiters)
	require.Less(t, threads, before+10)

	var canceled, closed time.Duration
	for n, w := range all { // one by one, half by cancel and half by Close
		start := time.Now()
		if n%2 == 0 {
			cancels[n]()
			r := <-results
			require.Equal(t, n, r.n)
			require.ErrorIs(t, r.err, context.Canceled)
			canceled = max(canceled, r.at.Sub(start))
		} else {
			closing := make(chan error, 1)
			go func() { closing <- w.close() }()
			r := <-results
			require.Equal(t, n, r.n)
			require.ErrorIs(t, r.err, os.ErrClosed)
			closed = max(closed, r.at.Sub(start))
			require.NoError(t, <-closing)
		}
	}
	t.Logf("longest until a wait ended: %v after cancel, %v after Close", canceled, closed)
	require.Less(t, max(canceled, closed), 5*time.Second)
}

// parkedGoroutines counts the goroutines that wait on the netpoller.
func parkedGoroutines() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("[IO wait"))
}

// All waits end together when one context does.
func TestOneContextEndsAllWaits(t *testing.T) {
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, &rdmacm.Config{RecvQueue: waiters}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	results := make(chan error)
	for range waiters {
		pending, err := client.PostRecv()
		require.NoError(t, err)
		each(results, func() error {
			_, err := pending.Wait(ctx)
			return err
		})
	}
	before := testdevice.Threads(t)
	require.Eventually(t, func() bool { return rdmacm.HasLeader(client) }, patience, time.Millisecond)
	cause := errors.New("enough")
	start := time.Now()
	cancel(cause)
	for range waiters {
		require.ErrorIs(t, <-results, cause)
	}
	took := time.Since(start)
	t.Logf("%d waits on one connection ended within %v", waiters, took)
	require.Less(t, took, 5*time.Second)
	require.Less(t, testdevice.Threads(t), before+10)
}
