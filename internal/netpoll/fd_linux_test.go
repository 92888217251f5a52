// SPDX-License-Identifier: Apache-2.0

package netpoll_test

import (
	"context"
	"encoding/binary"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

func init() {
	descriptors["eventfd"] = func(tb testing.TB) (int, int, func()) {
		fd := eventfd(tb)
		return fd, 8, func() { add(fd, 1) }
	}
}

// eventfd returns a semaphore: every read takes one unit.
func eventfd(tb testing.TB) int {
	tb.Helper()
	const semaphore = 1 // EFD_SEMAPHORE
	fd, _, errno := syscall.Syscall(syscall.SYS_EVENTFD2, 0, semaphore|syscall.O_CLOEXEC, 0)
	require.Zero(tb, errno)
	tb.Cleanup(func() { _ = syscall.Close(int(fd)) })
	return int(fd)
}

func add(fd int, units uint64) {
	write(fd, binary.NativeEndian.AppendUint64(nil, units)...)
}

// entries counts the entries of a directory in /proc.
func entries(tb testing.TB, dir string) int {
	tb.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(tb, err)
	return len(list)
}

func TestWaitersNeedNoThreads(t *testing.T) {
	// scenario parks n goroutines, and returns the number of threads then.
	scenario := func(n int) (threads int) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var fds []*netpoll.FD
		var results []<-chan error
		for range n {
			r, _ := pipe(t)
			f := open(t, r)
			fds = append(fds, f)
			results = append(results, begin(ctx, f, nil, never))
		}
		parked(t, n, 0)
		threads = entries(t, "/proc/self/task")
		start := time.Now()
		cancel()
		for _, result := range results {
			require.ErrorIs(t, end(t, result), context.Canceled)
		}
		t.Logf("%d waiters: %d threads, canceled within %v", n, threads, time.Since(start))
		for _, f := range fds {
			require.NoError(t, f.Close())
		}
		return threads
	}
	before := scenario(20) // starts what the runtime needs anyway
	// The runtime may add a few for its own work.
	require.LessOrEqual(t, scenario(200), before+10)
}

func TestNoDescriptorLeaks(t *testing.T) {
	r, _ := pipe(t)
	file, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer file.Close()
	round := func() {
		f, err := netpoll.New(r, t.Name())
		require.NoError(t, err)
		result := begin(context.Background(), f, nil, never)
		require.NoError(t, f.Close())
		require.ErrorIs(t, end(t, result), os.ErrClosed)
		_, err = netpoll.New(int(file.Fd()), "regular file")
		require.Error(t, err)
	}
	round() // opens the netpoller's own descriptors
	before := entries(t, "/proc/self/fd")
	for range 100 {
		round()
	}
	require.Equal(t, before, entries(t, "/proc/self/fd"))
}

func TestDuplicateIsCloseOnExec(t *testing.T) {
	r, _ := pipe(t) // without the flag
	open(t, r)
	next, err := syscall.Dup(r)
	require.NoError(t, err)
	require.NoError(t, syscall.Close(next))
	// Descriptors are handed out from the lowest, so the duplicate is the one
	// between r and next that refers to the same pipe.
	var want, got syscall.Stat_t
	require.NoError(t, syscall.Fstat(r, &want))
	found := 0
	for fd := range next {
		if fd == r || syscall.Fstat(fd, &got) != nil || got.Ino != want.Ino || got.Dev != want.Dev {
			continue
		}
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		require.Zero(t, errno)
		if access, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0); access&syscall.O_ACCMODE != syscall.O_RDONLY {
			continue // the other end of the pipe
		}
		require.NotZero(t, flags&syscall.FD_CLOEXEC)
		found++
	}
	require.Equal(t, 1, found)
}

// fullPipe returns the write end of a full pipe without a reader. epoll
// reports EPOLLERR for it and nothing else, as for a removed RDMA device.
func fullPipe(t *testing.T) (w int, hangUp func()) {
	var p [2]int
	require.NoError(t, syscall.Pipe2(p[:], syscall.O_NONBLOCK))
	t.Cleanup(func() { _ = syscall.Close(p[1]) })
	for {
		if _, err := syscall.Write(p[1], make([]byte, 4096)); err != nil {
			require.ErrorIs(t, err, syscall.EAGAIN)
			return p[1], func() { _ = syscall.Close(p[0]) }
		}
	}
}

func TestLibraryExplainsBrokenDescriptor(t *testing.T) {
	w, hangUp := fullPipe(t)
	f := open(t, w)
	try := func() (bool, error) {
		_, err := syscall.Write(w, []byte{1})
		if err == syscall.EAGAIN {
			return false, nil
		}
		return false, err
	}
	result := begin(context.Background(), f, nil, try)
	parked(t, 1, 0)
	hangUp()
	require.ErrorIs(t, end(t, result), syscall.EPIPE)
	require.ErrorIs(t, f.Wait(context.Background(), nil, try), syscall.EPIPE, "again, with the error known")
}

func TestBrokenDescriptorIsNotWaitedFor(t *testing.T) {
	w, hangUp := fullPipe(t)
	f := open(t, w)
	result := begin(context.Background(), f, nil, never)
	parked(t, 1, 0)
	hangUp()
	require.EqualError(t, end(t, result), t.Name()+": not pollable")
	require.NoError(t, f.Wait(context.Background(), nil, func() (bool, error) { return true, nil }))
}

func TestCloseWaitsForLastTryOfBrokenDescriptor(t *testing.T) {
	w, hangUp := fullPipe(t)
	f := open(t, w)
	result := begin(context.Background(), f, nil, never)
	parked(t, 1, 0)
	hangUp()
	require.Error(t, end(t, result))

	// From here on the netpoller refuses, and try runs without it.
	entered, leave := make(chan struct{}), make(chan struct{})
	result = begin(context.Background(), f, nil, func() (bool, error) {
		close(entered)
		<-leave
		return true, nil
	})
	<-entered
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = f.Close()
	}()
	require.True(t, becomesTrue(func() bool { return count("[chan send", "netpoll.(*FD).Close") == 1 }))
	close(leave)
	require.NoError(t, end(t, result))
	<-closed
}

// Everybody may take any unit, so there is nothing to hand over; each unit
// must be taken exactly once.
func TestSemaphoreIsNotLost(t *testing.T) {
	fd := eventfd(t)
	f := open(t, fd)
	const waiters, units = 16, 4000
	var taken atomic.Int64
	var results []chan error
	for range waiters {
		result := make(chan error, 1)
		results = append(results, result)
		go func() {
			buf := make([]byte, 8)
			for {
				if err := f.Wait(context.Background(), nil, func() (bool, error) { return read(fd, buf) }); err != nil {
					result <- err
					return
				}
				taken.Add(1)
			}
		}()
	}
	for range units / 4 {
		add(fd, 3)
		add(fd, 1)
	}
	require.True(t, becomesTrue(func() bool { return taken.Load() == units }))
	require.NoError(t, f.Close())
	for _, result := range results {
		require.ErrorIs(t, end(t, result), os.ErrClosed)
	}
	require.EqualValues(t, units, taken.Load())
}
