// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// pairWithIOMaps returns two connected sockets, to both of which the peer can
// announce n parts of its memory.
func pairWithIOMaps(t testing.TB, n int32) (client, server int32) {
	t.Helper()
	ln := newTestSocket(t, syscall.AF_INET)
	client = newTestSocket(t, syscall.AF_INET)
	addr, length := sockaddr(t, "127.0.0.1:0")
	require.Zero(t, c.Rbind(ln, addr, length))
	require.Zero(t, c.Rlisten(ln, 1))
	for _, fd := range []int32{ln, client} { // a listener gives options that are set late to later connections
		require.Zero(t, setInt(fd, solRDMA, rdmaIOMapSize, n))
	}
	addr, length = sockaddr(t, named(t, ln, c.Rgetsockname).String())
	require.Zero(t, c.Rconnect(client, addr, length))
	return client, acceptOne(t, ln)
}

func riomap(fd int32, b []byte, prot int32, offset int64) (int, syscall.Errno) {
	return c.Riomap(fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uint64(len(b)), prot, 0, offset)
}

func riounmap(fd int32, b []byte) syscall.Errno {
	return c.Riounmap(fd, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)))
}

func riowrite(fd int32, b []byte, offset int64, flags int32) (int, syscall.Errno) {
	return c.Riowrite(fd, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)), offset, flags)
}

// knows waits until fd knows of what the peer has mapped: the peer's next
// message comes after that.
func knows(t testing.TB, fd, peer int32) {
	t.Helper()
	_, err := send(peer, []byte("x"), 0)
	require.Zero(t, err)
	_, err = recv(fd, make([]byte, 1), 0)
	require.Zero(t, err)
}

// Memory is written at any place, from part to part, and before any message
// that is sent later.
func TestIOWrite(t *testing.T) {
	for _, n := range []int32{1, 2, 300} {
		client, server := pairWithIOMaps(t, n)
		memory := make([]byte, 300_000)
		want := make([]byte, len(memory))
		if n == 1 {
			at, err := riomap(server, memory, syscall.PROT_WRITE, 1000)
			require.Zero(t, err)
			require.Equal(t, 1000, at)
			_, err = riomap(server, make([]byte, 10), syscall.PROT_WRITE, 0)
			require.Equal(t, syscall.ENOMEM, err, "the peer has room for one")
		} else { // the second begins where the first ends
			_, err := riomap(server, memory[:100_000], syscall.PROT_WRITE, 1000)
			require.Zero(t, err)
			_, err = riomap(server, memory[100_000:], syscall.PROT_WRITE, 101_000)
			require.Zero(t, err)
		}
		knows(t, client, server)
		random := rand.NewChaCha8([32]byte{byte(n)})
		for i := range 100 {
			at := rand.IntN(len(memory))
			b := make([]byte, rand.IntN(min(len(memory)-at, 1+i*i*10))+1)
			_, err := random.Read(b)
			require.NoError(t, err)
			k, e := riowrite(client, b, int64(1000+at), 0)
			require.Zero(t, e)
			require.Equal(t, len(b), k)
			copy(want[at:], b)
		}
		knows(t, server, client)
		require.True(t, bytes.Equal(want, memory))

		_, err := riowrite(client, []byte("x"), 999, 0)
		require.Equal(t, syscall.EINVAL, err, "before the memory")
		_, err = riowrite(client, []byte("x"), int64(1000+len(memory)), 0)
		require.Equal(t, syscall.EINVAL, err, "behind the memory")
		k, err := riowrite(client, []byte("abc"), int64(1000+len(memory)-2), 0)
		require.Zero(t, err)
		require.Equal(t, 2, k, "as much as there is memory")
		_, err = riowrite(server, []byte("x"), 1000, 0)
		require.Equal(t, syscall.EINVAL, err, "the client has mapped nothing")
		knows(t, server, client)
		knows(t, client, server)
	}
}

// Both ends write at once, between messages. riomap is called before each
// round, so that there are more announcements than the window has credits.
func TestIOWriteBothWays(t *testing.T) {
	client, server := pairWithIOMaps(t, 4)
	var all sync.WaitGroup
	for _, fd := range []int32{client, server} {
		all.Go(func() {
			for i := range 500 {
				memory := make([]byte, 3000)
				offset, err := riomap(fd, memory, syscall.PROT_WRITE, -1)
				assertZero(t, err)
				if uintptr(offset) != uintptr(unsafe.Pointer(&memory[0])) {
					t.Errorf("offset %#x is not the address", offset)
				}
				at := int64(offset)
				_, err = send(fd, unsafe.Slice((*byte)(unsafe.Pointer(&at)), 8), 0)
				assertZero(t, err)
				var peer int64
				_, err = recv(fd, unsafe.Slice((*byte)(unsafe.Pointer(&peer)), 8), syscall.MSG_WAITALL)
				assertZero(t, err)
				_, err = riowrite(fd, bytes.Repeat([]byte{byte(i)}, 3000), peer, 0)
				assertZero(t, err)
				_, err = send(fd, []byte{1}, 0)
				assertZero(t, err)
				_, err = recv(fd, make([]byte, 1), syscall.MSG_WAITALL)
				assertZero(t, err)
				if !bytes.Equal(memory, bytes.Repeat([]byte{byte(i)}, 3000)) {
					t.Errorf("round %d: wrong memory", i)
				}
				assertZero(t, riounmap(fd, memory))
			}
		})
	}
	all.Wait()
}

func TestIOMapMistakes(t *testing.T) {
	client, server := pairWithIOMaps(t, 1)
	memory := make([]byte, 100)
	_, err := riomap(server, memory, syscall.PROT_READ, 0)
	require.Equal(t, syscall.EINVAL, err)
	_, err = riomap(server, nil, syscall.PROT_WRITE, 0)
	require.Equal(t, syscall.EFAULT, err)
	_, err = riomap(server, memory[:0], syscall.PROT_WRITE, 0)
	require.Equal(t, syscall.EINVAL, err)
	fresh := newTestSocket(t, syscall.AF_INET)
	_, err = riomap(fresh, memory, syscall.PROT_WRITE, 0)
	require.Equal(t, syscall.ENOTCONN, err)
	require.Equal(t, syscall.ENOTCONN, riounmap(fresh, memory))
	_, err = riowrite(fresh, memory, 0, 0)
	require.Equal(t, syscall.ENOTCONN, err)
	require.Equal(t, syscall.EINVAL, riounmap(server, memory))
	_, err = riomap(server, memory, syscall.PROT_NONE, 0)
	require.Zero(t, err)
	require.Equal(t, syscall.EINVAL, riounmap(server, memory[:99]))
	require.Zero(t, riounmap(server, memory))
	require.Equal(t, syscall.EINVAL, riounmap(server, memory))
	n, err := riowrite(client, memory[:0], 0, 0)
	require.Zero(t, err)
	require.Zero(t, n)

	without, _ := pair(t)
	_, err = riomap(without, memory, syscall.PROT_WRITE, 0)
	require.Equal(t, syscall.ENOMEM, err, "the peer has no table")
}

// A write to memory that is not mapped any more ends the connection.
func TestIOUnmapped(t *testing.T) {
	client, server := pairWithIOMaps(t, 1)
	memory := make([]byte, 100)
	_, err := riomap(server, memory, syscall.PROT_WRITE, 0)
	require.Zero(t, err)
	knows(t, client, server)
	require.Zero(t, riounmap(server, memory))
	_, err = riowrite(client, []byte("x"), 0, 0)
	require.Zero(t, err)
	_, err = recv(client, make([]byte, 1), 0)
	require.NotZero(t, err)
	_, err = riowrite(client, []byte("x"), 0, 0)
	require.NotZero(t, err)
	require.Equal(t, make([]byte, 100), memory)
}

// The peer closes the connection in the middle of writes, and the memory is
// free for others afterwards.
func TestIOWriteToOneThatEnds(t *testing.T) {
	for range 10 {
		client, server := pairWithIOMaps(t, 1)
		memory := make([]byte, 1<<20)
		_, err := riomap(server, memory, syscall.PROT_WRITE, 0)
		require.Zero(t, err)
		knows(t, client, server)
		done := make(chan syscall.Errno)
		go func() {
			b := make([]byte, 1<<20)
			for {
				if n, err := riowrite(client, b, 0, 0); err != 0 || n == 0 {
					done <- err
					return
				}
			}
		}()
		require.Zero(t, c.Rclose(server))
		require.Contains(t, []syscall.Errno{syscall.ECONNRESET, syscall.EIO, syscall.EPIPE, syscall.EACCES, syscall.EPROTO}, <-done)
		require.Zero(t, c.Rclose(client))
	}
}
