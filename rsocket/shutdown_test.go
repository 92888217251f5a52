// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// isOpError checks that an error is a *net.OpError for an operation and matches
// a cause.
func isOpError(t testing.TB, err error, op string, cause error) {
	t.Helper()
	failed, ok := errors.AsType[*net.OpError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, op, failed.Op)
	require.Equal(t, "rdma", failed.Net)
	require.ErrorIs(t, err, cause)
}

// What was written before the end arrives, and then the end of file; the other
// direction goes on.
func TestCloseWrite(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	data := bytesOf(300_000, 1)
	wrote := inBackground(func() error {
		if _, err := a.Write(data); err != nil {
			return err
		}
		return a.CloseWrite()
	})
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, data, got)
	require.NoError(t, <-wrote)
	_, err = a.Write([]byte{1})
	isOpError(t, err, "write", syscall.EPIPE)
	_, err = a.ReadFrom(&net.Buffers{{1}})
	isOpError(t, err, "write", syscall.EPIPE)
	require.NoError(t, a.CloseWrite(), "again")
	n, err := b.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Equal(t, io.EOF, err, "again")

	wrote = inBackground(func() error {
		if _, err := b.Write(data); err != nil {
			return err
		}
		return b.CloseWrite()
	})
	got, err = io.ReadAll(a)
	require.NoError(t, err)
	require.Equal(t, data, got)
	require.NoError(t, <-wrote)
}

// CloseRead is for this end alone, until it also closes its other direction.
func TestCloseRead(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	reading := inBackground(func() error {
		_, err := a.Read(make([]byte, 1))
		return err
	})
	require.NoError(t, a.CloseRead())
	require.Equal(t, io.EOF, <-reading)
	_, err := b.Write([]byte("this is not read"))
	require.NoError(t, err)
	_, err = a.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, a.CloseWrite())
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	_, err = b.Write([]byte{1})
	isOpError(t, err, "write", syscall.ECONNRESET)
}

// Calls that wait end with Close, and those after it fail.
func TestCloseEndsCalls(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	reading := inBackground(func() error {
		_, err := a.Read(make([]byte, 1))
		return err
	})
	writing := inBackground(func() error {
		for {
			if _, err := a.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	})
	_, err := io.ReadFull(b, make([]byte, 1000)) // both have begun, or will
	require.NoError(t, err)
	require.NoError(t, a.Close())
	isOpError(t, <-reading, "read", net.ErrClosed)
	isOpError(t, <-writing, "write", net.ErrClosed)
	require.NoError(t, a.Close(), "again")
	_, err = a.Read(nil)
	isOpError(t, err, "read", net.ErrClosed)
	_, err = a.Write(nil)
	isOpError(t, err, "write", net.ErrClosed)
	for _, err := range []error{
		a.CloseRead(), a.CloseWrite(), a.SetDeadline(time.Time{}), a.SetReadDeadline(time.Time{}), a.SetWriteDeadline(time.Time{}),
		a.SetLinger(1), a.SetKeepAlive(true), a.SetKeepAlivePeriod(1),
	} {
		require.ErrorIs(t, err, net.ErrClosed)
	}
	require.Zero(t, a.Buffered())
	_, err = io.ReadAll(b)
	require.NoError(t, err, "what was written arrives, and then the end of file")
	_, err = b.Write([]byte{1})
	isOpError(t, err, "write", syscall.ECONNRESET)
}

// Without lingering, the peer does not take the end for an orderly one.
func TestAbort(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	require.NoError(t, a.SetLinger(0))
	require.NoError(t, a.Close())
	_, err := b.Read(make([]byte, 1))
	isOpError(t, err, "read", syscall.ECONNRESET)
	require.False(t, err.(net.Error).Timeout())
}

// No linger time is so long that it drops what was written.
func TestLongLinger(t *testing.T) {
	for _, sec := range []int{math.MaxInt, 1 << 55, math.MaxInt64/1_000_000_000 + 1, math.MinInt} {
		a, b := pair(t, rsocket.Config{}, rsocket.Config{})
		require.NoError(t, a.SetLinger(sec))
		data := bytesOf(60_000, 1) // for which there is room before b does anything, also on iWARP
		_, err := a.Write(data)
		require.NoError(t, err)
		closed := inBackground(a.Close)
		got, err := io.ReadAll(b)
		require.NoError(t, err, "%d seconds", sec)
		require.Equal(t, data, got)
		require.NoError(t, <-closed)
	}
}

// Deadlines end calls that wait, and Close does not heed them.
func TestDeadlines(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	past, never := time.Unix(1, 0), time.Time{}
	data := bytesOf(1<<18, 2) // more than the window
	writing := inBackground(func() error {
		n, err := a.Write(data)
		if n <= 0 || n >= len(data) {
			return errors.New("the window has another size")
		}
		return err
	})
	_, err := io.ReadFull(b, make([]byte, 1000))
	require.NoError(t, err)
	require.NoError(t, a.SetWriteDeadline(past))
	isOpError(t, <-writing, "write", os.ErrDeadlineExceeded)
	for _, f := range []func() error{
		func() error { _, err := a.Write(data[:1]); return err },
		func() error { _, err := a.WriteBuffers(&net.Buffers{data[:1]}); return err },
		func() error { _, err := a.ReadFrom(&net.Buffers{data[:1]}); return err },
	} {
		isOpError(t, f(), "write", os.ErrDeadlineExceeded)
	}
	reading := inBackground(func() error {
		_, err := a.Read(make([]byte, 1))
		return err
	})
	require.NoError(t, a.SetReadDeadline(past))
	isOpError(t, <-reading, "read", os.ErrDeadlineExceeded)
	for _, f := range []func() error{
		func() error { _, err := b.Read(data[:1]); return err },
		func() error { _, err := b.Peek(1); return err },
		func() error { _, err := b.Discard(1); return err },
		func() error { _, err := b.WriteTo(io.Discard); return err },
	} {
		require.NoError(t, b.SetReadDeadline(past))
		err := f() // although there is something to read
		isOpError(t, err, "read", os.ErrDeadlineExceeded)
		require.True(t, err.(net.Error).Timeout())
	}
	require.NoError(t, a.SetDeadline(never))
	require.NoError(t, b.SetDeadline(never))
	_, err = b.Write([]byte("go on"))
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(a, got)
	require.NoError(t, err)
	require.NoError(t, a.SetDeadline(past))
	require.NoError(t, a.CloseWrite(), "does not wait")
	require.NoError(t, a.Close())
	_, err = io.Copy(io.Discard, b)
	require.NoError(t, err, "the end of file")
}
