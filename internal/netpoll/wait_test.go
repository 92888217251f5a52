// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// descriptors are the kinds of descriptors to wait for. Each function returns
// the end that is read, one event as it is read, and what makes an event.
var descriptors = map[string]func(testing.TB) (fd, size int, signal func()){
	"pipe": func(tb testing.TB) (int, int, func()) {
		r, w := pipe(tb)
		return r, 1, func() { write(w, 1) }
	},
	"socketpair": func(tb testing.TB) (int, int, func()) {
		p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(tb, err)
		tb.Cleanup(func() {
			_ = syscall.Close(p[0])
			_ = syscall.Close(p[1])
		})
		return p[0], 1, func() { write(p[1], 1) }
	},
}

func TestWaitWakes(t *testing.T) {
	for name, descriptor := range descriptors {
		t.Run(name, func(t *testing.T) {
			fd, size, signal := descriptor(t)
			f := open(t, fd)
			buf := make([]byte, size)
			for range 10 {
				result := begin(context.Background(), f, nil, func() (bool, error) { return read(fd, buf) })
				parked(t, 1, 0)
				signal()
				require.NoError(t, end(t, result))
			}
		})
	}
}

func TestWaitTriesBeforeParking(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	// Twice, because the edge is reported once and the second byte has none.
	write(w, 1, 2)
	require.NoError(t, f.Wait(context.Background(), nil, reader(r)))
	require.NoError(t, f.Wait(context.Background(), nil, reader(r)))
}

func TestWaitReturnsErrorOfTry(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	broken := errors.New("broken")

	require.Same(t, broken, f.Wait(context.Background(), nil, func() (bool, error) { return false, broken }))
	require.Same(t, broken, f.Wait(context.Background(), nil, func() (bool, error) { return true, broken }))

	calls := 0
	result := begin(context.Background(), f, nil, func() (bool, error) {
		if calls++; calls == 1 {
			return false, nil
		}
		return false, broken
	})
	parked(t, 1, 0)
	write(w, 1)
	require.Same(t, broken, end(t, result))

	require.NoError(t, f.Wait(context.Background(), nil, reader(r)), "an error is not remembered")
}

func TestWaitTriesAgainAfterSpuriousWakeUp(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	wanted := byte(3)
	result := begin(context.Background(), f, nil, func() (bool, error) {
		buf := make([]byte, 1)
		for {
			done, err := read(r, buf)
			if !done || buf[0] == wanted {
				return done, err
			}
		}
	})
	for _, b := range []byte{1, 2, wanted} {
		parked(t, 1, 0)
		write(w, b)
	}
	require.NoError(t, end(t, result))
}

func TestWaiterTakesOver(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	poller := begin(context.Background(), f, nil, reader(r))
	parked(t, 1, 0)
	waiters := []<-chan error{
		begin(context.Background(), f, nil, reader(r)),
		begin(context.Background(), f, nil, reader(r)),
	}
	parked(t, 1, 2)

	// One write is one edge. Each poller takes one byte of it, so the
	// waiters must find theirs without being woken by the descriptor.
	write(w, 1, 2, 3)
	require.NoError(t, end(t, poller))
	for _, waiter := range waiters {
		require.NoError(t, end(t, waiter))
	}
}

func TestOnlyOneGoroutineTries(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	var running, overlaps atomic.Int32
	read := reader(r)
	var results []<-chan error
	for range 20 {
		results = append(results, begin(context.Background(), f, nil, func() (bool, error) {
			if running.Add(1) != 1 {
				overlaps.Add(1)
			}
			defer running.Add(-1)
			runtime.Gosched()
			return read()
		}))
	}
	for range results {
		write(w, 1)
	}
	for _, result := range results {
		require.NoError(t, end(t, result))
	}
	require.Zero(t, overlaps.Load())
}

func TestReadyWakesWaiter(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	buffered, closed := make(chan struct{}, 1), make(chan struct{})

	buf := make([]byte, 1)
	poller := begin(context.Background(), f, nil, func() (bool, error) {
		for {
			if done, err := read(r, buf); !done {
				return false, err
			}
			switch buf[0] {
			case 1:
				buffered <- struct{}{}
			case 2:
				close(closed)
			default:
				return true, nil
			}
		}
	})
	parked(t, 1, 0)
	first := begin(context.Background(), f, buffered, never)
	second := begin(context.Background(), f, closed, never)
	parked(t, 1, 2)
	write(w, 1)
	require.NoError(t, end(t, first))
	parked(t, 1, 1)
	write(w, 2)
	require.NoError(t, end(t, second))
	parked(t, 1, 0)
	write(w, 3)
	require.NoError(t, end(t, poller))
}

func TestReadyBeforeWait(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)
	ready := make(chan struct{}, 1)
	ready <- struct{}{}
	require.NoError(t, f.Wait(context.Background(), ready, never))
	require.Empty(t, ready, "Wait takes the value that ended it")
}

func TestKick(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)

	t.Run("makes the poller try again", func(t *testing.T) {
		var stop atomic.Bool
		var calls atomic.Int32
		result := begin(context.Background(), f, nil, func() (bool, error) {
			calls.Add(1)
			return stop.Load(), nil
		})
		parked(t, 1, 0)
		before := calls.Load()
		f.Kick()
		require.True(t, becomesTrue(func() bool { return calls.Load() > before }))
		stop.Store(true)
		f.Kick()
		require.NoError(t, end(t, result))
	})
	t.Run("makes the poller look at ready", func(t *testing.T) {
		for range 100 {
			// Not parked on purpose: a Kick at any moment must do.
			ready := make(chan struct{}, 1)
			result := begin(context.Background(), f, ready, never)
			ready <- struct{}{}
			f.Kick()
			require.NoError(t, end(t, result))
		}
	})
	t.Run("keeps a cancel", func(t *testing.T) {
		for range 100 {
			ctx, cancel := context.WithCancel(context.Background())
			result := begin(ctx, f, nil, never)
			go cancel()
			f.Kick()
			require.ErrorIs(t, end(t, result), context.Canceled)
		}
	})
	t.Run("without a poller", func(t *testing.T) {
		f.Kick()
		require.NoError(t, f.Wait(context.Background(), nil, func() (bool, error) { return true, nil }))
	})
}

func TestPanicInTryFreesPolling(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	// Cancellable, so that there is also something to disarm.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	calls := 0
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		_ = f.Wait(ctx, nil, func() (bool, error) {
			if calls++; calls == 1 {
				return false, nil
			}
			panic("try failed")
		})
	}()
	parked(t, 1, 0)
	write(w, 1)
	require.Equal(t, "try failed", <-panicked)
	require.NoError(t, end(t, begin(context.Background(), f, nil, reader(r))))
}

func TestGoexitInTryFreesPolling(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = f.Wait(context.Background(), nil, func() (bool, error) {
			runtime.Goexit()
			return true, nil
		})
	}()
	<-gone
	write(w, 1)
	require.NoError(t, end(t, begin(context.Background(), f, nil, reader(r))))
}
