// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/softroce/internal/capi"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// c has the functions as C calls them.
var c = func() (f capi.CM) { provide(&f); return f }()

// make a socket, which the test closes.
func newTestSocket(t testing.TB, family int32) int32 {
	t.Helper()
	fd, err := c.Rsocket(family, syscall.SOCK_STREAM, 0)
	require.Zero(t, err)
	t.Cleanup(func() { c.Rclose(int32(fd)) })
	return int32(fd)
}

// sockaddr returns an address as C has it.
func sockaddr(t testing.TB, at string) (*librdmacm.Sockaddr, uint32) {
	t.Helper()
	a := netip.MustParseAddrPort(at)
	family := syscall.AF_INET
	if a.Addr().Is6() {
		family = syscall.AF_INET6
	}
	b := new([sockaddr6Len]byte)
	length := uint32(len(b))
	addr := (*librdmacm.Sockaddr)(unsafe.Pointer(b))
	require.Zero(t, putAddr(a, family, addr, &length))
	return addr, length
}

// named returns the address that a function such as rgetsockname gives.
func named(t testing.TB, fd int32, f func(int32, *librdmacm.Sockaddr, *uint32) syscall.Errno) netip.AddrPort {
	t.Helper()
	b := new([sockaddr6Len]byte)
	length := uint32(len(b))
	addr := (*librdmacm.Sockaddr)(unsafe.Pointer(b))
	require.Zero(t, f(fd, addr, &length))
	a, err := addrOf(addr, length, find(fd).family)
	require.Zero(t, err)
	return a
}

// listener returns a socket that listens on the host, and its address.
func listener(t testing.TB, host string, backlog int32) (int32, netip.AddrPort) {
	t.Helper()
	family := int32(syscall.AF_INET)
	if strings.Contains(host, ":") {
		family = syscall.AF_INET6
	}
	fd := newTestSocket(t, family)
	addr, length := sockaddr(t, netip.AddrPortFrom(netip.MustParseAddr(host), 0).String())
	require.Zero(t, c.Rbind(fd, addr, length))
	before := named(t, fd, c.Rgetsockname)
	require.NotZero(t, before.Port())
	require.Zero(t, c.Rlisten(fd, backlog))
	require.Equal(t, before, named(t, fd, c.Rgetsockname))
	return fd, before
}

// pair returns two connected sockets.
func pair(t testing.TB) (client, server int32) {
	t.Helper()
	return pairAt(t, "127.0.0.1")
}

func pairAt(t testing.TB, host string) (client, server int32) {
	t.Helper()
	ln, at := listener(t, host, 1)
	client = newTestSocket(t, int32(find(ln).family))
	addr, length := sockaddr(t, at.String())
	require.Zero(t, c.Rconnect(client, addr, length))
	return client, acceptOne(t, ln)
}

func acceptOne(t testing.TB, ln int32) int32 {
	t.Helper()
	fd, err := c.Raccept(ln, nil, nil)
	require.Zero(t, err)
	t.Cleanup(func() { c.Rclose(int32(fd)) })
	return int32(fd)
}

func send(fd int32, b []byte, flags int32) (int, syscall.Errno) {
	return c.Rsend(fd, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)), flags)
}

func recv(fd int32, b []byte, flags int32) (int, syscall.Errno) {
	return c.Rrecv(fd, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)), flags)
}

// again makes a call until no signal interrupts it. Go's runtime sends signals
// to threads, as does the system when the process goes on after a stop.
func again(call func() (int, syscall.Errno)) (n int, err syscall.Errno) {
	for {
		if n, err = call(); err != syscall.EINTR {
			return n, err
		}
	}
}

// pollOne waits for one socket.
func pollOne(t *testing.T, fd int32, events int16, timeout int32) int16 {
	t.Helper()
	fds := []pollFD{{fd, events, 0}}
	n, err := again(func() (int, syscall.Errno) { return c.Rpoll(unsafe.Pointer(&fds[0]), 1, timeout) })
	require.Zero(t, err)
	require.Equal(t, fds[0].revents != 0, n == 1)
	return fds[0].revents
}

// eventually waits until a socket has exactly these events.
func eventually(t *testing.T, fd int32, events, want int16) {
	t.Helper()
	require.Eventually(t, func() bool { return pollOne(t, fd, events, 0) == want }, patience, time.Millisecond)
}

func setNonblocking(t *testing.T, fd int32, on bool) {
	t.Helper()
	flags := int32(0)
	if on {
		flags = syscall.O_NONBLOCK
	}
	_, err := c.Rfcntl(fd, syscall.F_SETFL, flags)
	require.Zero(t, err)
}

func setInt(fd, level, name, value int32) syscall.Errno {
	return c.Rsetsockopt(fd, level, name, unsafe.Pointer(&value), 4)
}

func getInt(t *testing.T, fd, level, name int32) int32 {
	t.Helper()
	var value int32
	length := uint32(4)
	require.Zero(t, c.Rgetsockopt(fd, level, name, unsafe.Pointer(&value), &length))
	require.EqualValues(t, 4, length)
	return value
}

func nonblock(on bool) string {
	if on {
		return "nonblocking"
	}
	return "blocking"
}

// Bytes arrive as they were sent, however they are cut.
func TestStream(t *testing.T) {
	content := make([]byte, 3<<20)
	_, err := rand.NewChaCha8([32]byte{1}).Read(content)
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, nonblocking := range []bool{false, true} {
			t.Run(host+" "+nonblock(nonblocking), func(t *testing.T) {
				client, server := pairAt(t, host)
				setNonblocking(t, client, nonblocking)
				setNonblocking(t, server, nonblocking)
				var all sync.WaitGroup
				defer all.Wait()
				all.Go(func() {
					for sent, size := 0, 1; sent < len(content); size = size*3%300007 + 1 {
						b := content[sent:min(len(content), sent+size)]
						half := len(b) / 2
						iov := []iovec{{unsafe.Pointer(unsafe.SliceData(b)), uint64(half)}, {unsafe.Pointer(&b[half]), uint64(len(b) - half)}}
						n, err := c.Rwritev(client, unsafe.Pointer(&iov[0]), 2)
						if err == syscall.EAGAIN {
							pollOne(t, client, pollOut, -1)
							continue
						}
						require.Zero(t, err)
						if !nonblocking {
							require.Equal(t, len(b), n)
						}
						sent += n
					}
					require.Zero(t, c.Rshutdown(client, syscall.SHUT_WR))
				})
				var got []byte
				for size := 1; ; size = size*7%70001 + 1 {
					b := make([]byte, size)
					iov := []iovec{{}, {unsafe.Pointer(unsafe.SliceData(b)), uint64(size / 2)}, {unsafe.Pointer(&b[size/2]), uint64(size - size/2)}}
					n, err := c.Rreadv(server, unsafe.Pointer(&iov[0]), 3)
					if err == syscall.EAGAIN {
						pollOne(t, server, pollIn, -1)
						continue
					}
					require.Zero(t, err)
					if n == 0 {
						break
					}
					got = append(got, b[:n]...)
				}
				require.True(t, bytes.Equal(content, got))
				_, err := send(server, []byte("still open"), 0)
				require.Zero(t, err)
				b := make([]byte, 20)
				n, err := recv(client, b, 0)
				if err == syscall.EAGAIN {
					pollOne(t, client, pollIn, -1)
					n, err = recv(client, b, 0)
				}
				require.Zero(t, err)
				require.Equal(t, "still open", string(b[:n]))
			})
		}
	}
}

func TestFlags(t *testing.T) {
	client, server := pair(t)
	b := make([]byte, 10)
	_, err := recv(client, b, syscall.MSG_DONTWAIT)
	require.Equal(t, syscall.EAGAIN, err)
	_, err = recv(client, b, syscall.MSG_OOB)
	require.Equal(t, syscall.EINVAL, err)
	_, err = send(client, b, syscall.MSG_OOB)
	require.Equal(t, syscall.EOPNOTSUPP, err)
	_, err = send(server, []byte("abc"), syscall.MSG_NOSIGNAL)
	require.Zero(t, err)
	for range 2 {
		n, err := recv(client, b, syscall.MSG_PEEK)
		require.Zero(t, err)
		require.Equal(t, "abc", string(b[:n]))
	}
	require.EqualValues(t, pollIn, pollOne(t, client, pollIn, 0))
	done := make(chan string, 1)
	go func() {
		n, _ := recv(client, b[:6], syscall.MSG_WAITALL)
		done <- string(b[:n])
	}()
	require.Never(t, func() bool { return len(done) > 0 }, 20*time.Millisecond, 5*time.Millisecond)
	_, err = send(server, []byte("defgh"), 0)
	require.Zero(t, err)
	require.Equal(t, "abcdef", <-done)
	n, err := recv(client, b, syscall.MSG_DONTWAIT|syscall.MSG_WAITALL)
	require.Zero(t, err)
	require.Equal(t, "gh", string(b[:n]), "WAITALL does not wait if nothing may")
	n, err = recv(client, nil, 0)
	require.Zero(t, err)
	require.Zero(t, n)
}

// A socket that does not block sends what there is room for.
func TestPartialSend(t *testing.T) {
	client, server := pair(t)
	big := bytes.Repeat([]byte{7}, 1<<20)
	n, err := send(client, big, syscall.MSG_DONTWAIT)
	require.Zero(t, err)
	require.Less(t, n, len(big))
	total := n
	for {
		n, err := send(client, big, syscall.MSG_DONTWAIT)
		total += n
		if err == syscall.EAGAIN && pollOne(t, client, pollOut, 10) == 0 {
			break
		}
	}
	require.EqualValues(t, pollIn, pollOne(t, server, pollIn|pollOut, 1000)&pollIn)
	got := 0
	for got < total {
		n, err := recv(server, big, 0)
		require.Zero(t, err)
		got += n
	}
	require.EqualValues(t, pollOut, pollOne(t, client, pollOut, -1))
}

func TestConnectWithoutBlocking(t *testing.T) {
	ln, at := listener(t, "127.0.0.1", 5)
	setNonblocking(t, ln, true)
	_, err := c.Raccept(ln, nil, nil)
	require.Equal(t, syscall.EAGAIN, err)
	addr, length := sockaddr(t, at.String())
	client := newTestSocket(t, syscall.AF_INET)
	_, err = recv(client, make([]byte, 1), 0)
	require.Equal(t, syscall.ENOTCONN, err)
	setNonblocking(t, client, true)
	require.Equal(t, syscall.EINPROGRESS, c.Rconnect(client, addr, length))
	require.Contains(t, []syscall.Errno{0, syscall.EINPROGRESS}, c.Rconnect(client, addr, length))
	require.EqualValues(t, pollIn, pollOne(t, ln, pollIn, -1))
	server := acceptOne(t, ln)
	require.EqualValues(t, pollOut, pollOne(t, client, pollOut, -1))
	require.Zero(t, getInt(t, client, syscall.SOL_SOCKET, syscall.SO_ERROR))
	require.Zero(t, c.Rconnect(client, addr, length), "it is connected")
	require.Equal(t, at, named(t, client, c.Rgetpeername))
	require.Equal(t, named(t, client, c.Rgetsockname), named(t, server, c.Rgetpeername))
	require.Equal(t, at, named(t, server, c.Rgetsockname))

	// No socket listens there any more.
	require.Zero(t, c.Rclose(ln))
	refused := newTestSocket(t, syscall.AF_INET)
	require.Equal(t, syscall.ECONNREFUSED, c.Rconnect(refused, addr, length))
	require.Equal(t, syscall.ECONNREFUSED, c.Rconnect(refused, addr, length), "it may try again")
	setNonblocking(t, refused, true)
	require.Equal(t, syscall.EINPROGRESS, c.Rconnect(refused, addr, length))
	require.EqualValues(t, pollOut|pollErr|pollHup, pollOne(t, refused, pollOut, -1))
	require.EqualValues(t, syscall.ECONNREFUSED, getInt(t, refused, syscall.SOL_SOCKET, syscall.SO_ERROR))
	require.Zero(t, getInt(t, refused, syscall.SOL_SOCKET, syscall.SO_ERROR), "it is reported once")
	require.Equal(t, syscall.EINPROGRESS, c.Rconnect(refused, addr, length))
	pollOne(t, refused, pollOut, -1)
	require.Equal(t, syscall.ECONNREFUSED, c.Rconnect(refused, addr, length), "it says how the last attempt went")
	require.Equal(t, syscall.ENOTCONN, c.Rgetpeername(refused, nil, new(uint32)))
}

// How a connection ends, at the other end.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(t *testing.T, fd int32)
		poll int16
		recv syscall.Errno
		send syscall.Errno
	}{
		"closed":     {func(t *testing.T, fd int32) { require.Zero(t, c.Rclose(fd)) }, pollIn | pollOut | pollHup, 0, syscall.ECONNRESET},
		"shut down":  {func(t *testing.T, fd int32) { require.Zero(t, c.Rshutdown(fd, syscall.SHUT_RDWR)) }, pollIn | pollOut | pollHup, 0, syscall.ECONNRESET},
		"half close": {func(t *testing.T, fd int32) { require.Zero(t, c.Rshutdown(fd, syscall.SHUT_WR)) }, pollIn | pollOut, 0, 0},
		"reset": {func(t *testing.T, fd int32) {
			linger := [2]int32{1, 0}
			require.Zero(t, c.Rsetsockopt(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, unsafe.Pointer(&linger), 8))
			require.Zero(t, c.Rclose(fd))
		}, pollIn | pollOut | pollHup | pollErr, syscall.ECONNRESET, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t)
			waits := make(chan int16, 1)
			go func() {
				fds := []pollFD{{client, pollIn, 0}}
				_, _ = again(func() (int, syscall.Errno) { return c.Rpoll(unsafe.Pointer(&fds[0]), 1, -1) })
				waits <- fds[0].revents
			}()
			tt.end(t, server)
			require.NotZero(t, <-waits&pollIn)
			eventually(t, client, pollIn|pollOut, tt.poll)
			n, err := recv(client, make([]byte, 1), 0)
			require.Zero(t, n)
			require.Equal(t, tt.recv, err)
			_, err = send(client, []byte("x"), 0)
			require.Equal(t, tt.send, err)
		})
	}
	t.Run("one half after the other", func(t *testing.T) { // a socket that is ready also gets to know of more
		client, server := pair(t)
		require.Zero(t, c.Rshutdown(server, syscall.SHUT_WR))
		eventually(t, client, pollIn|pollOut, pollIn|pollOut)
		require.Zero(t, c.Rshutdown(server, syscall.SHUT_RD))
		eventually(t, client, pollIn|pollOut, pollIn|pollOut|pollHup)
	})
	t.Run("own half", func(t *testing.T) {
		client, _ := pair(t)
		require.Zero(t, c.Rshutdown(client, syscall.SHUT_WR))
		_, err := send(client, []byte("x"), 0)
		require.Equal(t, syscall.EPIPE, err)
		require.Zero(t, c.Rshutdown(client, syscall.SHUT_RD))
		n, err := recv(client, make([]byte, 1), 0)
		require.Zero(t, err)
		require.Zero(t, n)
	})
	t.Run("unread", func(t *testing.T) { // what has arrived can be read after the end
		client, server := pair(t)
		_, err := send(server, []byte("last"), 0)
		require.Zero(t, err)
		require.Zero(t, c.Rclose(server))
		eventually(t, client, pollIn|pollRdHup, pollIn|pollRdHup)
		b := make([]byte, 10)
		n, err := recv(client, b, 0)
		require.Zero(t, err)
		require.Equal(t, "last", string(b[:n]))
		require.EqualValues(t, pollIn|pollHup, pollOne(t, client, pollIn, 0))
	})
}

// rclose ends what other threads wait for.
func TestCloseWakes(t *testing.T) {
	for name, wait := range map[string]func(fd int32) syscall.Errno{
		"rrecv": func(fd int32) syscall.Errno { _, err := recv(fd, make([]byte, 1), 0); return err },
		"rsend": func(fd int32) syscall.Errno {
			for {
				if _, err := send(fd, make([]byte, 1<<20), 0); err != 0 {
					return err
				}
			}
		},
		"rpoll": func(fd int32) syscall.Errno {
			fds := []pollFD{{fd, pollIn, 0}}
			if _, err := again(func() (int, syscall.Errno) { return c.Rpoll(unsafe.Pointer(&fds[0]), 1, -1) }); err != 0 || fds[0].revents&pollNval == 0 {
				return syscall.EPROTO
			}
			return syscall.EBADF
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := pair(t)
			errs := make(chan syscall.Errno, 4)
			for range cap(errs) {
				go func() { errs <- wait(client) }()
			}
			time.Sleep(10 * time.Millisecond) // they wait, usually
			require.Zero(t, c.Rclose(client))
			for range cap(errs) {
				select {
				case err := <-errs:
					require.Equal(t, syscall.EBADF, err)
				case <-time.After(patience):
					require.Fail(t, "a thread waits still")
				}
			}
		})
	}
	t.Run("raccept", func(t *testing.T) {
		ln, _ := listener(t, "127.0.0.1", 1)
		errs := make(chan syscall.Errno, 1)
		go func() { _, err := c.Raccept(ln, nil, nil); errs <- err }()
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, c.Rclose(ln))
		require.Equal(t, syscall.EBADF, <-errs)
	})
}

// A call that waits fails if there is no descriptor to wait with. The next call
// tries again.
func TestPollWithoutDescriptor(t *testing.T) {
	client, server := pair(t)
	w, err := newWaiter()
	require.Zero(t, err)
	w.free() // the call that fails takes it
	lowest, dupErr := syscall.Dup(0)
	require.NoError(t, dupErr)
	require.NoError(t, syscall.Close(lowest))
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(lowest), Max: was.Max}))
	err = find(client).await(pollIn, patience)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was))
	require.Equal(t, syscall.EMFILE, err)

	_, err = send(server, []byte("x"), 0)
	require.Zero(t, err)
	require.EqualValues(t, pollIn, pollOne(t, client, pollIn, int32(patience/time.Millisecond)))
}

func TestPoll(t *testing.T) {
	client, server := pair(t)
	var pipe [2]int
	require.NoError(t, syscall.Pipe2(pipe[:], syscall.O_CLOEXEC))
	defer syscall.Close(pipe[0])
	defer syscall.Close(pipe[1])
	fds := []pollFD{{client, pollIn, 0}, {int32(pipe[0]), pollIn, 0}, {-1, pollIn, 99}, {server, pollIn, 0}}
	rpoll := func(timeout int32) int {
		n, err := again(func() (int, syscall.Errno) { return c.Rpoll(unsafe.Pointer(&fds[0]), uint64(len(fds)), timeout) })
		require.Zero(t, err)
		return n
	}
	began := time.Now()
	require.Zero(t, rpoll(20))
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	require.Zero(t, fds[2].revents, "a negative descriptor is left out")

	n := make(chan int)
	go func() { n <- rpoll(-1) }()
	_, err := syscall.Write(pipe[1], []byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, <-n)
	require.EqualValues(t, pollIn, fds[1].revents)
	_, err = syscall.Read(pipe[0], make([]byte, 1))
	require.NoError(t, err)

	go func() { n <- rpoll(-1) }()
	_, failed := send(server, []byte("x"), 0)
	require.Zero(t, failed)
	require.Equal(t, 1, <-n)
	require.EqualValues(t, pollIn, fds[0].revents)
	_, err = syscall.Write(pipe[1], []byte("x"))
	require.NoError(t, err)
	require.Equal(t, 2, rpoll(-1))

	fds = []pollFD{{1 << 20, pollIn, 0}, {client, pollIn, 0}}
	require.Equal(t, 2, rpoll(-1))
	require.EqualValues(t, pollNval, fds[0].revents)

	for name, tt := range map[string]struct {
		fds  unsafe.Pointer
		n    uint64
		want syscall.Errno
	}{
		"no array":      {nil, 1, syscall.EFAULT},
		"too many":      {unsafe.Pointer(&fds[0]), 1 << 40, syscall.EINVAL},
		"none at all":   {nil, 0, 0},
		"zero of array": {unsafe.Pointer(&fds[0]), 0, 0},
	} {
		_, err := c.Rpoll(tt.fds, tt.n, 0)
		require.Equal(t, tt.want, err, name)
	}
}

func TestSelect(t *testing.T) {
	client, server := pair(t)
	_, err := send(server, []byte("x"), 0)
	require.Zero(t, err)
	eventually(t, client, pollIn, pollIn)
	var read, write, except [16]uint64
	for _, set := range []*[16]uint64{&read, &write, &except} {
		set[client/64] |= 1 << (client % 64)
		set[server/64] |= 1 << (server % 64)
	}
	n, err := again(func() (int, syscall.Errno) {
		return c.Rselect(max(client, server)+1, unsafe.Pointer(&read), unsafe.Pointer(&write), unsafe.Pointer(&except), nil)
	})
	require.Zero(t, err)
	require.Equal(t, 3, n)
	var onlyClient, both, none [16]uint64
	onlyClient[client/64] |= 1 << (client % 64)
	both = onlyClient
	both[server/64] |= 1 << (server % 64)
	require.Equal(t, onlyClient, read)
	require.Equal(t, both, write)
	require.Equal(t, none, except)
	n, err = again(func() (int, syscall.Errno) {
		return c.Rselect(0, nil, nil, nil, unsafe.Pointer(&syscall.Timeval{Usec: 1000}))
	})
	require.Zero(t, err)
	require.Zero(t, n)
	_, err = c.Rselect(-1, nil, nil, nil, nil)
	require.Equal(t, syscall.EINVAL, err)
}

// epollData returns struct epoll_event.
func epollData(events uint32, data uint64) *event {
	e := new(event)
	binary.NativeEndian.PutUint32(e[:], events)
	binary.NativeEndian.PutUint64(e.data(), data)
	return e
}

func TestEpoll(t *testing.T) {
	client, server := pair(t)
	var pipe [2]int
	require.NoError(t, syscall.Pipe2(pipe[:], syscall.O_CLOEXEC))
	defer syscall.Close(pipe[0])
	defer syscall.Close(pipe[1])
	fd, err := c.RepollCreate(syscall.O_CLOEXEC)
	require.Zero(t, err)
	epfd := int32(fd)
	ctl := func(op, fd int32, events uint32) syscall.Errno {
		return c.RepollCtl(epfd, op, fd, unsafe.Pointer(epollData(events, uint64(fd)<<33)))
	}
	wait := func(timeout int32) map[int32]uint32 {
		var events [8]event
		n, err := again(func() (int, syscall.Errno) {
			return c.RepollWait(epfd, unsafe.Pointer(&events), int32(len(events)), timeout)
		})
		require.Zero(t, err)
		got := map[int32]uint32{}
		for i := range events[:n] {
			got[int32(binary.NativeEndian.Uint64(events[i].data())>>33)] = events[i].events()
		}
		return got
	}
	require.Zero(t, ctl(syscall.EPOLL_CTL_ADD, client, pollIn))
	require.Equal(t, syscall.EEXIST, ctl(syscall.EPOLL_CTL_ADD, client, pollIn))
	require.Equal(t, syscall.ENOENT, ctl(syscall.EPOLL_CTL_MOD, server, pollIn))
	require.Zero(t, ctl(syscall.EPOLL_CTL_ADD, int32(pipe[0]), pollIn))
	require.Equal(t, syscall.EINVAL, ctl(99, client, 0))
	require.Equal(t, syscall.EINVAL, ctl(syscall.EPOLL_CTL_ADD, epfd, 0))
	require.Equal(t, syscall.EBADF, ctl(syscall.EPOLL_CTL_ADD, -1, 0))
	require.Equal(t, syscall.EFAULT, c.RepollCtl(epfd, syscall.EPOLL_CTL_MOD, client, nil))
	require.Empty(t, wait(5))

	got := make(chan map[int32]uint32)
	go func() { got <- wait(-1) }()
	_, err = send(server, []byte("x"), 0)
	require.Zero(t, err)
	require.Equal(t, map[int32]uint32{client: pollIn}, <-got)
	require.Equal(t, map[int32]uint32{client: pollIn}, wait(-1), "level")
	_, _ = syscall.Write(pipe[1], []byte("x"))
	require.Equal(t, map[int32]uint32{client: pollIn, int32(pipe[0]): pollIn}, wait(-1))
	_, _ = syscall.Read(pipe[0], make([]byte, 1))

	require.Zero(t, ctl(syscall.EPOLL_CTL_MOD, client, pollIn|pollOut|epollET))
	require.Equal(t, map[int32]uint32{client: pollIn | pollOut}, wait(-1))
	require.Empty(t, wait(5), "edge")
	go func() { got <- wait(-1) }()
	_, err = send(server, []byte("y"), 0)
	require.Zero(t, err)
	require.Equal(t, map[int32]uint32{client: pollIn | pollOut}, <-got)

	require.Zero(t, ctl(syscall.EPOLL_CTL_MOD, client, pollIn|epollOneshot))
	require.Equal(t, map[int32]uint32{client: pollIn}, wait(-1))
	require.Empty(t, wait(5), "once")
	go func() { got <- wait(-1) }() // a change reaches a thread that waits
	require.Zero(t, ctl(syscall.EPOLL_CTL_MOD, client, pollOut))
	require.Equal(t, map[int32]uint32{client: pollOut}, <-got)
	require.Zero(t, ctl(syscall.EPOLL_CTL_DEL, client, 0))
	require.Empty(t, wait(5))

	require.Zero(t, ctl(syscall.EPOLL_CTL_ADD, server, pollOut))
	require.Zero(t, c.Rclose(server)) // takes it out
	require.Empty(t, wait(5))
	_, err = c.RepollWait(epfd, nil, 1, 0)
	require.Equal(t, syscall.EFAULT, err)
	require.Zero(t, c.Rclose(epfd))
	_, err = c.RepollWait(epfd, unsafe.Pointer(new(event)), 1, 0)
	require.Equal(t, syscall.EINVAL, err)
}

func TestOptions(t *testing.T) {
	fd := newTestSocket(t, syscall.AF_INET6)
	for _, tt := range []struct {
		level, name, set, want int32
		err                    syscall.Errno
	}{
		{syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1, 1, 0},
		{syscall.SOL_SOCKET, syscall.SO_RCVBUF, 10000, 20000, 0},
		{syscall.SOL_SOCKET, syscall.SO_SNDBUF, 10000, 20000, 0},
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1, 1, 0},
		{syscall.SOL_SOCKET, syscall.SO_OOBINLINE, 1, 1, 0},
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1, 1, 0},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 5, 5, 0},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 0, 5, syscall.EINVAL},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3, 3, 0},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 4, 4, 0},
		{syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1000, 2048, 0},
		{syscall.IPPROTO_IP, syscall.IP_TOS, 8, 8, 0},
		{syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 1, 1, 0},
		{solRDMA, rdmaSQSize, 100, 100, 0},
		{solRDMA, rdmaRQSize, 200, 200, 0},
		{solRDMA, rdmaInline, 32, 32, 0},
		{solRDMA, rdmaInline, 0, 0, 0},
		{solRDMA, rdmaIOMapSize, 8, 8, 0},
	} {
		require.Equal(t, tt.err, setInt(fd, tt.level, tt.name, tt.set), tt)
		require.Equal(t, tt.want, getInt(t, fd, tt.level, tt.name), tt)
	}
	require.Equal(t, syscall.ENOTSUP, setInt(fd, 12345, 1, 1))
	require.Equal(t, syscall.EINVAL, c.Rsetsockopt(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, unsafe.Pointer(new(byte)), 1))
	require.EqualValues(t, syscall.SOCK_STREAM, getInt(t, fd, syscall.SOL_SOCKET, syscall.SO_TYPE))
	var info [tcpInfoLen]byte
	length := uint32(len(info))
	client, _ := pair(t)
	require.Zero(t, c.Rgetsockopt(client, syscall.IPPROTO_TCP, tcpInfo, unsafe.Pointer(&info), &length))
	require.EqualValues(t, tcpEstablished, info[0])
	require.Equal(t, syscall.EINVAL, setInt(client, solRDMA, rdmaSQSize, 100))

	// A timeout of a transfer.
	t20 := [2]int64{0, 20000}
	require.Zero(t, c.Rsetsockopt(client, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, unsafe.Pointer(&t20), 16))
	began := time.Now()
	_, err := recv(client, make([]byte, 1), 0)
	require.Equal(t, syscall.EAGAIN, err)
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
}

// Many threads use one socket, and each byte is received once.
func TestManyThreads(t *testing.T) {
	client, server := pair(t)
	const threads, each, size = 8, 200, 1000
	var sending, receiving sync.WaitGroup
	for i := range threads {
		sending.Go(func() {
			b := bytes.Repeat([]byte{byte(i)}, size)
			for range each {
				n, err := send(client, b, 0)
				require.Zero(t, err)
				require.Equal(t, size, n)
			}
		})
	}
	var mu sync.Mutex
	var counts [threads]int
	for i := range threads {
		receiving.Go(func() {
			b := make([]byte, 777)
			for {
				if i%2 == 0 {
					pollOne(t, server, pollIn, -1)
				}
				n, err := recv(server, b, int32(i%2)*syscall.MSG_DONTWAIT)
				if err == syscall.EAGAIN {
					continue
				}
				require.Zero(t, err)
				if n == 0 {
					return
				}
				mu.Lock()
				for _, x := range b[:n] {
					counts[x]++
				}
				mu.Unlock()
			}
		})
	}
	sending.Wait()
	require.Zero(t, c.Rshutdown(client, syscall.SHUT_WR))
	receiving.Wait()
	for _, n := range counts {
		require.Equal(t, each*size, n)
	}
}

// A flood of clients all get through, and what is not accepted is closed.
func TestFlood(t *testing.T) {
	ln, at := listener(t, "127.0.0.1", 4)
	addr, length := sockaddr(t, at.String())
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			fd, err := c.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
			require.Zero(t, err)
			require.Zero(t, c.Rconnect(int32(fd), addr, length))
			_, err = send(int32(fd), []byte("x"), 0)
			require.Zero(t, err)
			_, err = recv(int32(fd), make([]byte, 1), 0)
			require.Contains(t, []syscall.Errno{0, syscall.ECONNRESET}, err)
			require.Zero(t, c.Rclose(int32(fd)))
		})
	}
	for range 40 {
		server := acceptOne(t, ln)
		n, err := recv(server, make([]byte, 1), 0)
		require.Zero(t, err)
		require.Equal(t, 1, n)
		require.Zero(t, c.Rclose(server))
	}
	all.Wait()
	unaccepted := newTestSocket(t, syscall.AF_INET)
	require.Zero(t, c.Rconnect(unaccepted, addr, length))
	require.Zero(t, c.Rclose(ln))
	pollOne(t, unaccepted, pollIn, -1)
}

// Every function is called with nonsense for each argument: descriptors of
// nothing, of a file and of sockets in each state, null pointers, and all kinds
// of numbers.
func TestMisuse(t *testing.T) {
	client, server := pair(t)
	ln, _ := listener(t, "127.0.0.1", 1)
	fresh := newTestSocket(t, syscall.AF_INET)
	setNonblocking(t, client, true)
	setNonblocking(t, server, true)
	setNonblocking(t, ln, true)
	setNonblocking(t, fresh, true)
	at := "127.0.0.1"
	if !hasDatagrams(t) {
		at = "" // rbind would find no device
	}
	datagrams, _ := newDatagrams(t, syscall.AF_INET, at)
	setNonblocking(t, datagrams, true)
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range []int64{-1, 0, 1 << 20, int64(client), int64(ln), int64(fresh), int64(datagrams)} {
		for _, n := range []int64{0, 1, -1, 1 << 31, -1 << 63} {
			fill := misuse.Filled(n)
			functions := reflect.ValueOf(c)
			for i := range functions.NumField() {
				name, f := functions.Type().Field(i).Name, functions.Field(i)
				if f.IsNil() || name == "Rsocket" || name == "RepollCreate" || name == "Rclose" || name == "Rpoll" || name == "Rselect" {
					continue
				}
				in := []reflect.Value{reflect.ValueOf(int32(fd))}
				for j := 1; j < f.Type().NumIn(); j++ {
					v := fill(f.Type().In(j))
					if k := v.Kind(); k == reflect.Pointer || k == reflect.UnsafePointer {
						v = reflect.Zero(v.Type()) // memory of C's of an unknown length cannot be misused safely
					}
					in = append(in, v)
				}
				require.NotPanics(t, func() { f.Call(in) }, "%s with %d and %d", name, fd, n)
			}
		}
	}
	for _, args := range [][3]int32{
		{-1, 1, 0},
		{syscall.AF_UNIX, syscall.SOCK_STREAM, 0},
		{syscall.AF_INET, syscall.SOCK_RAW, 0},
		{syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_UDP},
		{syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_TCP},
	} {
		_, err := c.Rsocket(args[0], args[1], args[2])
		require.Equal(t, syscall.ENOTSUP, err, args)
	}
	for _, fd := range []int32{-1, 0, 1 << 20} {
		require.Equal(t, syscall.EBADF, c.Rclose(fd))
	}
	addr, length := sockaddr(t, "127.0.0.1:7000")
	require.Equal(t, syscall.EAFNOSUPPORT, c.Rbind(newTestSocket(t, syscall.AF_INET6), addr, length))
	require.Equal(t, syscall.EINVAL, c.Rbind(fresh, addr, 15))
	require.Equal(t, syscall.EFAULT, c.Rbind(fresh, nil, 16))
	elsewhere, length := sockaddr(t, "192.0.2.77:7000")
	require.NotZero(t, c.Rbind(fresh, elsewhere, length))
	gone := newTestSocket(t, syscall.AF_INET)
	require.Zero(t, c.Rclose(gone))
	require.Equal(t, syscall.EBADF, c.Rclose(gone))
	require.Equal(t, syscall.EBADF, c.Rlisten(gone, 1))
	after, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	require.Less(t, len(after), len(files)+20, "descriptors are left")
}

// The table in docs/softroce.md says which functions there are.
func TestDocumentedFunctions(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/softroce.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]*\\| (`[^|]+) \\| (yes|no|differs) \\| [^|]*\\|$").FindAllStringSubmatch(string(doc), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name = strings.ToLower(strings.ReplaceAll(strings.Trim(name, "`"), "_", ""))
			documented[name] = row[2]
		}
	}
	functions := reflect.ValueOf(c)
	for i := range functions.NumField() {
		name := strings.ToLower(functions.Type().Field(i).Name)
		status, ours := documented[name]
		switch {
		case !functions.Field(i).IsNil():
			require.Contains(t, []string{"yes", "differs"}, status, name)
		case ours && strings.HasPrefix(name, "r"):
			require.Equal(t, "no", status, name)
		}
	}
}
