// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// rawOf returns the raw connection of a connection.
func rawOf(t *testing.T, conn *rsocket.Conn) syscall.RawConn {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	return raw
}

// lookAt returns what a call of recv(2) with flags gives, into a buffer of a
// size.
func lookAt(t *testing.T, conn *rsocket.Conn, size, flags int) (got []byte, err error) {
	t.Helper()
	failed := rawOf(t, conn).Read(func(fd uintptr) bool {
		b := make([]byte, size)
		var n int
		n, _, err = syscall.Recvfrom(int(fd), b, flags)
		got = b[:max(n, 0)]
		return true
	})
	if failed != nil {
		return nil, failed
	}
	return got, err
}

const peek = syscall.MSG_PEEK | syscall.MSG_DONTWAIT

// arrives waits until bytes have arrived.
func arrives(t *testing.T, conn *rsocket.Conn, n int) {
	t.Helper()
	cmtest.Soon(t, "what was written arrives", func() bool { return conn.Buffered() == n })
}

// A look says what Read would say, and takes what it reads.
func TestSyscallConn(t *testing.T) {
	client, server := pair(t, rsocket.Config{}, rsocket.Config{})
	for _, flags := range []int{peek, 0} { // go-redis's way, and go-sql-driver/mysql's
		_, err := lookAt(t, client, 1, flags)
		require.ErrorIs(t, err, syscall.EAGAIN, "the connection is idle")
	}
	echo(t, client, server)

	_, err := server.Write([]byte("unexpected"))
	require.NoError(t, err)
	arrives(t, client, 10)
	for range 2 {
		got, err := lookAt(t, client, 4, peek)
		require.NoError(t, err)
		require.Equal(t, "unex", string(got))
	}
	got, err := lookAt(t, client, 2, 0)
	require.NoError(t, err)
	require.Equal(t, "un", string(got))
	b := make([]byte, 8)
	_, err = io.ReadFull(client, b)
	require.NoError(t, err)
	require.Equal(t, "expected", string(b), "the look has taken what it has read")

	_, err = server.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, server.CloseWrite())
	arrives(t, client, 4)
	got, err = lookAt(t, client, 100, 0)
	require.NoError(t, err)
	require.Equal(t, "last", string(got))
	cmtest.Soon(t, "the end of file", func() bool {
		got, err := lookAt(t, client, 1, peek)
		return err == nil && len(got) == 0
	})
	_, err = client.Read(b)
	require.Equal(t, io.EOF, err)
}

// All of a stream can be read by looks, however it is cut.
func TestSyscallConnReadsStream(t *testing.T) {
	client, server := pair(t, rsocket.Config{}, rsocket.Config{ReadBuffer: 1 << 14})
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<13)
	wrote := inBackground(func() error {
		_, err := client.Write(sent)
		return errors.Join(err, client.CloseWrite())
	})
	var got []byte
	for size := 1; ; size = size%7000 + 1 {
		n := 0
		err := rawOf(t, server).Read(func(fd uintptr) bool {
			b := make([]byte, size)
			var err error
			n, err = syscall.Read(int(fd), b)
			got = append(got, b[:max(n, 0)]...)
			return !errors.Is(err, syscall.EAGAIN)
		})
		require.NoError(t, err)
		if n == 0 {
			break
		}
		if size%3 == 0 { // Read takes turns
			b := make([]byte, 5)
			n, _ := server.Read(b)
			got = append(got, b[:n]...)
		}
	}
	require.NoError(t, cmtest.Take(t, wrote, "what was written"))
	require.True(t, bytes.Equal(sent, got))
}

// The look of a connection that has ended says so.
func TestSyscallConnOfEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(t *testing.T, client, server *rsocket.Conn)
		want error // nil for the end of file
	}{
		"closed by the peer": {func(t *testing.T, _, server *rsocket.Conn) { require.NoError(t, server.Close()) }, nil},
		"dropped by the peer": {func(t *testing.T, _, server *rsocket.Conn) {
			require.NoError(t, server.SetLinger(0))
			require.NoError(t, server.Close())
		}, syscall.ECONNRESET},
		"closed for reading": {func(t *testing.T, client, _ *rsocket.Conn) { require.NoError(t, client.CloseRead()) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, rsocket.Config{}, rsocket.Config{})
			tt.end(t, client, server)
			cmtest.Soon(t, "the look says it", func() bool {
				got, err := lookAt(t, client, 1, peek)
				if errors.Is(err, syscall.EAGAIN) {
					return false
				}
				require.ErrorIs(t, err, tt.want)
				require.Empty(t, got)
				return true
			})
		})
	}
}

// A look that waits ends with what it waits for, with its deadline, and with
// Close.
func TestSyscallConnWaits(t *testing.T) {
	client, server := pair(t, rsocket.Config{}, rsocket.Config{})
	calls := make(chan int, 10)
	wait := func() <-chan error {
		return inBackground(func() error {
			return rawOf(t, client).Read(func(fd uintptr) bool {
				n, _, _ := syscall.Recvfrom(int(fd), make([]byte, 10), peek)
				calls <- n
				return n == 2
			})
		})
	}
	waits := wait()
	require.Equal(t, -1, cmtest.Take(t, calls, "the first call"))
	_, err := server.Write([]byte("a"))
	require.NoError(t, err)
	require.Equal(t, 1, cmtest.Take(t, calls, "the call for the first byte"))
	_, err = server.Write([]byte("b"))
	require.NoError(t, err)
	require.NoError(t, cmtest.Take(t, waits, "the second byte"))
	require.Equal(t, 2, cmtest.Take(t, calls, "the call for the second byte"))
	_, err = io.ReadFull(client, make([]byte, 2))
	require.NoError(t, err)

	waits = wait()
	cmtest.Take(t, calls, "a call")
	require.NoError(t, client.SetReadDeadline(time.Now()))
	require.ErrorIs(t, cmtest.Take(t, waits, "the deadline"), os.ErrDeadlineExceeded)
	require.ErrorIs(t, cmtest.Take(t, wait(), "the deadline"), os.ErrDeadlineExceeded)
	require.NoError(t, client.SetReadDeadline(time.Time{}))
	require.Empty(t, calls)

	waits = wait()
	cmtest.Take(t, calls, "a call")
	raw := rawOf(t, client)
	require.NoError(t, client.Close())
	require.ErrorIs(t, cmtest.Take(t, waits, "Close"), net.ErrClosed)
	require.ErrorIs(t, raw.Read(func(uintptr) bool { return true }), net.ErrClosed)
	_, err = client.SyscallConn()
	require.ErrorIs(t, err, net.ErrClosed)
}

// The descriptor cannot harm the connection.
func TestSyscallConnMisuse(t *testing.T) {
	client, server := pair(t, rsocket.Config{}, rsocket.Config{})
	raw := rawOf(t, client)
	unexpected := func(uintptr) bool { t.Error("called"); return true }
	require.ErrorIs(t, raw.Write(unexpected), errors.ErrUnsupported)
	require.ErrorIs(t, raw.Control(func(fd uintptr) { unexpected(fd) }), errors.ErrUnsupported)
	require.ErrorIs(t, raw.Read(nil), syscall.EINVAL)
	var kept uintptr
	var copied int
	require.NoError(t, raw.Read(func(fd uintptr) bool {
		_, err := syscall.Write(int(fd), []byte("lost"))
		require.ErrorIs(t, err, syscall.EPIPE)
		copied, err = syscall.Dup(int(fd))
		require.NoError(t, err)
		kept = fd
		return true
	}))
	defer syscall.Close(copied)
	_, err := syscall.Read(int(kept), make([]byte, 1))
	require.ErrorIs(t, err, syscall.EBADF, "lent for the call")
	_, err = server.Write([]byte("here"))
	require.NoError(t, err)
	arrives(t, client, 4)
	n, err := syscall.Read(copied, make([]byte, 4))
	require.NoError(t, err)
	require.Zero(t, n, "a copy is at its end")
	b := make([]byte, 4)
	_, err = io.ReadFull(client, b)
	require.NoError(t, err)
	require.Equal(t, "here", string(b))
	require.Panics(t, func() { _ = raw.Read(func(uintptr) bool { panic("f") }) })
	echo(t, client, server) // no call owns the reader

	// io.Copy, and what of the library looks for a syscall.Conn, does as before.
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	_, err = server.Write([]byte("to a file"))
	require.NoError(t, err)
	require.NoError(t, server.CloseWrite())
	copiedBytes, err := file.ReadFrom(client)
	require.NoError(t, err)
	require.EqualValues(t, 9, copiedBytes)
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	copiedBytes, err = io.Copy(client, file)
	require.NoError(t, err)
	require.EqualValues(t, 9, copiedBytes)
	got := make([]byte, 9)
	_, err = io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, "to a file", string(got))
}

// Looks of many goroutines, while others read and write.
func TestSyscallConnConcurrently(t *testing.T) {
	client, server := pair(t, rsocket.Config{}, rsocket.Config{})
	const size = 1 << 20
	var all sync.WaitGroup
	wrote := inBackground(func() error {
		_, err := io.CopyN(server, zeros{}, size)
		return err
	})
	done := make(chan struct{})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_, _ = lookAt(t, client, 16, peek)
				}
			}
		})
	}
	n, err := io.CopyN(io.Discard, client, size)
	close(done)
	all.Wait()
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.NoError(t, cmtest.Take(t, wrote, "what was written"))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
