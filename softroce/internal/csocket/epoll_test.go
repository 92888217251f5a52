// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/sealed"
)

// newTestSet makes an epoll set, which the test closes.
func newTestSet(t testing.TB) int32 {
	t.Helper()
	fd, err := c.RepollCreate(syscall.O_CLOEXEC)
	require.Zero(t, err)
	t.Cleanup(func() { c.Rclose(int32(fd)) })
	return int32(fd)
}

// control adds or changes a socket, whose number is the data of its events.
func control(set, op, fd int32, events uint32) syscall.Errno {
	return c.RepollCtl(set, op, fd, unsafe.Pointer(epollData(events, uint64(fd))))
}

// waitOn waits for up to most sockets, and returns their numbers.
func waitOn(set int32, most, timeout int32) ([]int32, syscall.Errno) {
	events := make([]event, most)
	n, err := c.RepollWait(set, unsafe.Pointer(&events[0]), most, timeout)
	var fds []int32
	for i := range events[:n] {
		fds = append(fds, int32(binary.NativeEndian.Uint64(events[i].data())))
	}
	return fds, err
}

// A wait looks only at sockets that may be ready.
func TestEpollLooksAtWhatMayBeReady(t *testing.T) {
	set := newTestSet(t)
	var servers []int32
	for range 20 {
		client, server := pair(t)
		require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollIn))
		servers = append(servers, server)
	}
	got, err := waitOn(set, 32, 0)
	require.Zero(t, err)
	require.Empty(t, got)
	q := &findSet(set).queue
	length := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.all)
	}
	require.Eventually(t, func() bool { // both ends give room to each other at first
		_, err := waitOn(set, 32, 1)
		return err == 0 && length() == 0
	}, patience, time.Millisecond)
	_, err = send(servers[7], []byte("x"), 0)
	require.Zero(t, err)
	got, err = waitOn(set, 32, -1)
	require.Zero(t, err)
	require.Len(t, got, 1)
	require.Equal(t, 1, length(), "it is looked at again, as it may still be ready")
	_, err = recv(got[0], make([]byte, 1), 0)
	require.Zero(t, err)
	got, err = waitOn(set, 32, 0)
	require.Zero(t, err)
	require.Empty(t, got)
	require.Zero(t, length())
}

// A thread that finds the pump taken takes it when it is free.
func TestPumpIsHandedOver(t *testing.T) {
	for name, wait := range map[string]func(t *testing.T, fd int32){
		"rpoll": func(t *testing.T, fd int32) { pollOne(t, fd, pollIn, -1) },
		"rrecv": func(t *testing.T, fd int32) {
			_, err := recv(fd, make([]byte, 1), 0)
			require.Zero(t, err)
		},
		"repoll_wait": func(t *testing.T, fd int32) {
			set := newTestSet(t)
			require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, fd, pollIn))
			_, err := waitOn(set, 1, -1)
			require.Zero(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t)
			i := sealed.Open(find(client).conn.Load().Internals())
			require.Eventually(t, i.Hold, patience, time.Millisecond)
			done := make(chan bool)
			go func() {
				wait(t, client)
				close(done)
			}()
			time.Sleep(20 * time.Millisecond) // it waits, usually
			i.Release()
			_, err := send(server, []byte("x"), 0)
			require.Zero(t, err)
			select {
			case <-done:
			case <-time.After(patience):
				require.Fail(t, "the thread does not know of the completion")
			}
		})
	}
}

// rclose of a set ends all waits.
func TestEpollCloseWakes(t *testing.T) {
	set := newTestSet(t)
	client, _ := pair(t)
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollIn))
	errs := make(chan syscall.Errno, 5)
	for range cap(errs) {
		go func() {
			_, err := waitOn(set, 1, -1)
			errs <- err
		}()
	}
	require.Eventually(t, func() bool {
		s := findSet(set)
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.sleeping == cap(errs)
	}, patience, time.Millisecond)
	require.Zero(t, c.Rclose(set))
	for range cap(errs) {
		select {
		case err := <-errs:
			require.Equal(t, syscall.EBADF, err)
		case <-time.After(patience):
			require.Fail(t, "a thread waits still")
		}
	}
}

// A thread that does not wait may hear the bell that was meant for one that
// does. The bell is rung again for the next change.
func TestEpollBellIsHeardByAnother(t *testing.T) {
	set := newTestSet(t)
	client, other := pair(t)
	q := &findSet(set).queue
	q.mu.Lock()
	q.sleeping++ // as if another thread were about to wait
	q.mu.Unlock()
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollOut))
	fds, err := waitOn(set, 1, 0)
	require.Zero(t, err)
	require.Equal(t, []int32{client}, fds)
	require.Zero(t, control(set, syscall.EPOLL_CTL_DEL, client, 0))
	_, err = waitOn(set, 1, 0)
	require.Zero(t, err)
	q.mu.Lock()
	q.sleeping--
	q.mu.Unlock()
	done := make(chan []int32)
	go func() {
		fds, _ := waitOn(set, 1, -1)
		done <- fds
	}()
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.sleeping == 1
	}, patience, time.Millisecond)
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, other, pollOut))
	select {
	case fds := <-done:
		require.Equal(t, []int32{other}, fds)
	case <-time.After(patience):
		require.Fail(t, "the thread is not woken")
	}
}

// Several threads wait on one set, and each message is answered, while sockets
// come, go, and are closed under the threads.
func TestEpollManyThreads(t *testing.T) {
	ln, at := listener(t, "127.0.0.1", 64)
	setNonblocking(t, ln, true)
	set := newTestSet(t)
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, ln, pollIn|epollET))
	var served atomic.Int64
	var serving sync.WaitGroup
	serve := func(fd int32) {
		if fd == ln {
			for {
				s, err := c.Raccept(ln, nil, nil)
				if err != 0 {
					return
				}
				assertZero(t, control(set, syscall.EPOLL_CTL_ADD, int32(s), pollIn|epollOneshot))
			}
		}
		b := make([]byte, 100)
		n, err := recv(fd, b, syscall.MSG_DONTWAIT)
		if err == 0 && n > 0 {
			_, err = send(fd, b[:n], 0)
			served.Add(int64(n))
		}
		if err != 0 && err != syscall.EAGAIN || err == 0 && n == 0 {
			c.Rclose(fd)
			return
		}
		assertZero(t, control(set, syscall.EPOLL_CTL_MOD, fd, pollIn|epollOneshot))
	}
	for range 4 {
		serving.Go(func() {
			for {
				fds, err := waitOn(set, 3, -1)
				if err != 0 { // the set was closed
					return
				}
				for _, fd := range fds {
					serve(fd)
				}
			}
		})
	}
	addr, length := sockaddr(t, at.String())
	var clients sync.WaitGroup
	const each = 30
	for i := range 16 {
		clients.Go(func() {
			for range 3 {
				fd, err := c.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
				assertZero(t, err)
				assertZero(t, c.Rconnect(int32(fd), addr, length))
				b := fmt.Appendf(nil, "%04d", i)
				for range each {
					_, err := send(int32(fd), b, 0)
					assertZero(t, err)
					got := make([]byte, len(b))
					_, err = recv(int32(fd), got, syscall.MSG_WAITALL)
					assertZero(t, err)
					if string(b) != string(got) {
						t.Errorf("got %q, want %q", got, b)
					}
				}
				c.Rclose(int32(fd))
			}
		})
	}
	clients.Wait()
	require.EqualValues(t, 16*3*each*4, served.Load())
	require.Zero(t, c.Rclose(set))
	serving.Wait()
}

// assertZero is require.Zero for other goroutines than the test's.
func assertZero(t testing.TB, err syscall.Errno) {
	t.Helper()
	if err != 0 {
		t.Error(err)
	}
}

// Sockets are closed and opened again while threads wait for them and change
// the set. All calls return.
func TestEpollChurn(t *testing.T) {
	set := newTestSet(t)
	ln, at := listener(t, "127.0.0.1", 64)
	addr, length := sockaddr(t, at.String())
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // ends the waits, too
		for {
			s, err := c.Raccept(ln, nil, nil)
			if err != 0 {
				return
			}
			_, _ = send(int32(s), []byte("x"), 0)
			c.Rclose(int32(s))
		}
	})
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				fds, err := waitOn(set, 4, 20)
				assertZero(t, err)
				for _, fd := range fds {
					_, _ = recv(fd, make([]byte, 1), syscall.MSG_DONTWAIT)
				}
			}
		})
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 25 {
				fd, err := c.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
				assertZero(t, err)
				c.RepollCtl(set, syscall.EPOLL_CTL_ADD, int32(fd), unsafe.Pointer(epollData(pollIn|uint32(rand.IntN(2))*epollET, uint64(fd))))
				assertZero(t, c.Rconnect(int32(fd), addr, length))
				control(set, syscall.EPOLL_CTL_MOD, int32(fd), pollIn|pollOut)
				if rand.IntN(2) == 0 {
					control(set, syscall.EPOLL_CTL_DEL, int32(fd), 0)
				}
				c.Rclose(int32(fd))
			}
		})
	}
	clients.Wait()
	close(stop)
	c.Rclose(ln)
	all.Wait()
	s := findSet(set)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.members)
	require.Empty(t, s.byKey)
}

// BenchmarkEpoll has one of many sockets ready at a time.
func BenchmarkEpoll(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			set := newTestSet(b)
			var servers []int32
			for range n {
				client, server := pair(b)
				require.Zero(b, control(set, syscall.EPOLL_CTL_ADD, client, pollIn))
				servers = append(servers, server)
			}
			x := make([]byte, 1)
			for i := 0; b.Loop(); i++ {
				_, err := send(servers[i%n], x, 0)
				require.Zero(b, err)
				fds, err := waitOn(set, 16, -1)
				require.Zero(b, err)
				for _, fd := range fds {
					_, _ = recv(fd, x, syscall.MSG_DONTWAIT)
				}
			}
		})
	}
}
