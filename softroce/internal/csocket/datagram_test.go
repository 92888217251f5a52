// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// hasDatagrams reports whether the device has datagrams, which VERBENA_LIMITS
// may take from it.
func hasDatagrams(t testing.TB) bool {
	t.Helper()
	fd, _ := newDatagrams(t, syscall.AF_INET, "")
	addr, length := sockaddr(t, "127.0.0.1:0")
	err := c.Rbind(fd, addr, length)
	if err == syscall.EOPNOTSUPP && os.Getenv("VERBENA_LIMITS") != "" {
		return false
	}
	require.Zero(t, err)
	return true
}

// needDatagrams skips the test if the device has no datagrams.
func needDatagrams(t testing.TB) {
	t.Helper()
	if !hasDatagrams(t) {
		t.Skip("is about datagrams, which VERBENA_LIMITS takes from the device")
	}
}

// newDatagrams makes a socket for datagrams, which the test closes, and binds
// it if there is a host.
func newDatagrams(t testing.TB, family int32, host string) (int32, netip.AddrPort) {
	t.Helper()
	fd, err := c.Rsocket(family, syscall.SOCK_DGRAM, 0)
	require.Zero(t, err)
	t.Cleanup(func() { c.Rclose(int32(fd)) })
	if host == "" {
		return int32(fd), netip.AddrPort{}
	}
	addr, length := sockaddr(t, netip.AddrPortFrom(netip.MustParseAddr(host), 0).String())
	require.Zero(t, c.Rbind(int32(fd), addr, length))
	return int32(fd), named(t, int32(fd), c.Rgetsockname)
}

func sendTo(t testing.TB, fd int32, data string, to netip.AddrPort) (int, syscall.Errno) {
	t.Helper()
	addr, length := sockaddr(t, to.String())
	return c.Rsendto(fd, unsafe.Pointer(unsafe.StringData(data)), uint64(len(data)), 0, addr, length)
}

func recvFrom(t testing.TB, fd int32, size int, flags int32) (string, netip.AddrPort, syscall.Errno) {
	t.Helper()
	b, name := make([]byte, size), new([sockaddr6Len]byte)
	addr, length := (*librdmacm.Sockaddr)(unsafe.Pointer(name)), uint32(len(name))
	n, err := c.Rrecvfrom(fd, unsafe.Pointer(unsafe.SliceData(b)), uint64(size), flags, addr, &length)
	if err != 0 {
		return "", netip.AddrPort{}, err
	}
	from, err := addrOf(addr, length, find(fd).family)
	require.Zero(t, err)
	return string(b[:min(n, size)]), from, 0
}

// Datagrams go both ways, however the sockets wait.
func TestDatagrams(t *testing.T) {
	needDatagrams(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		for name, wait := range map[string]func(t *testing.T, fd int32){
			"recvfrom": func(*testing.T, int32) {},
			"rpoll":    func(t *testing.T, fd int32) { require.EqualValues(t, pollIn, pollOne(t, fd, pollIn, -1)) },
			"repoll": func(t *testing.T, fd int32) {
				set := newTestSet(t)
				require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, fd, pollIn))
				got, err := waitOn(set, 1, -1)
				require.Zero(t, err)
				require.Equal(t, []int32{fd}, got)
			},
			"rselect": func(t *testing.T, fd int32) {
				read := make([]uintptr, fd/64+1)
				read[fd/64] |= 1 << (fd % 64)
				n, err := again(func() (int, syscall.Errno) { return c.Rselect(fd+1, unsafe.Pointer(&read[0]), nil, nil, nil) })
				require.Zero(t, err)
				require.Equal(t, 1, n)
			},
		} {
			t.Run(host+" "+name, func(t *testing.T) {
				family := int32(syscall.AF_INET)
				if host == "::1" {
					family = syscall.AF_INET6
				}
				server, at := newDatagrams(t, family, host)
				client, _ := newDatagrams(t, family, "")
				addr, length := sockaddr(t, at.String())
				require.Zero(t, c.Rconnect(client, addr, length))
				require.Equal(t, at, named(t, client, c.Rgetpeername))
				own := named(t, client, c.Rgetsockname)
				require.Equal(t, host, own.Addr().String())
				for range 50 { // first over UDP, then over RDMA
					n, err := send(client, []byte("question"), 0)
					require.Zero(t, err)
					require.Equal(t, 8, n)
					wait(t, server)
					got, from, err := recvFrom(t, server, 100, 0)
					require.Zero(t, err)
					require.Equal(t, "question", got)
					require.Equal(t, own, from)
					_, err = sendTo(t, server, "answer", from)
					require.Zero(t, err)
					wait(t, client)
					b := make([]byte, 3)
					n, err = recv(client, b, syscall.MSG_PEEK|syscall.MSG_TRUNC)
					require.Zero(t, err)
					require.Equal(t, 6, n)
					require.Equal(t, "ans", string(b))
					n, err = recv(client, b, 0)
					require.Zero(t, err)
					require.Equal(t, 3, n)
				}
				_, err := recv(client, make([]byte, 1), syscall.MSG_DONTWAIT)
				require.Equal(t, syscall.EAGAIN, err, "the rest of a datagram is lost")
			})
		}
	}
}

// A connected socket gets the datagrams of its peer alone.
func TestDatagramsOfOthers(t *testing.T) {
	needDatagrams(t)
	client, at := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	server, there := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	other, _ := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	addr, length := sockaddr(t, there.String())
	require.Zero(t, c.Rconnect(client, addr, length))
	for range 50 {
		_, err := sendTo(t, other, "of another", at)
		require.Zero(t, err)
		_, err = sendTo(t, server, "of the peer", at)
		require.Zero(t, err)
		got, from, err := recvFrom(t, client, 100, 0)
		require.Zero(t, err)
		require.Equal(t, "of the peer", got)
		require.Equal(t, there, from)
	}
}

// A socket on all addresses of both families talks with peers of both.
func TestDatagramsOfBothFamilies(t *testing.T) {
	needDatagrams(t)
	server, at := newDatagrams(t, syscall.AF_INET6, "::")
	for family, host := range map[int32]string{syscall.AF_INET: "127.0.0.1", syscall.AF_INET6: "::1"} {
		client, _ := newDatagrams(t, family, "")
		for range 10 {
			_, err := sendTo(t, client, "question", netip.AddrPortFrom(netip.MustParseAddr(host), at.Port()))
			require.Zero(t, err)
			got, from, err := recvFrom(t, server, 100, 0)
			require.Zero(t, err)
			require.Equal(t, "question", got)
			mapped := netip.AddrPortFrom(netip.AddrFrom16(from.Addr().As16()), from.Port())
			b := new([sockaddr6Len]byte)
			addr, length := (*librdmacm.Sockaddr)(unsafe.Pointer(b)), uint32(sockaddr6Len)
			require.Zero(t, putAddr(mapped, syscall.AF_INET6, addr, &length))
			answer := []byte("answer")
			_, err = c.Rsendto(server, unsafe.Pointer(&answer[0]), 6, 0, addr, length)
			require.Zero(t, err)
			got, from, err = recvFrom(t, client, 100, 0)
			require.Zero(t, err)
			require.Equal(t, "answer", got)
			require.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(host), at.Port()), from)
		}
	}
}

// Messages with addresses and several parts.
func TestDatagramMessages(t *testing.T) {
	needDatagrams(t)
	server, at := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	client, own := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	for range 20 {
		addr, length := sockaddr(t, at.String())
		parts := []iovec{{unsafe.Pointer(unsafe.StringData("hel")), 3}, {}, {unsafe.Pointer(unsafe.StringData("lo")), 2}}
		m := msghdr{name: unsafe.Pointer(addr), namelen: length, iov: unsafe.Pointer(&parts[0]), iovlen: 3}
		n, err := c.Rsendmsg(client, unsafe.Pointer(&m), 0)
		require.Zero(t, err)
		require.Equal(t, 5, n)
		one, rest, name := make([]byte, 1), make([]byte, 2), new([sockaddr6Len]byte)
		parts = []iovec{{unsafe.Pointer(&one[0]), 1}, {unsafe.Pointer(&rest[0]), 2}}
		m = msghdr{name: unsafe.Pointer(name), namelen: sockaddr6Len, iov: unsafe.Pointer(&parts[0]), iovlen: 2, controllen: 7}
		n, err = c.Rrecvmsg(server, unsafe.Pointer(&m), 0)
		require.Zero(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, "hel", string(one)+string(rest))
		require.EqualValues(t, syscall.MSG_TRUNC, m.flags)
		require.Zero(t, m.controllen)
		from, err := addrOf((*librdmacm.Sockaddr)(unsafe.Pointer(name)), m.namelen, syscall.AF_INET)
		require.Zero(t, err)
		require.Equal(t, own, from)
	}
}

// What a socket for datagrams says of itself, and what it refuses.
func TestDatagramMistakes(t *testing.T) {
	needDatagrams(t)
	fd, err := c.Rsocket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK, syscall.IPPROTO_UDP)
	require.Zero(t, err)
	s := int32(fd)
	t.Cleanup(func() { c.Rclose(s) })
	require.EqualValues(t, syscall.SOCK_DGRAM, getInt(t, s, syscall.SOL_SOCKET, syscall.SO_TYPE))
	require.EqualValues(t, syscall.IPPROTO_UDP, getInt(t, s, syscall.SOL_SOCKET, soProtocol))
	require.EqualValues(t, pollOut, pollOne(t, s, pollIn|pollOut, 0))
	b := make([]byte, 4096)
	_, err = recv(s, b, 0)
	require.Equal(t, syscall.EINVAL, err, "it is not bound")
	_, err = send(s, b[:1], 0)
	require.Equal(t, syscall.EDESTADDRREQ, err)
	require.Equal(t, syscall.EOPNOTSUPP, c.Rlisten(s, 1))
	_, err = c.Raccept(s, nil, nil)
	require.Equal(t, syscall.EOPNOTSUPP, err)
	require.Equal(t, syscall.EOPNOTSUPP, c.Rshutdown(s, syscall.SHUT_RDWR))
	require.Equal(t, syscall.ENOTCONN, c.Rgetpeername(s, nil, new(uint32)))

	used, at := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
	addr, length := sockaddr(t, at.String())
	require.Equal(t, syscall.EADDRINUSE, c.Rbind(s, addr, length))
	require.Equal(t, syscall.EINVAL, c.Rbind(used, addr, length), "it is bound")
	_, err = sendTo(t, s, string(b), at)
	require.Equal(t, syscall.EMSGSIZE, err)
	_, err = sendTo(t, s, "x", netip.AddrPortFrom(at.Addr(), 0))
	require.Equal(t, syscall.EINVAL, err)
	for _, name := range []int32{rdmaSQSize, rdmaRQSize} {
		n := int32(100)
		require.Equal(t, syscall.EINVAL, c.Rsetsockopt(used, solRDMA, name, unsafe.Pointer(&n), 4), "it is bound")
	}
	for _, to := range []string{"127.0.0.1:0", "0.0.0.0:7", "224.0.0.1:7"} {
		addr, length := sockaddr(t, to)
		require.Equal(t, syscall.EINVAL, c.Rconnect(s, addr, length), to)
	}
	_, err = recv(s, b, 0)
	require.Equal(t, syscall.EAGAIN, err, "it is bound now")
	_, err = recv(s, b, syscall.MSG_OOB)
	require.Equal(t, syscall.EOPNOTSUPP, err)
	require.Zero(t, getInt(t, s, syscall.SOL_SOCKET, syscall.SO_ERROR))
	_, err = c.Rrecvfrom(s, unsafe.Pointer(&b[0]), 1, 0, addr, nil)
	require.Equal(t, syscall.EFAULT, err)

	for _, protocol := range []int32{syscall.IPPROTO_TCP, 77} {
		_, err = c.Rsocket(syscall.AF_INET, syscall.SOCK_DGRAM, protocol)
		require.Equal(t, syscall.ENOTSUP, err)
	}
	timeout := [16]byte{8: 10} // microseconds
	require.Zero(t, c.Rsetsockopt(used, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, unsafe.Pointer(&timeout), 16))
	_, err = recv(used, b, 0)
	require.Equal(t, syscall.EAGAIN, err)
}

// rclose ends what waits for the socket.
func TestDatagramCloseWakes(t *testing.T) {
	needDatagrams(t)
	for name, wait := range map[string]func(fd int32) syscall.Errno{
		"rrecv": func(fd int32) syscall.Errno {
			_, err := recv(fd, make([]byte, 1), 0)
			return err
		},
		"rpoll": func(fd int32) syscall.Errno {
			fds := []pollFD{{fd, pollIn, 0}}
			_, err := again(func() (int, syscall.Errno) { return c.Rpoll(unsafe.Pointer(&fds[0]), 1, -1) })
			if err == 0 && fds[0].revents == pollNval {
				return syscall.EBADF
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd, _ := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
			done := make(chan syscall.Errno, 1)
			go func() { done <- wait(fd) }()
			s := find(fd)
			require.Eventually(t, func() bool { return s.watchers.n.Load() > 0 }, patience, time.Millisecond)
			require.Zero(t, c.Rclose(fd))
			select {
			case err := <-done:
				require.Equal(t, syscall.EBADF, err)
			case <-time.After(patience):
				require.FailNow(t, "the call does not end")
			}
		})
	}
}

// Many threads use two sockets, and others close them.
func TestDatagramThreads(t *testing.T) {
	needDatagrams(t)
	for range 10 {
		a, at := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
		b, there := newDatagrams(t, syscall.AF_INET, "127.0.0.1")
		set := newTestSet(t)
		require.Zero(t, control(set, syscall.EPOLL_CTL_ADD, a, pollIn))
		var threads sync.WaitGroup
		for range 2 {
			threads.Go(func() {
				for {
					if _, err := recv(a, make([]byte, 10), 0); err != 0 {
						require.Equal(t, syscall.EBADF, err)
						return
					}
				}
			})
			threads.Go(func() {
				for pollOne(t, b, pollIn, 1000)&pollNval == 0 {
					if _, err := recv(b, make([]byte, 10), syscall.MSG_DONTWAIT); err == syscall.EBADF {
						return
					}
				}
			})
			threads.Go(func() {
				for find(a) != nil {
					_, _ = waitOn(set, 1, 1)
				}
			})
		}
		for range 200 {
			_, err := sendTo(t, b, "x", at)
			require.Zero(t, err)
			_, err = sendTo(t, a, "y", there)
			require.Zero(t, err)
		}
		threads.Go(func() { c.Rclose(a) })
		threads.Go(func() { c.Rclose(b) })
		threads.Wait()
	}
}
