// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// Objects that are nil, or were not made by this package, fail and do not
// panic.
func TestNotMade(t *testing.T) {
	for _, c := range []*rsocket.Conn{nil, {}} {
		for name, f := range map[string]func() error{
			"Read":               func() error { _, err := c.Read(make([]byte, 1)); return err },
			"Write":              func() error { _, err := c.Write(nil); return err },
			"WriteBuffers":       func() error { _, err := c.WriteBuffers(new(net.Buffers)); return err },
			"ReadFrom":           func() error { _, err := c.ReadFrom(strings.NewReader("x")); return err },
			"WriteTo":            func() error { _, err := c.WriteTo(io.Discard); return err },
			"Peek":               func() error { _, err := c.Peek(1); return err },
			"Discard":            func() error { _, err := c.Discard(1); return err },
			"Close":              c.Close,
			"CloseRead":          c.CloseRead,
			"CloseWrite":         c.CloseWrite,
			"SetDeadline":        func() error { return c.SetDeadline(time.Time{}) },
			"SetReadDeadline":    func() error { return c.SetReadDeadline(time.Time{}) },
			"SetWriteDeadline":   func() error { return c.SetWriteDeadline(time.Time{}) },
			"SetLinger":          func() error { return c.SetLinger(0) },
			"SetKeepAlive":       func() error { return c.SetKeepAlive(true) },
			"SetKeepAlivePeriod": func() error { return c.SetKeepAlivePeriod(1) },
		} {
			require.ErrorContains(t, f(), "the Conn is nil, or was not made by this package", name)
		}
		require.Zero(t, c.Buffered())
		require.Equal(t, "rdma", c.LocalAddr().Network())
		require.Equal(t, "rdma", c.RemoteAddr().Network())
	}
	for _, ln := range []*rsocket.Listener{nil, {}} {
		_, err := ln.Accept()
		for _, err := range []error{err, ln.Close(), ln.SetDeadline(time.Time{})} {
			require.ErrorContains(t, err, "the Listener is nil, or was not made by this package")
		}
		require.Equal(t, "rdma", ln.Addr().Network())
	}
	for _, c := range []*rsocket.PacketConn{nil, {}} {
		for name, f := range map[string]func() error{
			"ReadFrom":         func() error { _, _, err := c.ReadFrom(nil); return err },
			"ReadFromAddrPort": func() error { _, _, err := c.ReadFromAddrPort(nil); return err },
			"WriteTo":          func() error { _, err := c.WriteTo(nil, rsocket.Addr{}); return err },
			"WriteTo, no Addr": func() error { _, err := c.WriteTo(nil, nil); return err },
			"WriteToAddrPort":  func() error { _, err := c.WriteToAddrPort(nil, netip.AddrPort{}); return err },
			"Close":            c.Close,
			"SetDeadline":      func() error { return c.SetDeadline(time.Time{}) },
			"SetReadDeadline":  func() error { return c.SetReadDeadline(time.Time{}) },
			"SetWriteDeadline": func() error { return c.SetWriteDeadline(time.Time{}) },
		} {
			require.ErrorContains(t, f(), "the PacketConn is nil, or was not made by this package", name)
		}
		require.Equal(t, "rdma", c.LocalAddr().Network())
	}
	var none context.Context
	_, err := (*rsocket.Dialer)(nil).Dial("rdma", "192.0.2.1:1")
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = new(rsocket.Dialer).DialContext(none, "rdma", "192.0.2.1:1")
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = (*rsocket.ListenConfig)(nil).Listen(t.Context(), "rdma", "192.0.2.1:1")
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = new(rsocket.ListenConfig).Listen(none, "rdma", "192.0.2.1:1")
	require.ErrorIs(t, err, syscall.EINVAL)
}

// Arguments that are wrong are refused, and the connection goes on.
func TestBadArguments(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	_, err := a.ReadFrom(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = a.WriteTo(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = a.WriteBuffers(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, a.SetKeepAlivePeriod(0), syscall.EINVAL)
	n, err := a.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = a.Write(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	echo(t, a, b)
}
