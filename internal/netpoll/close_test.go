// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

func TestCloseWakesAll(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	results := []<-chan error{begin(context.Background(), f, nil, never)}
	parked(t, 1, 0)
	for range 10 {
		results = append(results,
			begin(context.Background(), f, nil, never),
			begin(ctx, f, make(chan struct{}), never))
	}
	parked(t, 1, 20)
	require.NoError(t, f.Close())
	for _, result := range results {
		err := end(t, result)
		require.ErrorIs(t, err, os.ErrClosed)
		require.EqualError(t, err, t.Name()+": file already closed")
	}
}

// Not parked on purpose: Close may come at any moment.
func TestCloseAtAnyMoment(t *testing.T) {
	r, _ := pipe(t)
	for range 200 {
		f, err := netpoll.New(r, t.Name())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		var closed, late atomic.Bool
		try := func() (bool, error) {
			if closed.Load() {
				late.Store(true)
			}
			return false, nil
		}
		var results []<-chan error
		for range 3 {
			results = append(results,
				begin(context.Background(), f, nil, try),
				begin(ctx, f, nil, try))
		}
		go cancel()
		require.NoError(t, f.Close())
		closed.Store(true)
		for i, result := range results {
			err := end(t, result)
			if i%2 == 0 {
				require.ErrorIs(t, err, os.ErrClosed)
			} else {
				require.Error(t, err)
			}
		}
		require.False(t, late.Load(), "try called after Close had returned")
	}
}

func TestCloseWaitsForTry(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)
	entered, leave := make(chan struct{}), make(chan struct{})
	var left atomic.Bool
	wait := begin(context.Background(), f, nil, func() (bool, error) {
		close(entered)
		<-leave
		left.Store(true)
		return true, nil
	})
	<-entered

	type closing struct {
		err     error
		tooSoon bool
	}
	const closers = 5
	closings := make(chan closing, closers)
	for range closers {
		go func() {
			err := f.Close()
			closings <- closing{err, !left.Load()}
		}()
	}
	require.True(t, becomesTrue(func() bool { return count("", "netpoll.(*FD).Close") == closers }))
	require.Empty(t, closings)
	close(leave)
	require.NoError(t, end(t, wait), "an event that was read is not thrown away")
	for range closers {
		c := <-closings
		require.NoError(t, c.err)
		require.False(t, c.tooSoon)
	}
}

func TestWaitAfterClose(t *testing.T) {
	r, _ := pipe(t)
	f := open(t, r)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	f.Kick()
	ready := make(chan struct{}, 1)
	ready <- struct{}{}
	require.ErrorIs(t, f.Wait(context.Background(), ready, func() (bool, error) {
		t.Error("try called")
		return true, nil
	}), os.ErrClosed)
}

func TestCloseInTryPanics(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	require.PanicsWithValue(t, "netpoll: Close called from a try function", func() {
		_ = f.Wait(context.Background(), nil, func() (bool, error) { return deepClose(f, 100) })
	})
	write(w, 1)
	require.NoError(t, end(t, begin(context.Background(), f, nil, reader(r))), "the FD is still open")
}

// deepClose closes f with a deep stack.
func deepClose(f *netpoll.FD, depth int) (bool, error) {
	if depth > 0 {
		done, err := deepClose(f, depth-1)
		return !done, err // so that this is no tail call
	}
	return true, f.Close()
}

func TestOriginalStaysOpen(t *testing.T) {
	r, w := pipe(t)
	f, err := netpoll.New(r, t.Name())
	require.NoError(t, err)
	require.NoError(t, f.Close())

	write(w, 7)
	buf := make([]byte, 1)
	done, err := read(r, buf)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, byte(7), buf[0])

	done, err = read(r, buf) // would hang if it were blocking
	require.NoError(t, err)
	require.False(t, done)

	f, err = netpoll.New(r, t.Name())
	require.NoError(t, err, "a descriptor can be registered again")
	require.NoError(t, f.Close())
}

func TestNewFails(t *testing.T) {
	_, err := netpoll.New(-1, "nothing")
	require.ErrorIs(t, err, syscall.EBADF)
	require.ErrorContains(t, err, "nothing: ")
}

func TestNewRefusesWhatCannotBePolled(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	f, err := netpoll.New(int(file.Fd()), "regular file")
	if err == nil { // kqueue takes regular files
		require.NoError(t, f.Close())
		return
	}
	require.ErrorContains(t, err, "regular file: descriptor cannot be polled")
	require.ErrorIs(t, err, os.ErrNoDeadline)
}

func TestTwoFDsForOneDescriptor(t *testing.T) {
	r, w := pipe(t)
	a, b := open(t, r), open(t, r)
	first := begin(context.Background(), a, nil, reader(r))
	parked(t, 1, 0)
	require.NoError(t, b.Close())
	write(w, 1)
	require.NoError(t, end(t, first))
}

func TestDeadlineIsNotShared(t *testing.T) {
	r, w := pipe(t)
	a, b := open(t, r), open(t, r)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	other := begin(context.Background(), b, nil, reader(r))
	require.ErrorIs(t, a.Wait(ctx, nil, never), os.ErrDeadlineExceeded)
	write(w, 1)
	require.NoError(t, end(t, other))
}
