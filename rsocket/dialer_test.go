// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

func TestNetworks(t *testing.T) {
	d := needDevice(t)
	four, six := netip.AddrPortFrom(d.IPv4, 0).String(), netip.AddrPortFrom(d.IPv6, 0).String()
	for _, c := range []struct{ network, address, says string }{
		{"rdma", four, ""},
		{"rdma4", four, ""},
		{"rdma", six, ""},
		{"rdma6", six, ""},
		{"rdma4", ":0", ""},
		{"rdma6", ":0", ""},
		{"rdma", ":0", ""},
		{"rdma6", four, "no suitable address for network rdma6"},
		{"rdma4", six, "no suitable address for network rdma4"},
		{"tcp", four, "unknown network tcp"},
		{"", four, "unknown network"},
		{"rdma", "192.0.2.1", "missing port"},
		{"rdma", "192.0.2.1:nothing", "nothing"},
	} {
		t.Run(c.network+" "+c.address, func(t *testing.T) {
			needDevice(t)
			ln, err := rsocket.Listen(c.network, c.address)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				_, err = rsocket.Dial(c.network, c.address)
				require.ErrorContains(t, err, c.says)
				require.IsType(t, &net.OpError{}, err)
				return
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, ln.Close()) }()
			at := ln.Addr().(rsocket.Addr).AddrPort
			if at.Addr().IsUnspecified() {
				ip := d.IPv4
				if at.Addr().Is6() && c.network == "rdma6" {
					ip = d.IPv6
				}
				at = netip.AddrPortFrom(ip, at.Port())
			}
			conn, err := rsocket.Dial(c.network, at.String())
			require.NoError(t, err)
			a, b := closedWith(t, conn), acceptOne(t, ln)
			require.Equal(t, at.String(), a.RemoteAddr().String())
			require.Equal(t, a.LocalAddr().String(), b.RemoteAddr().String())
			require.Equal(t, a.RemoteAddr().String(), b.LocalAddr().String())
			echo(t, a, b)
		})
	}
}

// A host that stands for every address does so for the families that it does
// with package net, for a listener as for a dial.
func TestEveryAddressAsTCP(t *testing.T) {
	d := needDevice(t)
	reaches := func(dial func(network, address string) (net.Conn, error), suffix string, ln net.Listener, host string, ips ...string) (all []string) {
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		accepted := inBackground(func() error {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return nil // closed
				}
				_ = conn.Close()
			}
		})
		for i, to := range append(ips, host) {
			conn, err := dial([...]string{"4", "6", suffix}[i], net.JoinHostPort(to, port))
			if err != nil {
				continue
			}
			family := "IPv6"
			if at := netip.MustParseAddrPort(conn.RemoteAddr().String()); at.Addr().Is4() {
				family = "IPv4"
			}
			if i == len(ips) && suffix == "" {
				family = "one of both" // RDMA prefers neither
			}
			all = append(all, family)
			require.NoError(t, conn.Close())
		}
		require.NoError(t, ln.Close())
		require.NoError(t, <-accepted)
		return all
	}
	for _, suffix := range []string{"", "4", "6"} {
		for _, host := range []string{"", "::", "0.0.0.0", "::ffff:0.0.0.0"} {
			t.Run("rdma"+suffix+" "+host, func(t *testing.T) {
				needDevice(t)
				address := net.JoinHostPort(host, "0")
				ln, err := net.Listen("tcp"+suffix, address)
				if err != nil {
					require.ErrorContains(t, err, "no suitable address")
					_, err = rsocket.Listen("rdma"+suffix, address)
					require.ErrorContains(t, err, "no suitable address")
					_, err = rsocket.Dial("rdma"+suffix, address)
					require.ErrorContains(t, err, "no suitable address")
					return
				}
				tcp := func(network, address string) (net.Conn, error) { return net.Dial("tcp"+network, address) }
				want := reaches(tcp, suffix, ln, host, "127.0.0.1", "::1")
				ln, err = rsocket.Listen("rdma"+suffix, address)
				require.NoError(t, err)
				rdma := func(network, address string) (net.Conn, error) { return rsocket.Dial("rdma"+network, address) }
				require.Equal(t, want, reaches(rdma, suffix, ln, host, d.IPv4.String(), d.IPv6.String()))
			})
		}
	}
}

// free returns an address without an RDMA listener, and a TCP listener there.
func free(t *testing.T) (string, net.Listener) {
	t.Helper()
	d := needDevice(t)
	ln, err := net.Listen("tcp", netip.AddrPortFrom(d.IPv4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln.Addr().String(), ln
}

func TestDialFails(t *testing.T) {
	address, _ := free(t)
	_, err := rsocket.Dial("rdma", address)
	isOpError(t, err, "dial", syscall.ECONNREFUSED)
	_, ok := errors.AsType[*rdmacm.RejectedError](err)
	require.True(t, ok, "%v", err)
	require.True(t, strings.HasPrefix(err.Error(), "dial rdma "+address+": connection rejected"), "names the address once: %v", err)

	_, err = rsocket.Listen("rdma", listen(t, rsocket.Config{}).Addr().String())
	isOpError(t, err, "listen", syscall.EADDRINUSE)
	require.NotContains(t, err.Error(), "listen on", "again: %v", err)

	_, err = new(rsocket.Dialer).DialContext(cmtest.Canceled(t), "rdma", address)
	require.ErrorIs(t, err, context.Canceled)
	_, err = (&rsocket.Dialer{Timeout: time.Nanosecond}).Dial("rdma", address)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.True(t, err.(net.Error).Timeout())
}

// A dial falls back to TCP only if told to, says why, and the result shows it.
func TestFallback(t *testing.T) {
	address, ln := free(t)
	var causes []error
	d := rsocket.Dialer{Fallback: func(ctx context.Context, network, address string, cause error) (net.Conn, error) {
		causes = append(causes, cause)
		return rsocket.FallbackTCP(ctx, network, address, cause)
	}}
	conn, err := d.DialContext(bounded(t), "rdma", address)
	require.NoError(t, err)
	require.IsType(t, &net.TCPConn{}, conn)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	echo(t, conn, accepted)
	require.NoError(t, conn.Close())
	require.NoError(t, accepted.Close())
	require.Len(t, causes, 1)
	isOpError(t, causes[0], "dial", syscall.ECONNREFUSED)

	_, err = d.DialContext(cmtest.Canceled(t), "rdma", address)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, causes, 1, "not after the context's end")

	there := listen(t, rsocket.Config{})
	conn, err = d.DialContext(bounded(t), "rdma", there.Addr().String())
	require.NoError(t, err)
	closedWith(t, conn)
	require.Len(t, causes, 1, "not without need")
}

func TestListener(t *testing.T) {
	ln := listen(t, rsocket.Config{})
	accept := func() error {
		_, err := ln.Accept()
		return err
	}
	accepting := inBackground(accept)
	require.NoError(t, ln.SetDeadline(time.Unix(1, 0)))
	isOpError(t, <-accepting, "accept", os.ErrDeadlineExceeded)
	isOpError(t, accept(), "accept", os.ErrDeadlineExceeded)
	require.NoError(t, ln.SetDeadline(time.Time{}))

	a, b := pairOn(t, ln, rsocket.Config{})
	conn, err := rsocket.Dial("rdma", ln.Addr().String()) // not accepted, but connected
	require.NoError(t, err)
	left := closedWith(t, conn)
	_, err = left.Write([]byte("hello"))
	require.NoError(t, err)

	require.NoError(t, ln.SetDeadline(time.Time{}))
	other := listen(t, rsocket.Config{})
	accepting = inBackground(func() error {
		_, err := other.Accept()
		return err
	})
	require.NoError(t, other.Close())
	isOpError(t, <-accepting, "accept", net.ErrClosed)

	require.NoError(t, ln.Close())
	require.NoError(t, ln.Close(), "again")
	isOpError(t, accept(), "accept", net.ErrClosed)
	isOpError(t, ln.SetDeadline(time.Time{}), "set", net.ErrClosed)
	_, err = left.Read(make([]byte, 1))
	isOpError(t, err, "read", syscall.ECONNRESET)
	echo(t, a, b) // stays up
}

// The error of a listener names every address by an address, as Addr does.
func TestListenEverywhereTwice(t *testing.T) {
	for _, network := range []string{"rdma", "rdma4", "rdma6"} {
		needDevice(t)
		ln, err := rsocket.Listen(network, ":0")
		require.NoError(t, err)
		at := ln.Addr().(rsocket.Addr)
		_, err = rsocket.Listen(network, fmt.Sprintf(":%d", at.Port()))
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, "listen "+network+" "+at.String()+": ")
		require.NoError(t, ln.Close())
	}
}

// A missing or an unspecified host is the local system, as for net.Dial.
func TestDialLocalSystem(t *testing.T) {
	d := needDevice(t)
	ln := listenEverywhere(t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"", "0.0.0.0", "[::]"} {
		conn, err := rsocket.Dial("rdma", host+":"+port)
		require.NoError(t, err, host)
		acceptOne(t, ln)
		require.NoError(t, conn.Close())
	}
	conn, err := rsocket.Dial("rdma4", ":"+port)
	require.NoError(t, err)
	require.True(t, conn.RemoteAddr().(rsocket.Addr).Addr().Is4())
	acceptOne(t, ln)
	require.NoError(t, conn.Close())

	addrs, err := rdmacm.LocalAddrs()
	require.NoError(t, err)
	require.Contains(t, addrs, d.IPv4)
}

func listenEverywhere(t *testing.T) *rsocket.Listener {
	ln, err := rsocket.Listen("rdma", ":0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}
