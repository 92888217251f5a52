// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errCause = errors.New("the peer has gone")

// endings are the ways in which a context ends a wait. Each function returns a
// context and what ends it.
var endings = map[string]struct {
	start func() (context.Context, func())
	is    []error
	not   []error
	text  string
}{
	"cancel": {
		start: func() (context.Context, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			return ctx, cancel
		},
		is:   []error{context.Canceled},
		not:  []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, os.ErrClosed},
		text: "context canceled",
	},
	"cancel with cause": {
		start: func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return ctx, func() { cancel(errCause) }
		},
		is:   []error{context.Canceled, errCause},
		not:  []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, os.ErrClosed},
		text: "context canceled: the peer has gone",
	},
	"deadline": {
		start: func() (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			return ctx, func() { <-ctx.Done(); cancel() }
		},
		is:   []error{context.DeadlineExceeded, os.ErrDeadlineExceeded},
		not:  []error{context.Canceled, os.ErrClosed},
		text: "context deadline exceeded",
	},
	"deadline with cause": {
		start: func() (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, errCause)
			return ctx, func() { <-ctx.Done(); cancel() }
		},
		is:   []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, errCause},
		not:  []error{context.Canceled, os.ErrClosed},
		text: "context deadline exceeded: the peer has gone",
	},
	"foreign context": {
		start: func() (context.Context, func()) {
			ctx := &foreignContext{Context: context.Background(), done: make(chan struct{})}
			return ctx, ctx.cancel
		},
		is:   []error{context.Canceled},
		not:  []error{os.ErrDeadlineExceeded},
		text: "context canceled",
	},
}

// foreignContext is a Context that package context does not know.
type foreignContext struct {
	context.Context
	mu   sync.Mutex
	err  error
	done chan struct{}
}

func (c *foreignContext) Done() <-chan struct{} { return c.done }

func (c *foreignContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *foreignContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = context.Canceled
	close(c.done)
}

func TestContextEndsWait(t *testing.T) {
	for name, ending := range endings {
		check := func(t *testing.T, err error) {
			t.Helper()
			for _, target := range ending.is {
				require.ErrorIs(t, err, target)
			}
			for _, target := range ending.not {
				require.NotErrorIs(t, err, target)
			}
			require.EqualError(t, err, ending.text)

			var timeout net.Error
			require.Equal(t, errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout())
		}
		t.Run(name+"/poller", func(t *testing.T) {
			r, w := pipe(t)
			f := open(t, r)
			ctx, finish := ending.start()
			result := begin(ctx, f, nil, reader(r))
			finish()
			check(t, end(t, result))

			write(w, 1)
			require.NoError(t, end(t, begin(context.Background(), f, nil, reader(r))))
		})
		t.Run(name+"/waiter", func(t *testing.T) {
			r, w := pipe(t)
			f := open(t, r)
			poller := begin(context.Background(), f, nil, reader(r))
			parked(t, 1, 0)
			ctx, finish := ending.start()
			waiter := begin(ctx, f, nil, never)
			finish()
			check(t, end(t, waiter))

			write(w, 1)
			require.NoError(t, end(t, poller))
		})
		t.Run(name+"/before Wait", func(t *testing.T) {
			r, _ := pipe(t)
			f := open(t, r)
			ctx, finish := ending.start()
			finish()
			check(t, f.Wait(ctx, nil, func() (bool, error) {
				t.Error("try called")
				return true, nil
			}))
		})
	}
}

func TestParkedPollerIsCanceled(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	result := begin(ctx, f, nil, never)
	parked(t, 1, 0)
	cancel()
	require.ErrorIs(t, end(t, result), context.Canceled)
}

func TestParkedWaiterIsCanceled(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	poller := begin(context.Background(), f, nil, reader(r))
	parked(t, 1, 0)
	ctx, cancel := context.WithCancel(context.Background())
	waiter := begin(ctx, f, make(chan struct{}), never)
	parked(t, 1, 1)
	cancel()
	require.ErrorIs(t, end(t, waiter), context.Canceled)
	write(w, 1)
	require.NoError(t, end(t, poller))
}

func TestWaiterTakesOverFromCanceledPoller(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	poller := begin(ctx, f, nil, never)
	parked(t, 1, 0)
	waiter := begin(context.Background(), f, nil, reader(r))
	parked(t, 1, 1)
	cancel()
	require.ErrorIs(t, end(t, poller), context.Canceled)
	parked(t, 1, 0)
	write(w, 1)
	require.NoError(t, end(t, waiter))
}

func TestDoneTryWinsOverCancel(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	for range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		calls := 0
		result := begin(ctx, f, nil, func() (bool, error) {
			if calls++; calls == 1 {
				return false, nil // so that the context is watched
			}
			cancel()
			return reader(r)()
		})
		parked(t, 1, 0)
		write(w, 1)
		require.NoError(t, end(t, result))
	}
}

// endsWhenWatched is done, and fires ready, as soon as Done is called:
// a waiter's select then finds both.
type endsWhenWatched struct {
	*foreignContext
	ready chan struct{}
}

func (c endsWhenWatched) Done() <-chan struct{} {
	c.ready <- struct{}{}
	c.cancel()
	return c.done
}

func TestReadyWinsOverCancel(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	poller := begin(context.Background(), f, nil, reader(r))
	parked(t, 1, 0)
	for range 100 {
		ctx := endsWhenWatched{
			&foreignContext{Context: context.Background(), done: make(chan struct{})},
			make(chan struct{}, 1),
		}
		require.NoError(t, end(t, begin(ctx, f, ctx.ready, never)))
		require.Empty(t, ctx.ready)
	}
	write(w, 1)
	require.NoError(t, end(t, poller))
}

// A cancel that comes when its poller is about to stop must not end the sleep
// of the next one.
func TestLateCancelSparesNextPoller(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	canceled := 0
	for range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		first := begin(ctx, f, nil, reader(r))
		go func() {
			defer close(done)
			cancel()
		}()
		write(w, 1)
		if err := end(t, first); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, f.Wait(context.Background(), nil, reader(r)), "the byte is still there")
			canceled++
		}
		require.True(t, f.Untouched())

		// Nothing may come later either.
		<-done
		require.True(t, becomesTrue(func() bool { return count("", "netpoll.New.func") == 0 }))
		require.True(t, f.Untouched())
	}
	t.Logf("%d of 500 canceled", canceled)
}
