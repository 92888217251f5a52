// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
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
			client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{PrivateData: tt.request}))
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
			client, err := dialWith(ctx, rdmacm.Dialer{LocalAddr: ip.String()}, ln.Addr().String(), nil)
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
		client, err := rdmacm.Dial(ctx, netip.AddrPortFrom(ip, ln.Addr().Port()).String(), inPool(nil))
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
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
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
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		dialed <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, req.Reject(nil))
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
	require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	_, err = req.Accept(ctx, inPool(nil))
	require.ErrorIs(t, err, os.ErrClosed)

	// The listener has not changed.
	result := acceptOne(ctx, ln, nil)
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
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
	d.Have(t, testdevice.InfiniBand)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	long := func(n int) []byte { return make([]byte, n) }

	_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{PrivateData: long(maxRequestData + 1)}))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data has 57 bytes, but this device's connection request carries at most 56")

	result := acceptOne(ctx, ln, &rdmacm.Config{PrivateData: long(maxReplyData + 1)})
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the peer is told")
	server := <-result
	require.ErrorIs(t, server.err, syscall.EINVAL)
	require.ErrorContains(t, server.err, "private data has 197 bytes, but this device's acceptance carries at most 196")

	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		dialed <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	err = req.Reject(long(maxRejectData + 1))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data has 149 bytes, but this device's rejection carries at most 148")
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
		{name: "no listener", address: at(d.IPv4, 7), is: syscall.ECONNREFUSED, text: "no program listens on the port"},
		{name: "unknown host", address: "unknown.invalid:7471", text: "unknown.invalid"},
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
			is: syscall.EADDRNOTAVAIL, text: "203.0.113.9:0 to " + at(d.IPv4, 7),
		},
		{name: "queue too long", address: at(d.IPv4, 7), config: &rdmacm.Config{SendQueue: 1 << 30}, is: syscall.EINVAL, text: "ibv_create_cq"},
		{name: "negative queue", address: at(d.IPv4, 7), config: &rdmacm.Config{SendQueue: -1}, is: syscall.EINVAL, text: "Config.SendQueue is -1, not from 0 to 2147483647"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if cmtest.SharesPool() && tt.name == "queue too long" {
				tt.text = "at most" // before anything is made
			}
			conn, err := dialWith(bounded(t), tt.dialer, tt.address, tt.config)
			require.Nil(t, conn)
			require.ErrorContains(t, err, tt.text)
			require.True(t, strings.HasPrefix(err.Error(), "dial "+tt.address+": "), err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			t.Log(err)
		})
	}
	_, err := rdmacm.Dial(bounded(t), at(d.IPv4, 7), inPool(nil))
	var rejected *rdmacm.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, rdmacm.ReasonNoListener, rejected.Reason)
}

// A loopback address can be reached only if a device has it.
func TestDialLoopback(t *testing.T) {
	needDevice(t)
	is, text := syscall.ENODEV, "127.0.0.1:7471): no such device: loopback addresses such as 127.0.0.1 belong to no RDMA device"
	if device, _, err := ibverbs.OpenAddr(netip.MustParseAddr("127.0.0.1")); err == nil {
		require.NoError(t, device.Close())
		is, text = syscall.ECONNREFUSED, "no program listens on the port"
	}
	_, err := rdmacm.Dial(bounded(t), "127.0.0.1:7471", inPool(nil))
	require.ErrorIs(t, err, is)
	require.ErrorContains(t, err, text)
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
		{name: "unknown host", address: "unknown.invalid:0", text: "unknown.invalid"},
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

// The listener would be open to the network.
func TestListenAtLoopbackFails(t *testing.T) {
	needDevice(t)
	if device, _, err := ibverbs.OpenAddr(netip.MustParseAddr("127.0.0.1")); err == nil {
		require.NoError(t, device.Close())
		t.Skip("the device has loopback addresses")
	}
	for address, text := range map[string]string{
		"127.0.0.1:0": "rdma_listen (127.0.0.1): no RDMA device has this loopback address",
		"127.0.1.1:0": "rdma_listen (127.0.1.1): no RDMA device has this loopback address",
		"[::1]:0":     "rdma_listen (::1): no RDMA device has this loopback address",
		"localhost:0": "use the address of a device, or no host to listen on all of them",
	} {
		t.Run(address, func(t *testing.T) {
			ln, err := rdmacm.Listen(bounded(t), address, nil)
			require.Nil(t, ln)
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
			require.ErrorContains(t, err, text)
		})
	}
}

func TestPeerCloses(t *testing.T) {
	d := needDevice(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{Queues: manual(mode.manualClient)}, &rdmacm.Config{Queues: manual(mode.manualServer)})
			mr := alloc(t, server, 64)
			ctx := bounded(t)
			pending, err := server.PostRecv(mr.All())
			require.NoError(t, err)
			result := make(chan error)
			go func() {
				_, err := pending.Wait(ctx)
				result <- err
			}()

			require.NoError(t, client.Close())
			check := func(err error) {
				t.Helper()
				var event *rdmacm.EventError
				require.ErrorAs(t, err, &event)
				require.Equal(t, rdmacm.EventDisconnected, event.Type)
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NotErrorIs(t, err, os.ErrClosed)
			}
			check(<-result)
			awaitEnd(t, server)
			check(server.Err())
			_, err = server.PostRecv(mr.All())
			check(err)
			check(server.Send(ctx, mr.All()))
			_, err = pending.Wait(ctx)
			check(err)
			require.NoError(t, server.Close())
			check(server.Err())
		})
	}
}

func TestCloseWakesOperations(t *testing.T) {
	const waiters = 8
	needOwnReceives(t)
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 2}, nil)
	mr := alloc(t, client, 64)
	ctx := bounded(t)
	results := make(chan error, 2*waiters)
	for range waiters {
		pending, err := client.PostRecv(mr.All())
		require.NoError(t, err)
		go func() {
			_, err := pending.Wait(ctx)
			results <- err
		}()
		// The peer has no receive posted. Sends stay under way or wait for
		// room.
		go func() { results <- client.Send(ctx, mr.Sub(0, 8)) }()
	}
	start := time.Now()
	require.NoError(t, client.Close())
	for range 2 * waiters {
		err := <-results
		require.ErrorIs(t, err, os.ErrClosed)
		require.NotErrorIs(t, err, syscall.ECONNRESET)
	}
	t.Logf("closed, and %d waiters woken, in %v", 2*waiters, time.Since(start))
	_, err := client.PostRecv(mr.All())
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, client.Send(ctx), os.ErrClosed)
	_, err = client.Alloc(64, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, client.Err(), os.ErrClosed)
	require.Nil(t, mr.Bytes(), "closed with the connection")
}

func TestCloseTwiceAndConcurrently(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	var group sync.WaitGroup
	for _, conn := range []*rdmacm.Conn{client, server} {
		for range 8 {
			group.Go(func() {
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	require.NoError(t, client.Close())
	require.Zero(t, client.ID().PortNum())
	require.False(t, client.ID().LocalAddr().IsValid())
	require.ErrorIs(t, client.ID().Disconnect(), os.ErrClosed)
	require.True(t, client.LocalAddr().IsValid(), "the connection's addresses stay known")
}

func TestCloseWithRegisteredMemory(t *testing.T) {
	needOwnDomain(t)
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, nil, nil)
	mr, err := client.PD().Register(make([]byte, 100), ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, client.Close(), &busy)
	require.Len(t, busy.Children, 1)
	require.ErrorAs(t, client.Close(), &busy, "as long as it is so")
	require.NoError(t, mr.Close())
	require.NoError(t, client.Close())
}

func TestListenerClose(t *testing.T) {
	const requests = 3
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)

	// One connection is up. The program has one request, and others wait for
	// Accept.
	result := acceptOne(ctx, ln, nil)
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
	require.NoError(t, err)
	server := <-result
	require.NoError(t, server.err)
	dialed := make(chan error, requests+1)
	for range requests + 1 {
		go func() {
			conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
			if conn != nil {
				err = errors.Join(err, errors.New("connected"), conn.Close())
			}
			dialed <- err
		}()
	}
	taken, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return rdmacm.Waiting(ln) == requests }, patience, time.Millisecond)

	waiting := make(chan error)
	require.NoError(t, ln.Close())
	go func() {
		_, err := ln.Accept(ctx)
		waiting <- err
	}()
	require.ErrorIs(t, <-waiting, os.ErrClosed)
	for range requests {
		require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
	}
	require.NoError(t, taken.Reject(nil))
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)

	// The accepted connection stays up.
	mr := alloc(t, server.conn, 8)
	pending, err := server.conn.PostRecv(mr.All())
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	_, err = pending.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	awaitEnd(t, server.conn)
	require.NoError(t, server.conn.Close())
	require.NoError(t, ln.Close(), "again")
}

func TestListenerCloseWakesAccept(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	result := make(chan error)
	const waiters = 4
	for range waiters {
		go func() {
			_, err := ln.Accept(t.Context())
			result <- err
		}()
	}
	require.NoError(t, ln.Close())
	for range waiters {
		err := <-result
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorContains(t, err, ln.Addr().String())
	}
}

// Requests come while the listener closes. Each gets an answer.
func TestListenerCloseRacesWithRequests(t *testing.T) {
	const rounds, dialers = 5, 6
	d := needDevice(t)
	for range rounds {
		ctx := bounded(t)
		ln := listenOn(t, d.IPv4)
		var group sync.WaitGroup
		for range dialers {
			group.Go(func() {
				conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%v, %v", conn, err)
				}
			})
		}
		require.Eventually(t, func() bool { return rdmacm.Waiting(ln) > 0 }, patience, time.Microsecond)
		require.NoError(t, ln.Close())
		group.Wait()
	}
}

func TestWaitForTheEnd(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	require.ErrorIs(t, server.Wait(ctx), context.Canceled)
	require.NoError(t, client.Close())
	require.NoError(t, server.Wait(bounded(t)), "the peer has closed")
	require.ErrorIs(t, client.Wait(bounded(t)), os.ErrClosed)

	client, server = connect(t, d.IPv4, nil, nil)
	rdmacm.Inject(server, &rdmacm.Event{Type: rdmacm.EventDeviceRemoval})
	require.ErrorIs(t, server.Wait(bounded(t)), syscall.ENODEV)
	require.NoError(t, client.Wait(bounded(t)))
}

// modes are the ways in which the two ends can create their queue pairs.
var modes = []struct {
	name                       string
	manualClient, manualServer bool
}{
	{"librdmacm's QPs", false, false},
	{"manual client", true, false},
	{"manual server", false, true},
	{"manual both", true, true},
}

func TestTransfers(t *testing.T) {
	d := needDevice(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{Segments: 2, Queues: manual(mode.manualClient)},
				&rdmacm.Config{Segments: 2, Queues: manual(mode.manualServer)})
			here, there := alloc(t, client, 4096), alloc(t, server, 4096)
			t.Run("send", func(t *testing.T) { testSend(t, client, server, here, there) })
			t.Run("send back", func(t *testing.T) { testSend(t, server, client, there, here) })
			t.Run("write", func(t *testing.T) { testWrite(t, client, server, here, there) })
			t.Run("write back", func(t *testing.T) { testWrite(t, server, client, there, here) })
			t.Run("read", func(t *testing.T) { testRead(t, client, here, there) })
			t.Run("read back", func(t *testing.T) { testRead(t, server, there, here) })
			require.NoError(t, client.Err())
			require.NoError(t, server.Err())
		})
	}
}

func testSend(t *testing.T, from, to *rdmacm.Conn, source, sink *ibverbs.MR) {
	ctx := bounded(t)
	copy(source.Bytes(), "hello, world")
	received, err := to.PostRecv(sink.Sub(100, 5), sink.Sub(200, 100))
	require.NoError(t, err)
	_, known := received.Imm()
	require.False(t, known, "not before Wait")
	require.NoError(t, from.Send(ctx, source.Sub(0, 7), source.Sub(7, 5)))
	n, err := received.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 12, n)
	require.Equal(t, "hello", string(sink.Bytes()[100:105]))
	require.Equal(t, ", world", string(sink.Bytes()[200:207]))
	_, has := received.Imm()
	require.False(t, has)
	n, err = received.Wait(ctx) // once more
	require.NoError(t, err)
	require.Equal(t, 12, n)

	if !testdevice.Require(t).Has(t, testdevice.Immediate) {
		return // there is no immediate data
	}
	received, err = to.PostRecv(sink.Sub(0, 8))
	require.NoError(t, err)
	require.NoError(t, from.SendImm(ctx, 0x01020304)) // no bytes
	n, err = received.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	imm, has := received.Imm()
	require.True(t, has)
	require.Equal(t, uint32(0x01020304), imm)
}

func testWrite(t *testing.T, from, to *rdmacm.Conn, source, sink *ibverbs.MR) {
	ctx := bounded(t)
	clear(sink.Bytes())
	copy(source.Bytes(), "written")
	require.NoError(t, from.Write(ctx, sink.Remote().Sub(1000, 7), source.Sub(0, 7)))
	require.Equal(t, "written", string(sink.Bytes()[1000:1007]))

	if testdevice.Require(t).Has(t, testdevice.Immediate) {
		testWriteImm(t, from, to, source, sink)
	}

	err := from.Write(ctx, sink.Remote().Sub(0, 6), source.Sub(0, 7))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "7 bytes do not fit into the remote buffer of 6 bytes")
}

func testWriteImm(t *testing.T, from, to *rdmacm.Conn, source, sink *ibverbs.MR) {
	ctx := bounded(t)
	received, err := to.PostRecv()
	require.NoError(t, err)
	require.NoError(t, from.WriteImm(ctx, sink.Remote().Sub(2000, 7), 77, source.Sub(0, 7)))
	n, err := received.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, n, "in the receive's segments")
	written, isWrite := received.Written()
	require.True(t, isWrite)
	require.Equal(t, 7, written)
	imm, has := received.Imm()
	require.True(t, has)
	require.Equal(t, uint32(77), imm)
	require.Equal(t, "written", string(sink.Bytes()[2000:2007]))
}

func testRead(t *testing.T, reader *rdmacm.Conn, sink, source *ibverbs.MR) {
	copy(source.Bytes(), "readable")
	require.NoError(t, reader.Read(bounded(t), sink.Sub(3000, 4), source.Remote().Sub(4, 4)))
	require.Equal(t, "able", string(sink.Bytes()[3000:3004]))
}

// Goroutines share a connection. Each gets the answer to its own question.
func TestManyGoroutinesOnOneConn(t *testing.T) {
	const goroutines, rounds, size = 32, 20, 8
	d := needDevice(t)
	client, server := connect(t, d.IPv4,
		&rdmacm.Config{SendQueue: 4}, // fewer than goroutines: they wait for room
		&rdmacm.Config{SendQueue: 4, RecvQueue: goroutines * rounds})
	source, sink := alloc(t, client, goroutines*size), alloc(t, server, goroutines*rounds*size)
	remote := alloc(t, server, goroutines*size)
	ctx := bounded(t)

	var receives []*rdmacm.Receive
	for i := range goroutines * rounds {
		r, err := server.PostRecv(sink.Sub(i*size, size))
		require.NoError(t, err)
		receives = append(receives, r)
	}
	_, err := server.PostRecv(sink.Sub(0, size))
	require.ErrorIs(t, err, syscall.ENOBUFS)
	require.ErrorContains(t, err, "Config.RecvQueue")

	results := make(chan error)
	for i := range goroutines {
		each(results, func() error {
			mine := source.Sub(i*size, size)
			for round := range rounds {
				value := uint64(i)<<32 | uint64(round)
				binary.BigEndian.PutUint64(mine.Bytes(), value)
				if err := client.Send(ctx, mine); err != nil {
					return err
				}
				there := remote.Remote().Sub(uint64(i*size), size)
				if err := client.Write(ctx, there, mine); err != nil {
					return err
				}
				clear(mine.Bytes())
				if err := client.Read(ctx, mine, there); err != nil {
					return err
				}
				if got := binary.BigEndian.Uint64(mine.Bytes()); got != value {
					return fmt.Errorf("read %x, wrote %x", got, value)
				}
			}
			return nil
		})
	}
	seen := make([]bool, goroutines*rounds)
	for _, r := range receives {
		each(results, func() error {
			_, err := r.Wait(ctx)
			return err
		})
	}
	for range goroutines + len(receives) {
		require.NoError(t, <-results)
	}
	for i := range receives {
		value := binary.BigEndian.Uint64(sink.Bytes()[i*size:])
		key := int(value>>32)*rounds + int(uint32(value))
		require.False(t, seen[key], "message %x twice", value)
		seen[key] = true
	}
}

// each runs f in a goroutine and sends its result.
func each(results chan<- error, f func() error) {
	go func() { results <- f() }()
}

// A receive takes a place in the completion queue until its completion is
// taken, whether or not a goroutine waits for it.
func TestReceivesNobodyWaitsFor(t *testing.T) {
	const queue, rounds = 4, 10
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{SendQueue: 1, RecvQueue: queue})
	source, sink := alloc(t, client, 8), alloc(t, server, 8)
	ctx := bounded(t)
	for range rounds {
		for range queue {
			_, err := server.PostRecv(sink.All())
			require.NoError(t, err)
		}
		for range queue {
			require.NoError(t, client.Send(ctx, source.All()))
		}
	}
	require.NoError(t, server.Err())
	_, err := client.PostRecv()
	require.NoError(t, err)
	require.NoError(t, server.Send(ctx), "the queue is as it was")
}

func TestFailedTransferEndsTheConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	pending, err := client.PostRecv(here.Sub(32, 32))
	require.NoError(t, err)

	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	err = client.Write(ctx, wrong, here.Sub(0, 8))
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess)
	var wcErr *ibverbs.WCError
	require.ErrorAs(t, err, &wcErr)

	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess, "why it was flushed")
	require.ErrorIs(t, client.Send(ctx, here.Sub(0, 8)), ibverbs.WCRemoteAccess, "later ones too")
	awaitEnd(t, client)
	require.ErrorIs(t, client.Err(), ibverbs.WCRemoteAccess)
}

func TestRequestThatCannotBePostedLeavesRoom(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 2, RecvQueue: 2}, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	for range 5 { // more than there is room
		require.ErrorContains(t, client.Send(ctx, here.Sub(60, 5)), "outside")
		require.ErrorIs(t, client.Send(ctx, here.Sub(0, 1), here.Sub(1, 1)), syscall.EINVAL, "two segments")
		_, err := client.PostRecv(here.Sub(60, 5))
		require.ErrorContains(t, err, "outside")
		require.Error(t, client.Send(ctx, ibverbs.Segment{}))
	}
	for range 5 {
		require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
	}
	require.True(t, bytes.Equal(here.Bytes(), there.Bytes()))
}

// A failed transfer ends the connection, even if no goroutine waits for it any
// more.
func TestAbandonedTransferEndsTheConnection(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	pending, err := client.PostRecv(here.Sub(0, 8))
	require.NoError(t, err)
	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	// The peer has no receive, so the write waits behind the message.
	var abandoned *rdmacm.PendingError
	require.ErrorAs(t, client.Send(short(t)), &abandoned)
	require.ErrorAs(t, client.Write(short(t), wrong, here.Sub(8, 8)), &abandoned)
	_, err = server.PostRecv()
	require.NoError(t, err)
	awaitEnd(t, client)
	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess, "why it was flushed")
	require.ErrorIs(t, client.Err(), ibverbs.WCRemoteAccess)
}

// waiters is the number of goroutines that wait at once.
const waiters = 200

// waiter is an object to wait for and to close.
type waiter struct {
	wait  func(context.Context) error
	close func() error
}

func TestWaitingCostsNoThreads(t *testing.T) {
	needDevice(t)
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	for _, tt := range []struct {
		name string
		open func(t *testing.T) waiter
	}{
		{"event channels", func(t *testing.T) waiter {
			ch, err := rdmacm.NewEventChannel()
			require.NoError(t, err)
			return waiter{func(ctx context.Context) error { _, err := ch.Next(ctx); return err }, ch.Close}
		}},
		{"completion queues", func(t *testing.T) waiter {
			ch, err := devices[0].CreateCompChannel()
			require.NoError(t, err)
			cq, err := devices[0].CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ch.Close()) })
			return waiter{func(ctx context.Context) error {
				_, err := cq.Wait(ctx, make([]ibverbs.WC, 1))
				return err
			}, cq.Close}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { testWaiters(t, tt.open) })
	}
}

func testWaiters(t *testing.T, open func(*testing.T) waiter) {
	var all []waiter
	for range waiters {
		w := open(t)
		t.Cleanup(func() { require.NoError(t, w.close()) })
		all = append(all, w)
	}
	before := testdevice.Threads(t)
	parked := parkedGoroutines()
	type result struct {
		n   int
		at  time.Time
		err error
	}
	results := make(chan result)
	cancels := make([]context.CancelFunc, waiters)
	for n, w := range all {
		var ctx context.Context
		ctx, cancels[n] = context.WithCancel(t.Context())
		defer cancels[n]()
		go func() {
			err := w.wait(ctx)
			results <- result{n, time.Now(), err}
		}()
		if n%10 == 9 { // each may need a thread to begin to wait, on a busy machine
			require.Eventually(t, func() bool { return parkedGoroutines() > parked+n }, patience, time.Millisecond)
		}
	}
	threads := testdevice.Threads(t)
	t.Logf("threads: %d before, %d with %d waiting goroutines", before, threads, waiters)
	require.Less(t, threads, before+waiters/2)

	var canceled, closed time.Duration
	for n, w := range all { // one by one, half by cancel and half by Close
		start := time.Now()
		if n%2 == 0 {
			cancels[n]()
			r := <-results
			require.Equal(t, n, r.n)
			require.ErrorIs(t, r.err, context.Canceled)
			canceled = max(canceled, r.at.Sub(start))
		} else {
			closing := make(chan error, 1)
			go func() { closing <- w.close() }()
			r := <-results
			require.Equal(t, n, r.n)
			require.ErrorIs(t, r.err, os.ErrClosed)
			closed = max(closed, r.at.Sub(start))
			require.NoError(t, <-closing)
		}
	}
	t.Logf("longest until a wait ended: %v after cancel, %v after Close", canceled, closed)
}

// parkedGoroutines counts the goroutines in which package netpoll waits on the
// netpoller, where the device in user space has other goroutines, and those
// that this device wakes by itself.
func parkedGoroutines() (n int) {
	stacks := make([]byte, 4<<20)
	for stack := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
		polled := bytes.Contains(stack, []byte("[IO wait")) && bytes.Contains(stack, []byte("/internal/netpoll.(*FD)."))
		if polled || bytes.Contains(stack, []byte("[select")) && bytes.Contains(stack, []byte("ibverbs.(*CQ).waitReady(")) {
			n++
		}
	}
	return n
}

// When a context ends, all waits with it end.
func TestOneContextEndsAllWaits(t *testing.T) {
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, &rdmacm.Config{RecvQueue: waiters}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	results := make(chan error)
	for range waiters {
		pending, err := client.PostRecv()
		require.NoError(t, err)
		each(results, func() error {
			_, err := pending.Wait(ctx)
			return err
		})
	}
	before := testdevice.Threads(t)
	require.Eventually(t, func() bool { return rdmacm.HasPoller(client) }, patience, time.Millisecond)
	cause := errors.New("enough")
	start := time.Now()
	cancel(cause)
	for range waiters {
		require.ErrorIs(t, <-results, cause)
	}
	t.Logf("%d waits on one connection ended within %v", waiters, time.Since(start))
	require.Less(t, testdevice.Threads(t), before+waiters/2) // a busy machine may need some to end waits
}

func TestAtomics(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Atomics)
	client, server := connect(t, d.IPv4, nil, nil)
	counter, err := server.Alloc(8, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
	require.NoError(t, err)
	result := alloc(t, client, 8)
	value := func(mr *ibverbs.MR) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()) }

	require.NoError(t, client.FetchAdd(bounded(t), counter.Remote(), 5, result.All()))
	require.Zero(t, value(result))
	require.NoError(t, client.CompareSwap(bounded(t), counter.Remote(), 4, 9, result.All()))
	require.EqualValues(t, 5, value(result))
	require.EqualValues(t, 5, value(counter), "it was not 4")
	require.NoError(t, client.CompareSwap(bounded(t), counter.Remote(), 5, 9, result.All()))
	require.EqualValues(t, 5, value(result))
	require.EqualValues(t, 9, value(counter))
	unaligned := counter.Remote()
	unaligned.Addr += 4
	require.ErrorContains(t, client.FetchAdd(bounded(t), unaligned, 1, result.All()), "not a multiple of 8")
}

// When the connection is over, Recv says why, even if an earlier Recv has left
// a receive behind.
func TestRecvAfterEnd(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		end func(client, server *rdmacm.Conn) error
		is  error
	}{
		"peer": {func(_, server *rdmacm.Conn) error { return server.Close() }, syscall.ECONNRESET},
		"own":  {func(client, _ *rdmacm.Conn) error { return client.Close() }, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, d.IPv4, nil, nil)
			first, second := alloc(t, client, 8).All(), alloc(t, client, 8).All()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := client.Recv(ctx, first)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, tt.end(client, server))
			awaitEnd(t, client)
			soon(t, "the receive that was left ends", func() bool {
				_, err = client.Recv(bounded(t), second)
				return !errors.Is(err, syscall.EBUSY)
			})
			require.ErrorIs(t, err, tt.is)
		})
	}
}

// A goroutine that has the connection from Setup may ask for its addresses at
// any time.
func TestAddrsWhileDialing(t *testing.T) {
	d := needDevice(t)
	var all sync.WaitGroup
	look := func(c *rdmacm.Conn) error {
		all.Go(func() {
			for c.RemoteAddr().String() == (netip.AddrPort{}).String() && c.PeerData() == nil && c.Err() == nil {
				runtime.Gosched()
			}
		})
		return nil
	}
	connect(t, d.IPv4, &rdmacm.Config{Setup: look}, &rdmacm.Config{Setup: look})
	all.Wait()
}

// Goroutines make transfers of all kinds at once on tiny queues. Then many
// goroutines end the connection.
func TestStorm(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	d.Have(t, testdevice.Inline(16))
	for round := range 12 {
		config := &rdmacm.Config{SendQueue: 1, RecvQueue: 2, KeepAlive: 3 * time.Second, Queues: manual(round%3 == 2), MaxInline: 16}
		ctx := bounded(t)
		ln, err := rdmacm.Listen(ctx, d.IPv4.String()+":0", nil)
		require.NoError(t, err)
		result := acceptOne(ctx, ln, config)
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(config))
		require.NoError(t, err)
		a := <-result
		require.NoError(t, a.err)
		require.NoError(t, ln.Close())
		conns := []*rdmacm.Conn{client, a.conn}
		memory := []*ibverbs.MR{alloc(t, client, 64), alloc(t, a.conn, 64)}
		var all sync.WaitGroup
		start := time.Now()
		for i := range 24 {
			all.Go(func() {
				me, mine, theirs := conns[i%2], memory[i%2], memory[1-i%2]
				for me.Err() == nil {
					c, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(8000))*time.Microsecond)
					switch rand.IntN(7) {
					case 0:
						_ = me.Write(c, theirs.Remote(), mine.Sub(0, 8))
					case 1:
						_ = me.Read(c, mine.Sub(8, 8), theirs.Remote())
					case 2:
						_ = me.Send(c, mine.Sub(0, 32))
					case 3:
						if r, err := me.PostRecv(mine.Sub(32, 32)); err == nil {
							_, _ = r.Wait(c)
						}
					case 4:
						_, _ = me.Recv(c, mine.Sub(32, 32))
					case 5:
						_ = refused(c, me, mine.Sub(16, 8))
					case 6:
						if mr, err := me.Alloc(100, 0); err == nil {
							_ = mr.Close()
						}
					}
					cancel()
				}
			})
		}
		pause := time.Duration(rand.IntN(400)) * time.Millisecond
		time.Sleep(pause)
		for i := range 8 {
			all.Go(func() {
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				if i < 4 {
					if err := conns[i%2].Close(); err != nil {
						t.Error(err)
					}
				} else if err := conns[i%2].Shutdown(bounded(t)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		t.Logf("round %d: %v after %v: %v, %v", round, time.Since(start), pause, client.Err(), a.conn.Err())
	}
}

// endingContext ends on demand. It calls atEnd before a goroutine sees the end.
type endingContext struct {
	context.Context
	// waited is closed when a goroutine waits for the end, and done at the end.
	waited, done chan struct{}
	wait, ended  sync.Once
	atEnd        func()
}

func newEndingContext(atEnd func()) *endingContext {
	return &endingContext{Context: context.Background(), waited: make(chan struct{}), done: make(chan struct{}), atEnd: atEnd}
}

func (c *endingContext) Done() <-chan struct{} {
	c.wait.Do(func() { close(c.waited) })
	return c.done
}

func (c *endingContext) Err() error {
	select {
	case <-c.done:
		c.ended.Do(c.atEnd)
		return context.Canceled
	default:
		return nil
	}
}

// stuck makes a goroutine wait for completions on a connection. The peer has no
// receive for its message.
func stuck(t *testing.T, conn *rdmacm.Conn) <-chan error {
	t.Helper()
	ctx := bounded(t)
	sent := inBackground(func() error { return conn.Send(ctx) })
	soon(t, "a goroutine waits", func() bool { return rdmacm.Sending(conn) == 1 && rdmacm.HasPoller(conn) })
	return sent
}

// A message that comes as the context of Recv ends is not lost.
func TestRecvEndsWithMessage(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	speakFirst(t, client, server)
	first, second := alloc(t, client, 8), alloc(t, client, 8)
	from := alloc(t, server, 8)
	sent := stuck(t, client)
	ctx := newEndingContext(func() {
		other, err := client.PostRecv(second.All())
		require.NoError(t, err)
		for _, text := range []string{"message1", "message2"} {
			copy(from.Bytes(), text)
			require.NoError(t, server.Send(bounded(t), from.All()))
		}
		_, err = other.Wait(bounded(t)) // and so the first one is there
		require.NoError(t, err)
	})
	go func() {
		<-ctx.waited
		close(ctx.done)
	}()
	n, err := client.Recv(ctx, first.All())
	t.Log(n, err)
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
		n, err = client.Recv(bounded(t), first.All())
		require.NoError(t, err, "the message is lost")
	}
	require.Equal(t, "message1", string(first.Bytes()[:n]))
	_, err = server.Recv(bounded(t))
	require.NoError(t, err)
	require.NoError(t, <-sent)
}

// A context that ends together with the transfer is no reason to say that
// nothing was sent.
func TestSendEndsWithContext(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	sent := stuck(t, client)
	var receives []*rdmacm.Receive
	ctx := newEndingContext(func() {
		for range 2 {
			r, err := server.PostRecv()
			require.NoError(t, err)
			receives = append(receives, r)
		}
		for _, r := range receives {
			_, err := r.Wait(bounded(t))
			require.NoError(t, err)
		}
		soon(t, "both sends are done", func() bool { return rdmacm.Sending(client) == 0 })
	})
	go func() {
		<-ctx.waited
		close(ctx.done)
	}()
	err := client.Send(ctx)
	require.NoError(t, <-sent)
	var pending *rdmacm.PendingError
	if errors.As(err, &pending) {
		err = pending.Transfer.Wait(bounded(t))
	}
	require.NoError(t, err, "it was sent")
}

// Recv with short timeouts takes every message.
func TestRecvLoop(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	speakFirst(t, client, server)
	to, from := alloc(t, client, 4).All(), alloc(t, server, 4)
	ctx := bounded(t)
	const messages = 300
	sent := inBackground(func() error {
		for i := range messages {
			from.Bytes()[0], from.Bytes()[1] = byte(i), byte(i>>8)
			if err := server.Send(ctx, from.All()); err != nil {
				return err
			}
		}
		return nil
	})
	// Writers wait on the connection, too.
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	quit := make(chan struct{})
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					_ = client.Write(ctx, there.Remote(), here.All())
				}
			}
		})
	}
	got, timeouts, lost := 0, 0, 0
	for next := 0; next < messages; {
		c, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
		_, err := client.Recv(c, to)
		cancel()
		if err != nil {
			require.NoError(t, ctx.Err(), "at %d, %d timeouts, %d lost", next, timeouts, lost)
			timeouts++
			continue
		}
		i := int(to.Bytes()[0]) | int(to.Bytes()[1])<<8
		lost += i - next
		next = i + 1
		got++
	}
	close(quit)
	writers.Wait()
	t.Logf("%d messages, %d timeouts, %d lost", got, timeouts, lost)
	require.Zero(t, lost)
	require.NoError(t, <-sent)
}

// Receives that are posted just as the connection ends, end too.
func TestReceivesAtTheEnd(t *testing.T) {
	d := needDevice(t)
	for name, end := range map[string]func(t *testing.T, client, server *rdmacm.Conn) error{
		"the peer ends it": func(_ *testing.T, _, server *rdmacm.Conn) error { return server.Close() },
		"a transfer failed": func(t *testing.T, client, _ *rdmacm.Conn) error {
			err := client.Write(bounded(t), ibverbs.RemoteBuffer{Addr: 1, RKey: 1, Len: 8}, alloc(t, client, 8).All())
			if !errors.Is(err, ibverbs.WCRemoteAccess) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				client, server := connect(t, d.IPv4, &rdmacm.Config{RecvQueue: 16000}, nil)
				posting := make(chan struct{})
				var receives []*rdmacm.Receive
				posted := inBackground(func() error {
					for {
						r, err := client.PostRecv()
						if err != nil {
							return err
						}
						if receives = append(receives, r); len(receives) == 10 {
							close(posting)
						}
					}
				})
				<-posting
				require.NoError(t, end(t, client, server))
				err := cmtest.Take(t, posted, "posting")
				ctx := bounded(t)
				for i, r := range receives {
					_, waitErr := r.Wait(ctx)
					require.NoError(t, ctx.Err(), "receive %d of %d; it is over because of: %v; %v", i, len(receives), client.Err(), waitErr)
				}
				t.Logf("%d receives; posting: %v", len(receives), err)
			}
		})
	}
}

// An event of a device that librdmacm has open names the connection's queue
// pair, also when another ibverbs.Device reads it.
func TestAsyncEventNamesTheConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	device := new(ibverbs.Device)
	sealed.Open(device.Internals()).InitForeign(client.PD().Device().Raw(), func() error { return nil })
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	for _, qp := range []*ibverbs.QP{client.QP(), server.QP()} {
		require.NoError(t, qp.Modify(ibverbs.QPAttr{State: ibverbs.QPStateSQD, NotifyDrained: true}, ibverbs.QPAttrState|ibverbs.QPAttrNotifyDrained))
		for ev, err := range device.Events(bounded(t)) {
			require.NoError(t, err)
			if ev.Type == ibverbs.EventSQDrained {
				require.Same(t, qp, ev.QP())
				require.Equal(t, qp.Num(), ev.Number)
				break
			}
		}
	}
}

// A program with many connections can tell from a logged error which connection
// it was.
func TestErrorsNamePeer(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{KeepAlive: time.Second}) // by which it may notice the end
	here, with := alloc(t, client, 8), "connection with "+client.RemoteAddr().String()+": "
	require.ErrorContains(t, client.Read(bounded(t), here.All(), ibverbs.RemoteBuffer{RKey: 1, Len: 8}), with+"read of 8 bytes")
	require.ErrorContains(t, client.Err(), with+"read of 8 bytes from ")
	awaitEnd(t, server)
	require.ErrorContains(t, server.Err(), "connection with "+server.RemoteAddr().String()+": ")
	require.NoError(t, server.Close())

	closed, _ := connect(t, d.IPv4, nil, nil)
	with = "connection with " + closed.RemoteAddr().String() + ": "
	require.NoError(t, closed.Close())
	require.EqualError(t, closed.Err(), with+os.ErrClosed.Error())
	require.EqualError(t, closed.Send(bounded(t)), with+os.ErrClosed.Error())
}
