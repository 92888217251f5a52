package rdmacm_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

func TestConnectCarriesPrivateDataBothWays(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		name            string
		request, answer []byte
	}{
		{"none", nil, nil},
		{"short", []byte("hello"), []byte("welcome")},
		{"longest", bytes.Repeat([]byte{7}, maxRequestData), bytes.Repeat([]byte{9}, maxReplyData)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := bounded(t)
			ln := listenOn(t, d.IPv4)
			result := acceptOne(ctx, ln, &rdmacm.Config{PrivateData: tt.answer})
			client, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{PrivateData: tt.request})
			require.NoError(t, err)
			server := <-result
			require.NoError(t, server.err)
			require.Equal(t, padded(tt.request, maxRequestData), server.req.PrivateData())
			require.Equal(t, padded(tt.answer, maxReplyData), client.PeerData())
			require.Empty(t, server.conn.PeerData(), "the acceptor has the request's")
			require.NoError(t, client.Close())
			require.NoError(t, server.conn.Close())
		})
	}
}

func TestConnectAddresses(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			ctx := bounded(t)
			ln := listenOn(t, ip)
			require.Equal(t, ip, ln.Addr().Addr())
			require.NotZero(t, ln.Addr().Port())
			result := acceptOne(ctx, ln, nil)
			client, err := (&rdmacm.Dialer{LocalAddr: ip.String()}).Dial(ctx, ln.Addr().String(), nil)
			require.NoError(t, err)
			server := <-result
			require.NoError(t, server.err)
			require.Equal(t, ln.Addr(), client.RemoteAddr())
			require.Equal(t, ip, client.LocalAddr().Addr())
			require.Equal(t, client.LocalAddr(), server.conn.RemoteAddr())
			require.Equal(t, client.LocalAddr(), server.req.RemoteAddr())
			require.Equal(t, ln.Addr(), server.req.LocalAddr())
			require.NoError(t, client.Close())
			require.NoError(t, server.conn.Close())
		})
	}
}

func TestListenWithoutHostServesBothFamilies(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, ":0", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		result := acceptOne(ctx, ln, nil)
		client, err := rdmacm.Dial(ctx, netip.AddrPortFrom(ip, ln.Addr().Port()).String(), nil)
		require.NoError(t, err)
		server := <-result
		require.NoError(t, server.err)
		require.NoError(t, client.Close())
		require.NoError(t, server.conn.Close())
	}
}

func TestRejectReachesTheDialer(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		name string
		data []byte
	}{{"without data", nil}, {"with data", []byte("try again later")}, {"longest", bytes.Repeat([]byte{3}, maxRejectData)}} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := bounded(t)
			ln := listenOn(t, d.IPv4)
			result := make(chan error, 1)
			go func() {
				req, err := ln.Accept(ctx)
				if err == nil {
					err = req.Reject(tt.data)
				}
				result <- err
			}()
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
			var rejected *rdmacm.RejectedError
			require.ErrorAs(t, err, &rejected)
			require.Equal(t, rdmacm.ReasonConsumer, rejected.Reason)
			require.Equal(t, padded(tt.data, maxRejectData), rejected.PrivateData)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorContains(t, err, "refused by the peer's program")
			require.NoError(t, <-result)
		})
	}
}

func TestRequestIsAnsweredOnce(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
		dialed <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, req.Reject(nil))
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
	require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	_, err = req.Accept(ctx, nil)
	require.ErrorIs(t, err, os.ErrClosed)

	// The listener is as it was.
	result := acceptOne(ctx, ln, nil)
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	server := <-result
	require.NoError(t, server.err)
	require.ErrorIs(t, server.req.Reject(nil), os.ErrClosed)
	require.NoError(t, client.Err())
	require.NoError(t, client.Close())
	require.NoError(t, server.conn.Close())
}

func TestPrivateDataTooLong(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	long := func(n int) []byte { return make([]byte, n) }

	_, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{PrivateData: long(maxRequestData + 1)})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data of 57 bytes, where this device's connection request carries up to 56")

	result := acceptOne(ctx, ln, &rdmacm.Config{PrivateData: long(maxReplyData + 1)})
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the peer is told")
	server := <-result
	require.ErrorIs(t, server.err, syscall.EINVAL)
	require.ErrorContains(t, server.err, "private data of 197 bytes, where this device's acceptance carries up to 196")

	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
		dialed <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	err = req.Reject(long(maxRejectData + 1))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data of 149 bytes, where this device's rejection carries up to 148")
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED, "the peer is told")
}

func TestDialFails(t *testing.T) {
	d := needDevice(t)
	at := func(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }
	for _, tt := range []struct {
		name, address string
		dialer        rdmacm.Dialer
		config        *rdmacm.Config
		is            error
		text          string
	}{
		{name: "no listener", address: at(d.IPv4, 7), is: syscall.ECONNREFUSED, text: "nobody listens on the port"},
		{name: "loopback", address: "127.0.0.1:7471", is: syscall.ENODEV, text: "127.0.0.1:7471): no such device: no RDMA device is there"},
		{name: "unknown host", address: "nobody.invalid:7471", text: "nobody.invalid"},
		{name: "no host", address: ":7471", is: syscall.EINVAL, text: "the host is missing"},
		{name: "no port", address: "192.0.2.1", text: "missing port"},
		{name: "empty", address: "", text: "missing port"},
		{name: "bad port", address: "192.0.2.1:70000", text: "70000"},
		{name: "unknown zone", address: "[fe80::1%nosuch]:7471", text: `IPv6 zone "nosuch"`},
		{
			name: "local address of another family", address: at(d.IPv4, 7), dialer: rdmacm.Dialer{LocalAddr: d.IPv6.String()},
			is: syscall.EAFNOSUPPORT, text: d.IPv6.String(),
		},
		{
			name: "local address is not here", address: at(d.IPv4, 7), dialer: rdmacm.Dialer{LocalAddr: "203.0.113.9"},
			is: syscall.EADDRNOTAVAIL, text: "203.0.113.9:0 to 192.0.2.1:7",
		},
		{name: "queue too long", address: at(d.IPv4, 7), config: &rdmacm.Config{SendQueue: 1 << 30}, is: syscall.EINVAL, text: "ibv_create_cq"},
		{name: "negative queue", address: at(d.IPv4, 7), config: &rdmacm.Config{SendQueue: -1}, is: syscall.EINVAL, text: "Config.SendQueue is -1, not from 0 to 2147483647"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := tt.dialer.Dial(bounded(t), tt.address, tt.config)
			require.Nil(t, conn)
			require.ErrorContains(t, err, tt.text)
			require.True(t, strings.HasPrefix(err.Error(), "dial "+tt.address+": "), err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			t.Log(err)
		})
	}
	_, err := rdmacm.Dial(bounded(t), at(d.IPv4, 7), nil)
	var rejected *rdmacm.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, rdmacm.ReasonNoListener, rejected.Reason)
}

func TestListenFails(t *testing.T) {
	d := needDevice(t)
	used := listenOn(t, d.IPv4)
	for _, tt := range []struct {
		name, address string
		is            error
		text          string
	}{
		{name: "foreign address", address: "203.0.113.9:0", is: syscall.EADDRNOTAVAIL, text: "no RDMA device has this address"},
		{name: "used port", address: used.Addr().String(), is: syscall.EADDRINUSE, text: "another listener has this address and port"},
		{name: "beside one at an address", address: fmt.Sprintf(":%d", used.Addr().Port()), is: syscall.EADDRNOTAVAIL, text: fmt.Sprintf("rdma_bind_addr (:%d): ", used.Addr().Port())},
		{name: "loopback", address: "127.0.0.1:0", is: syscall.EADDRNOTAVAIL, text: "rdma_listen (127.0.0.1): the kernel takes a loopback address"},
		{name: "another loopback", address: "127.0.1.1:0", is: syscall.EADDRNOTAVAIL, text: "rdma_listen (127.0.1.1): the kernel takes"},
		{name: "loopback of IPv6", address: "[::1]:0", is: syscall.EADDRNOTAVAIL, text: "rdma_listen (::1): the kernel takes"},
		{name: "localhost", address: "localhost:0", is: syscall.EADDRNOTAVAIL, text: "listen at the address of a device"},
		{name: "unknown host", address: "nobody.invalid:0", text: "nobody.invalid"},
		{name: "bad port", address: ":http-no-such", text: "http-no-such"},
		{name: "empty", address: "", text: "missing port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ln, err := rdmacm.Listen(bounded(t), tt.address, nil)
			require.Nil(t, ln)
			require.ErrorContains(t, err, tt.text)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			t.Log(err)
		})
	}
}
