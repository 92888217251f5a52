// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/verbena-go/verbena/examples/valkey/internal/servertest"
	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	_ "github.com/verbena-go/verbena/softroce"
)

func TestMain(m *testing.M) {
	m.Run()
	servertest.CleanUp()
}

// The connection behaves as package net demands, with windows of all sizes.
func TestNetConn(t *testing.T) {
	cmtest.NeedDevice(t)
	for name, window := range map[string]int{"small window": 4096, "default": 0} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				ours, other := net.Pipe()
				address, served := serveFake(t, func(f *fake) error { return f.bridge(other) })
				d := valkeyrdma.Dialer{Window: window}
				c, err := d.Dial(t.Context(), "rdma", address)
				return c, ours, func() {
					_ = c.Close()
					_ = ours.Close()
					require.NoError(t, cmtest.Take(t, served, "the server's end"))
				}, err
			})
		})
	}
}

// Whatever a server does, calls return with an error that says what.
func TestHostileServers(t *testing.T) {
	cmtest.NeedDevice(t)
	testdevice.NoLeaks(t)
	wait := (*fake).waitForEnd
	start := func(f *fake) error { return f.greet(f.window()) }
	for name, tt := range map[string]struct {
		serve []func(*fake) error
		err   string // matches what the client gets
		is    error
		dial  bool // whether Dial gets it
		write bool // whether the client writes, instead of reading
	}{
		"closes at once":          {serve: []func(*fake) error{}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"opcode 1":                {serve: []func(*fake) error{says(1, 32), wait}, err: "opcode 1, which", is: syscall.EPROTO, dial: true},
		"opcode 65535":            {serve: []func(*fake) error{start, says(65535, 32), wait}, err: "opcode 65535, which", is: syscall.EPROTO},
		"short message":           {serve: []func(*fake) error{start, says(0, 31), wait}, err: "a control message of 31 bytes", is: syscall.EPROTO},
		"empty message":           {serve: []func(*fake) error{start, says(0, 0), wait}, err: "a control message of 0 bytes", is: syscall.EPROTO},
		"long message":            {serve: []func(*fake) error{start, fails(says(0, 64)), wait}, err: "local (length|QP operation) error"},
		"features unasked":        {serve: []func(*fake) error{start, says(0, 32), wait}, err: "without being asked", is: syscall.EPROTO},
		"no bytes in the window":  {serve: []func(*fake) error{offers(func(w *ibverbs.RemoteBuffer) { w.Len = 0 }), wait}, err: "a window of 0 bytes", is: syscall.EPROTO, dial: true},
		"window beyond memory":    {serve: []func(*fake) error{offers(func(w *ibverbs.RemoteBuffer) { w.Addr = 1<<64 - 100 }), wait}, err: "a window of 100000 bytes at", is: syscall.EPROTO, dial: true},
		"second window too early": {serve: []func(*fake) error{start, offers(nil), wait}, err: "when 100000 bytes of the last one were free", is: syscall.EPROTO},
		"wrong key":               {serve: []func(*fake) error{greets(func(w *ibverbs.RemoteBuffer) { w.RKey++ }), wait}, err: "remote access error", is: ibverbs.WCRemoteAccess, write: true},
		"wrong address":           {serve: []func(*fake) error{greets(func(w *ibverbs.RemoteBuffer) { w.Addr -= 1 << 20 }), wait}, err: "remote access error", is: ibverbs.WCRemoteAccess, write: true},
		"window too long":         {serve: []func(*fake) error{greets(func(w *ibverbs.RemoteBuffer) { w.Len = 1<<32 - 1 }), wait}, err: "remote access error", is: ibverbs.WCRemoteAccess, write: true},
		"more bytes than room": {serve: []func(*fake) error{start, func(f *fake) error {
			return f.WriteImm(context.Background(), f.client.Sub(0, 1), 1<<19+1, f.mr.Sub(0, 1))
		}, wait}, err: "has written 524289 bytes where there was room for 524288", is: syscall.EPROTO},
		"bytes out of range":         {serve: []func(*fake) error{start, claims(1<<32 - 1), wait}, err: "has written 4294967295 bytes where there was room for 524288", is: syscall.EPROTO},
		"bytes without an offer":     {serve: []func(*fake) error{claims(1<<32 - 1), wait}, err: "has written 4294967295 bytes where there was room for (0|524288)", is: syscall.EPROTO, dial: true},
		"two windows without offers": {serve: []func(*fake) error{claims(1 << 19), claims(1 << 19), claims(1 << 19), wait}, err: "has written 524288 bytes where there was room for 0", is: syscall.EPROTO, dial: true},
		"many writes of no bytes":    {serve: []func(*fake) error{start, repeats(3000, claims(0)), says(4, 32), wait}, err: "opcode 4, which", is: syscall.EPROTO},
		"two windows at once":        {serve: []func(*fake) error{offers(nil), offers(nil), wait}, err: "when 100000 bytes of the last one were free", is: syscall.EPROTO},
		"wrong key for the window": {serve: []func(*fake) error{start, fails(func(f *fake) error {
			f.client.RKey++
			return f.write(1)
		})}, err: "(local|remote) access error|queue pair|EOF"},
		"bytes outside the window": {serve: []func(*fake) error{start, fails(func(f *fake) error {
			outside := f.client
			outside.Addr += 1 << 20
			return f.WriteImm(context.Background(), outside.Sub(0, 1), 1, f.mr.Sub(0, 1))
		})}, err: "(local|remote) access error|queue pair|EOF"},
		"closes after one message":   {serve: []func(*fake) error{takes(1)}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"closes after two messages":  {serve: []func(*fake) error{takes(2)}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"closes after three":         {serve: []func(*fake) error{takes(3)}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"closes after its offer":     {serve: []func(*fake) error{takes(3), offers(nil)}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"closes after its features":  {serve: []func(*fake) error{takes(3), says(0, 32)}, err: "has ended the handshake", is: syscall.ECONNRESET, dial: true},
		"closes after the handshake": {serve: []func(*fake) error{start}, err: "EOF", is: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			address, served := serveFake(t, func(f *fake) error {
				for _, step := range tt.serve {
					if err := step(f); err != nil {
						return err
					}
				}
				return nil
			})
			c, err := valkeyrdma.Dial(cmtest.Bounded(t), "rdma", address)
			if err == nil {
				require.False(t, tt.dial, "Dial succeeds")
				require.NoError(t, c.SetDeadline(time.Now().Add(cmtest.Patience)))
				b := make([]byte, 1<<20)
				for err == nil {
					if tt.write {
						_, err = c.Write(b)
					} else {
						_, err = c.Read(b)
					}
				}
				require.NoError(t, c.Close())
			}
			<-served
			require.Regexp(t, tt.err, err.Error())
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
		})
	}
}

// says returns a step that sends a control message.
func says(opcode uint16, size int) func(*fake) error {
	return func(f *fake) error { return f.say(opcode, size, 0) }
}

// claims returns a step that says that n bytes were written, and writes none.
func claims(n uint32) func(*fake) error {
	return func(f *fake) error { return f.claim(n) }
}

// takes returns a step that takes n control messages.
func takes(n int) func(*fake) error {
	return repeats(n, func(f *fake) error {
		_, err := f.messages.Next(context.Background())
		return err
	})
}

// repeats returns a step that does another n times.
func repeats(n int, step func(*fake) error) func(*fake) error {
	return func(f *fake) error {
		for range n {
			if err := step(f); err != nil {
				return err
			}
		}
		return nil
	}
}

// offers returns a step that offers a window that change changes, if it is not
// nil.
func offers(change func(*ibverbs.RemoteBuffer)) func(*fake) error {
	return func(f *fake) error { return f.offer(changed(f, change)) }
}

// greets returns a step that completes the handshake with such a window.
func greets(change func(*ibverbs.RemoteBuffer)) func(*fake) error {
	return func(f *fake) error { return f.greet(changed(f, change)) }
}

func changed(f *fake, change func(*ibverbs.RemoteBuffer)) ibverbs.RemoteBuffer {
	w := f.window()
	if change != nil {
		change(&w)
	}
	return w
}

// fails returns a step that must fail.
func fails(step func(*fake) error) func(*fake) error {
	return func(f *fake) error {
		if step(f) == nil {
			return errors.New("a step succeeds that must fail")
		}
		return nil
	}
}

// Read returns what arrived before the server closed the connection, also after
// the connection's memory is no longer registered.
func TestReadAfterEnd(t *testing.T) {
	const n = 1000
	address, served := serveFake(t, func(f *fake) error {
		return errors.Join(f.greet(f.window()), f.write(n))
	})
	c, err := valkeyrdma.Dial(t.Context(), "rdma", address)
	require.NoError(t, err)
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
	cmtest.Take(t, c.(*valkeyrdma.Conn).Gone(), "the end of the connection")
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Len(t, got, n)
	require.NoError(t, c.Close())
}

// Bytes that the server only claims to have written are those of the client's
// window.
func TestClaimedBytes(t *testing.T) {
	address, served := serveFake(t, func(f *fake) error {
		return errors.Join(f.greet(f.window()), f.claim(1000), f.waitForEnd())
	})
	c, err := valkeyrdma.Dial(cmtest.Bounded(t), "rdma", address)
	require.NoError(t, err)
	got := make([]byte, 2000)
	n, err := c.Read(got)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 1000), got[:n])
	require.NoError(t, c.Close())
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}

// A server that reads nothing lets the client write what fits its window.
func TestServerThatDoesNotRead(t *testing.T) {
	address, served := serveFake(t, func(f *fake) error {
		return errors.Join(f.greet(f.window()), f.waitForEnd())
	})
	c, err := valkeyrdma.Dial(t.Context(), "rdma", address)
	require.NoError(t, err)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	n, err := c.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.LessOrEqual(t, n, fakeWindow)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	var rest int
	wrote := cmtest.InBackground(func() (err error) {
		rest, err = c.Write(make([]byte, 1<<20))
		return err
	})
	require.NoError(t, c.Close())
	require.ErrorIs(t, cmtest.Take(t, wrote, "the Write"), net.ErrClosed)
	require.LessOrEqual(t, n+rest, fakeWindow)
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
	require.ErrorIs(t, c.Close(), net.ErrClosed)
	_, err = c.Write(nil)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, c.SetDeadline(time.Time{}), net.ErrClosed)
}

// A client that does not read takes the server's messages nevertheless, many
// more than there are receives, and the bytes that fit its window.
func TestIdleClient(t *testing.T) {
	address, served := serveFake(t, func(f *fake) error {
		if err := f.greet(f.window()); err != nil {
			return err
		}
		for range 5000 {
			if err := errors.Join(f.say(2, 32, 0), f.write(1)); err != nil {
				return err
			}
		}
		return f.waitForEnd()
	})
	c, err := valkeyrdma.Dial(t.Context(), "rdma", address)
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 5000))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}

// A server that takes nothing, and says that it has, holds up Write until the
// deadline, and Close for a second.
func TestServerTakesNothing(t *testing.T) {
	lies := make(chan struct{})
	address, served := serveFakeWith(t, 8, func(f *fake) error {
		if err := f.greet(f.window()); err != nil {
			return err
		}
		for range lies {
			if err := f.say(0, 32, 0); err != nil {
				return err
			}
		}
		return f.waitForEnd()
	})
	dialed, err := valkeyrdma.Dial(t.Context(), "rdma", address)
	require.NoError(t, err)
	c := dialed.(*valkeyrdma.Conn)
	written := 0
	wrote := cmtest.InBackground(func() error {
		for ; ; written++ {
			if valkeyrdma.Asking(c) {
				lies <- struct{}{}
				cmtest.Soon(t, "the lie arrives", func() bool { return !valkeyrdma.Asking(c) })
			}
			if err := c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				return err
			}
			if _, err := c.Write([]byte{1}); err != nil {
				return err
			}
		}
	})
	require.ErrorIs(t, cmtest.Take(t, wrote, "the Write"), os.ErrDeadlineExceeded)
	require.Less(t, written, 1024)
	close(lies)
	closed := cmtest.InBackground(c.Close)
	require.NoError(t, cmtest.Take(t, closed, "Close"))
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}

// Close delivers what was written.
func TestCloseDelivers(t *testing.T) {
	for range 20 {
		address, served := serveFake(t, func(f *fake) error {
			if err := f.greet(f.window()); err != nil {
				return err
			}
			for got := 0; got < fakeWindow; {
				m, err := f.messages.Next(context.Background())
				if err != nil {
					return err
				}
				n, _ := m.Written()
				got += n
			}
			return f.waitForEnd()
		})
		c, err := valkeyrdma.Dial(t.Context(), "rdma", address)
		require.NoError(t, err)
		for range 100 {
			_, err = c.Write(make([]byte, fakeWindow/100))
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		require.NoError(t, cmtest.Take(t, served, "the server's end"))
	}
}

func TestMisuse(t *testing.T) {
	d := cmtest.NeedDevice(t)
	nowhere := net.JoinHostPort(d.IPv4.String(), "1")
	for name, tt := range map[string]struct {
		dialer           valkeyrdma.Dialer
		network, address string
		err              string
		is               error
	}{
		"network":       {network: "unix", address: nowhere, err: "unknown network unix"},
		"window":        {dialer: valkeyrdma.Dialer{Window: -1}, network: "rdma", address: nowhere, err: "Dialer.Window of -1 bytes"},
		"large window":  {dialer: valkeyrdma.Dialer{Window: 1<<30 + 1}, network: "rdma", address: nowhere, err: "from 0 to 1 GiB"},
		"no port":       {network: "rdma", address: d.IPv4.String(), err: "missing port"},
		"nowhere":       {network: "tcp", address: nowhere, err: "dial rdma: " + nowhere, is: syscall.ECONNREFUSED},
		"local address": {dialer: valkeyrdma.Dialer{LocalAddr: "192.0.2.77"}, network: "rdma", address: nowhere, err: "192.0.2.77"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tt.dialer.Dial(cmtest.Bounded(t), tt.network, tt.address)
			require.ErrorContains(t, err, tt.err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			var opError *net.OpError
			require.ErrorAs(t, err, &opError)
		})
	}
}
