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

	"github.com/stretchr/testify/assert"
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
	n, err := again(func() (int, syscall.Errno) { return c.RepollWait(set, unsafe.Pointer(&events[0]), most, timeout) })
	var fds []int32
	for i := range events[:n] {
		fds = append(fds, int32(binary.NativeEndian.Uint64(events[i].data())))
	}
	return fds, err
}

// settle waits until no socket of the set may be ready: both ends of a new
// connection give room to each other at first.
func settle(t testing.TB, set int32) {
	t.Helper()
	q := &findSet(set).queue
	require.Eventually(t, func() bool {
		_, err := waitOn(set, 32, 1)
		q.mu.Lock()
		defer q.mu.Unlock()
		return err == 0 && len(q.all) == 0
	}, patience, time.Millisecond)
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
	settle(t, set)
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

// Each ring adds 1 to the bell, which rings only as long as its counter is not
// full.
func TestEpollBellCounts(t *testing.T) {
	set := findSet(newTestSet(t))
	for range 300 {
		set.ring()
	}
	var count [8]byte
	n, err := syscall.Read(set.bell, count[:])
	require.NoError(t, err)
	require.Equal(t, len(count), n)
	require.EqualValues(t, 300, binary.NativeEndian.Uint64(count[:]))
}

// A socket or set that the program has closed with close(2) ends when its
// number is given to a new one.
func TestNumberIsReused(t *testing.T) {
	socket := func() (int, syscall.Errno) { return c.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0) }
	set := func() (int, syscall.Errno) { return c.RepollCreate(0) }
	for _, tt := range []struct {
		name     string
		old, new func() (int, syscall.Errno)
	}{
		{"socket after socket", socket, socket},
		{"set after socket", socket, set},
		{"socket after set", set, socket},
		{"set after set", set, set},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var fd int
			var before, now func() bool
			require.Eventually(t, func() bool { // another thread may get the number
				old, err := tt.old()
				require.Zero(t, err)
				before = hasEnded(old)
				require.NoError(t, syscall.Close(old))
				fd, err = tt.new()
				require.Zero(t, err)
				now = hasEnded(fd)
				if fd != old {
					require.Zero(t, c.Rclose(int32(fd)))
				}
				return fd == old
			}, patience, time.Millisecond)
			require.Eventually(t, before, patience, time.Millisecond, "what had the number before goes on")
			require.False(t, now())
			_, _, err := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
			require.Zero(t, err, "the new descriptor was closed")
			require.Zero(t, c.Rclose(int32(fd)))
			require.True(t, now())
			require.Equal(t, syscall.EBADF, c.Rclose(int32(fd)))
		})
	}
}

// hasEnded returns a function that reports whether the socket or set that has
// the number now has ended.
func hasEnded(fd int) func() bool {
	if s := find(int32(fd)); s != nil {
		return s.isClosed
	}
	set := findSet(int32(fd))
	return func() bool {
		set.mu.Lock()
		defer set.mu.Unlock()
		return set.ended
	}
}

// With one slot, sockets and descriptors that are no sockets are reported in
// turn. Without a socket that is ready, each wait reports the descriptor.
func TestEpollOneSlot(t *testing.T) {
	set := newTestSet(t)
	client, _ := pair(t)
	system, err := newEventFD()
	require.Zero(t, err)
	defer syscall.Close(system)
	ring(system)
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, int32(system), pollIn))
	for range 5 {
		got, err := waitOn(set, 1, 0)
		require.Zero(t, err)
		require.Equal(t, []int32{int32(system)}, got)
	}
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollOut))
	times := map[int32]int{}
	for range 10 {
		got, err := waitOn(set, 1, 0)
		require.Zero(t, err)
		require.Len(t, got, 1)
		times[got[0]]++
	}
	require.Equal(t, map[int32]int{client: 5, int32(system): 5}, times)
}

// A channel may have the number 0.
func TestEpollChannelZero(t *testing.T) {
	set := findSet(newTestSet(t))
	stdin, err := syscall.Dup(0)
	require.NoError(t, err)
	bell, e := newEventFD()
	require.Zero(t, e)
	require.NoError(t, syscall.Dup3(bell, 0, 0))
	defer func() {
		assert.NoError(t, syscall.Dup3(stdin, 0, 0))
		syscall.Close(stdin)
		syscall.Close(bell)
	}()
	set.mu.Lock()
	defer set.mu.Unlock()
	m := set.add(find(newTestSocket(t, syscall.AF_INET)))
	require.NoError(t, set.addChannel(0, pollIn|epollET, m.key))
	m.added = 0
	set.drop(m)
	require.NoError(t, set.addChannel(0, pollIn|epollET, m.key), "the channel was not removed")
}

// If the system takes no more channels, the socket has an error until it does.
func TestEpollChannelIsRefused(t *testing.T) {
	set := newTestSet(t)
	client, server := pair(t)
	i := sealed.Open(find(client).conn.Load().Internals())
	channels := findSet(set).channels
	channel, descriptorErr := i.Descriptor()
	require.NoError(t, descriptorErr)
	require.NoError(t, findSet(set).addChannel(channel, 0, 1<<20)) // the next call fails with EEXIST
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollIn))
	events := make([]event, 1)
	for range 2 {
		n, err := c.RepollWait(set, unsafe.Pointer(&events[0]), 1, 0)
		require.Zero(t, err)
		require.Equal(t, 1, n)
		require.EqualValues(t, pollErr, events[0].events())
	}
	require.NoError(t, syscall.EpollCtl(channels, syscall.EPOLL_CTL_DEL, channel, nil))
	fds, err := waitOn(set, 1, 0)
	require.Zero(t, err)
	require.Empty(t, fds)
	_, err = send(server, []byte("x"), 0)
	require.Zero(t, err)
	n, err := again(func() (int, syscall.Errno) {
		return c.RepollWait(set, unsafe.Pointer(&events[0]), 1, int32(patience/time.Millisecond))
	})
	require.Zero(t, err)
	require.Equal(t, 1, n, "the socket does not wake the thread")
	require.EqualValues(t, pollIn, events[0].events())
}

// thief takes the event that a set has requested, after the set has given up
// the pump and before Notify reaches the set.
type thief struct {
	hold  func() bool
	steal func()
	done  atomic.Bool
}

func (th *thief) Notify() {
	if !th.done.Load() && th.hold() { // otherwise the holder notifies again when it gives up the pump
		th.done.Store(true)
		th.steal()
	}
}

// Another thread takes the event that a thread has requested while the thread
// still looks at the socket. The thread requests another one.
func TestEpollEventIsTakenByAnother(t *testing.T) {
	set := newTestSet(t)
	client, server := pair(t)
	i := sealed.Open(find(client).conn.Load().Internals())
	th := &thief{hold: i.Hold, steal: func() {
		defer i.Release()
		_, err := send(server, []byte("y"), 0)
		assertZero(t, err)
		channel, descriptorErr := i.Descriptor()
		assert.NoError(t, descriptorErr)
		fds := []pollFD{{int32(channel), pollIn, 0}}
		assertZero(t, ppoll(fds, patience))
		assert.NotZero(t, fds[0].revents, "no event has come")
		i.TakeEvents()
	}}
	th.done.Store(true)
	find(client).watchers.add(th) // before the set's member
	defer find(client).watchers.remove(th)
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollIn|epollET))
	settle(t, set)
	th.done.Store(false)
	_, err := send(server, []byte("x"), 0)
	require.Zero(t, err)
	for _, message := range []string{"first", "second"} {
		fds, err := waitOn(set, 1, int32(patience/time.Millisecond))
		require.Zero(t, err)
		require.Equal(t, []int32{client}, fds, "the thread does not know of the %s message", message)
	}
	require.True(t, th.done.Load())
}

// A thread that finds the pump taken takes the channel's events when the pump
// is free.
func TestEpollEventsAreTakenLater(t *testing.T) {
	set := newTestSet(t)
	client, server := pair(t)
	i := sealed.Open(find(client).conn.Load().Internals())
	require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, client, pollIn))
	settle(t, set)
	require.Eventually(t, i.Hold, patience, time.Millisecond)
	channel, descriptorErr := i.Descriptor()
	require.NoError(t, descriptorErr)
	fds := []pollFD{{int32(channel), pollIn, 0}}
	_, err := send(server, []byte("x"), 0)
	require.Zero(t, err)
	require.Zero(t, ppoll(fds, patience))
	require.NotZero(t, fds[0].revents, "no event has come")
	_, err = waitOn(set, 1, 0)
	require.Zero(t, err)
	i.Release()
	got, err := waitOn(set, 1, int32(patience/time.Millisecond))
	require.Zero(t, err)
	require.Equal(t, []int32{client}, got)
	require.Zero(t, ppoll(fds, 0))
	require.Zero(t, fds[0].revents, "the event is still there")
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
