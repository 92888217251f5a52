// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// needDatagrams is needDevice for a device with datagrams.
func needDatagrams(t testing.TB) testdevice.Device {
	t.Helper()
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams)
	return d
}

// packets returns a PacketConn on the device, closed with the test.
func packets(t testing.TB, ip netip.Addr, config rsocket.Config) *rsocket.PacketConn {
	t.Helper()
	lc := rsocket.ListenConfig{Config: config}
	c, err := lc.ListenPacket(bounded(t), "rdma", netip.AddrPortFrom(ip, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func addrOf(c net.PacketConn) netip.AddrPort { return c.LocalAddr().(rsocket.Addr).AddrPort }

// repeated has the datagrams that delivers has sent more than once to an end.
// They may arrive more than once, and later than others.
var repeated = map[*rsocket.PacketConn][][]byte{}

// isRepeated reports whether an end may have got a datagram before.
func isRepeated(to *rsocket.PacketConn, data []byte) bool {
	return slices.ContainsFunc(repeated[to], func(b []byte) bool { return bytes.Equal(b, data) })
}

// delivers sends a datagram until it has arrived, as some may get lost.
func delivers(t testing.TB, from, to *rsocket.PacketConn, data []byte) {
	t.Helper()
	got := make([]byte, 4096)
	for first := true; ; first = false {
		if !first { // it is late or lost
			repeated[to] = append(repeated[to], data)
		}
		n, err := from.WriteTo(data, to.LocalAddr())
		require.NoError(t, err)
		require.Equal(t, len(data), n)
		require.NoError(t, to.SetReadDeadline(time.Now().Add(time.Second)))
		for err == nil {
			var sender net.Addr
			if n, sender, err = to.ReadFrom(got); err != nil {
				break
			}
			if bytes.Equal(data, got[:n]) && addrOf(from) == sender.(rsocket.Addr).AddrPort {
				require.NoError(t, to.SetReadDeadline(time.Now().Add(patience)))
				return
			}
			require.True(t, isRepeated(to, got[:n]), "%d bytes of %v, want %d of %v", n, sender, len(data), addrOf(from))
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

// deliversOverRDMA sends a datagram until it has come from queue pair to queue
// pair and is the next to be read. A peer that was silent for a second gets it
// over UDP.
func deliversOverRDMA(t testing.TB, from, to *rsocket.PacketConn, data []byte) {
	t.Helper()
	for began := time.Now(); ; {
		_, err := from.WriteTo(data, to.LocalAddr())
		require.NoError(t, err)
		for end := time.Now().Add(time.Second); time.Now().Before(end); runtime.Gosched() {
			next, overRDMA := rsocket.NextPacket(to)
			if overRDMA && bytes.Equal(next, data) {
				return
			}
			if next != nil {
				_, _, err := to.ReadFrom(make([]byte, 4096))
				require.NoError(t, err)
			}
		}
		repeated[to] = append(repeated[to], data)
		require.Less(t, time.Since(began), patience, "no datagram comes over RDMA")
	}
}

// introduced sends datagrams both ways until they go from queue pair to queue
// pair.
func introduced(t testing.TB, a, b *rsocket.PacketConn) {
	t.Helper()
	began := time.Now()
	for !rsocket.Introduced(a, addrOf(b)) || !rsocket.Introduced(b, addrOf(a)) {
		delivers(t, a, b, []byte("hello"))
		delivers(t, b, a, []byte("hello"))
		require.Less(t, time.Since(began), patience, "the ends do not learn each other's queue pairs")
	}
}

// Datagrams of all lengths arrive whole, first over UDP and then from queue
// pair to queue pair.
func TestPackets(t *testing.T) {
	d := needDatagrams(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			most := 2032
			if ip.Is6() {
				most = 2020
			}
			a, b := packets(t, ip, rsocket.Config{}), packets(t, ip, rsocket.Config{})
			for _, known := range []bool{false, true} {
				if known {
					introduced(t, a, b)
				}
				for _, n := range []int{0, 1, 500, 1000, 1016, 1017, most} {
					data := bytes.Repeat([]byte{byte(n)}, n)
					delivers(t, a, b, data)
					delivers(t, b, a, data)
				}
			}
			for _, c := range []*rsocket.PacketConn{a, b} {
				if c == a { // which has to greet itself
					introduced(t, a, a)
				}
				deliversOverRDMA(t, c, a, []byte("over RDMA"))
				_, _, err := a.ReadFrom(make([]byte, 10))
				require.NoError(t, err)
			}
			for _, c := range []*rsocket.PacketConn{a, b} {
				_, err := c.WriteTo(make([]byte, most+1), a.LocalAddr())
				require.ErrorIs(t, err, syscall.EMSGSIZE)
			}
		})
	}
}

// A PacketConn on all addresses answers from its only address, and is its own
// peer.
func TestPacketsOnAllAddresses(t *testing.T) {
	d := needDatagrams(t)
	for _, network := range []string{"rdma", "rdma4"} {
		all, err := rsocket.ListenPacket(network, ":0")
		require.NoError(t, err)
		port := addrOf(all).Port()
		require.NoError(t, all.SetDeadline(time.Now().Add(patience)))
		one := packets(t, d.IPv4, rsocket.Config{})
		got := make([]byte, 100)
		for range 10 {
			_, err = one.WriteToAddrPort([]byte("ping"), netip.AddrPortFrom(d.IPv4, port))
			require.NoError(t, err)
			n, from, err := all.ReadFromAddrPort(got)
			require.NoError(t, err)
			require.Equal(t, "ping", string(got[:n]))
			require.Equal(t, addrOf(one), from)
			_, err = all.WriteToAddrPort([]byte("pong"), from)
			require.NoError(t, err)
			n, from, err = one.ReadFromAddrPort(got)
			require.NoError(t, err)
			require.Equal(t, "pong", string(got[:n]))
			require.Equal(t, netip.AddrPortFrom(d.IPv4, port), from)
		}
		for range 10 {
			_, err = all.WriteTo([]byte("self"), &net.UDPAddr{IP: d.IPv4.AsSlice(), Port: int(port)})
			require.NoError(t, err)
			n, _, err := all.ReadFrom(got)
			require.NoError(t, err)
			require.Equal(t, "self", string(got[:n]))
		}
		require.NoError(t, all.Close())
	}
}

// A datagram that is longer than the buffer is cut.
func TestPacketIsCut(t *testing.T) {
	a := packets(t, needDatagrams(t).IPv4, rsocket.Config{})
	b := packets(t, needDatagrams(t).IPv4, rsocket.Config{})
	for range 2 {
		for _, data := range []string{"first", "again"} {
			_, err := a.WriteTo([]byte(data), b.LocalAddr())
			require.NoError(t, err)
			got := make([]byte, 3)
			n := 3
			for n == 3 && string(got) != data[:3] {
				n, _, err = b.ReadFrom(got)
				require.NoError(t, err)
				if string(got[:n]) != "hel" { // of a late "hello" that introduced has sent
					require.Equal(t, data[:3], string(got[:n]))
				}
			}
		}
		introduced(t, a, b)
	}
}

// Datagrams that are not read get lost, and those that come later arrive.
func TestPacketsGetLost(t *testing.T) {
	small := rsocket.Config{ReadBuffer: 8192, WriteBuffer: 8192}
	for _, known := range []bool{false, true} {
		a, b := packets(t, needDatagrams(t).IPv4, small), packets(t, needDatagrams(t).IPv4, small)
		began := time.Now()
		if known {
			introduced(t, a, b)
		}
		for i := range 200 {
			_, err := a.WriteTo([]byte{byte(i)}, b.LocalAddr())
			require.NoError(t, err)
		}
		ordered := known && time.Since(began) < time.Second // later, one goes over UDP
		got := make([]byte, 10)
		last := -1
		for {
			require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
			n, _, err := b.ReadFrom(got)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_, err := a.WriteTo([]byte("end"), b.LocalAddr())
				require.NoError(t, err)
				continue
			}
			require.NoError(t, err)
			if n == 3 {
				break
			}
			if isRepeated(b, got[:n]) {
				continue
			}
			require.Equal(t, 1, n)
			if ordered { // otherwise, datagrams over UDP and those over RDMA pass each other
				require.Greater(t, int(got[0]), last, "out of order")
			}
			last = int(got[0])
		}
		require.GreaterOrEqual(t, last, 0)
	}
}

// Many goroutines send and receive; each datagram that arrives is whole.
func TestPacketsOfMany(t *testing.T) {
	d := needDatagrams(t)
	const ends, each = 4, 200
	conns := make([]*rsocket.PacketConn, ends)
	for i := range conns {
		conns[i] = packets(t, d.IPv4, rsocket.Config{ReadBuffer: 1 << 20, WriteBuffer: 1 << 16})
	}
	var senders, readers sync.WaitGroup
	for _, c := range conns {
		for range 2 {
			readers.Go(func() {
				b := make([]byte, 2048)
				for {
					n, _, err := c.ReadFrom(b)
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err != nil || n < 1 || !bytes.Equal(b[:n], bytes.Repeat(b[:1], n)) {
						t.Errorf("%d bytes, %v", n, err)
						return
					}
				}
			})
		}
		for k := range 2 {
			senders.Go(func() {
				for i := range each {
					to := conns[(i+k)%ends]
					if _, err := c.WriteTo(bytes.Repeat([]byte{byte(i)}, 1+i*10%2000), to.LocalAddr()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	senders.Wait()
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	readers.Wait()
}

// Close and deadlines end calls in progress.
func TestPacketCallsEnd(t *testing.T) {
	c := packets(t, needDatagrams(t).IPv4, rsocket.Config{})
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, _, err := c.ReadFrom(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.True(t, err.(net.Error).Timeout())
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	ended := inBackground(func() error {
		_, _, err := c.ReadFrom(make([]byte, 1))
		return err
	})
	require.NoError(t, c.Close())
	require.ErrorIs(t, cmtest.Take(t, ended, "the end of ReadFrom"), net.ErrClosed)
	require.NoError(t, c.Close())
	_, err = c.WriteTo(nil, c.LocalAddr())
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, c.SetDeadline(time.Time{}), net.ErrClosed)
}

func TestPacketErrors(t *testing.T) {
	d := needDatagrams(t)
	c := packets(t, d.IPv4, rsocket.Config{})
	for name, f := range map[string]struct {
		is  error
		has string
		f   func() error
	}{
		"port in use": {syscall.EADDRINUSE, "listen rdma", func() error {
			_, err := rsocket.ListenPacket("rdma", addrOf(c).String())
			return err
		}},
		"address of no system": {syscall.EADDRNOTAVAIL, "192.0.2.77", func() error {
			_, err := rsocket.ListenPacket("rdma", "192.0.2.77:0")
			return err
		}},
		"network": {nil, "unknown network udp", func() error {
			_, err := rsocket.ListenPacket("udp", ":0")
			return err
		}},
		"family": {nil, "no suitable address", func() error {
			_, err := rsocket.ListenPacket("rdma6", netip.AddrPortFrom(d.IPv4, 0).String())
			return err
		}},
		"queue": {syscall.EINVAL, "AckTimeout", func() error {
			_, err := (&rsocket.ListenConfig{Config: rsocket.Config{AckTimeout: -1}}).ListenPacket(t.Context(), "rdma", ":0")
			return err
		}},
		"no config": {syscall.EINVAL, "config is nil", func() error {
			_, err := (*rsocket.ListenConfig)(nil).ListenPacket(t.Context(), "rdma", ":0")
			return err
		}},
		"no context": {syscall.EINVAL, "ctx is nil", func() error {
			var none context.Context
			_, err := new(rsocket.ListenConfig).ListenPacket(none, "rdma", ":0")
			return err
		}},
		"no destination": {syscall.EDESTADDRREQ, "no destination", func() error {
			_, err := c.WriteToAddrPort(nil, netip.AddrPort{})
			return err
		}},
		"port 0": {syscall.EINVAL, "no destination", func() error {
			_, err := c.WriteToAddrPort(nil, netip.AddrPortFrom(d.IPv4, 0))
			return err
		}},
		"address of another kind": {nil, "*net.TCPAddr", func() error {
			_, err := c.WriteTo(nil, new(net.TCPAddr))
			return err
		}},
		"nil address": {nil, "<nil>", func() error {
			_, err := c.WriteTo(nil, nil)
			return err
		}},
		"nil UDPAddr": {nil, "*net.UDPAddr", func() error {
			_, err := c.WriteTo(nil, (*net.UDPAddr)(nil))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.f()
			require.ErrorContains(t, err, f.has)
			if f.is != nil {
				require.ErrorIs(t, err, f.is)
			}
			_, ok := errors.AsType[*net.OpError](err)
			require.True(t, ok || errors.Is(err, syscall.EINVAL), fmt.Sprintf("%T", err))
		})
	}
}

// A peer that has restarted is found again.
func TestPacketPeerRestarts(t *testing.T) {
	d := needDatagrams(t)
	a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
	for range 3 {
		introduced(t, a, b)
		at := addrOf(b).String()
		require.NoError(t, b.Close())
		var err error
		b, err = rsocket.ListenPacket("rdma", at)
		require.NoError(t, err)
		// It does not know a, and says so by its first datagram.
		delivers(t, b, a, []byte("new"))
	}
	require.NoError(t, b.Close())
}

// A peer that has restarted, and sends nothing by itself, is found again.
func TestPacketPeerRestartsSilently(t *testing.T) {
	d := needDatagrams(t)
	a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
	introduced(t, a, b)
	at := addrOf(b).String()
	require.NoError(t, b.Close())
	b, err := rsocket.ListenPacket("rdma", at)
	require.NoError(t, err)
	delivers(t, a, b, []byte("to the new one"))
	introduced(t, a, b)
	require.NoError(t, b.Close())
}

// A false queue pair that a Greeting in a peer's name names is forgotten,
// although the peer does not greet and its datagrams come over RDMA meanwhile.
func TestPacketPeerIsMisnamed(t *testing.T) {
	d := needDatagrams(t)
	a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
	introduced(t, a, b)
	const misnamed = 0x109
	greeting := []byte{0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 1, 9, 1, 2, 3, 4}
	for began := time.Now(); !rsocket.Knows(a, addrOf(b), misnamed); {
		rsocket.Greet(t, a, addrOf(b), greeting)
		_, err := a.WriteTo([]byte("lost or not"), b.LocalAddr())
		require.NoError(t, err)
		require.Less(t, time.Since(began), patience, "the false queue pair is not taken")
	}
	// In this order: an answer of the peer that comes between the two calls makes
	// a queue pair that is known one that is not wanted any more.
	for began := time.Now(); rsocket.Knows(a, addrOf(b), misnamed) || !rsocket.Introduced(a, addrOf(b)); {
		_, err := rsocket.Post(b, addrOf(a), "over RDMA")
		require.NoError(t, err)
		_, err = a.WriteTo([]byte("lost at first"), b.LocalAddr())
		require.NoError(t, err)
		for err == nil {
			_, _, err = rsocket.TryReadPacket(a, make([]byte, 100))
		}
		require.Less(t, time.Since(began), patience, "the peer's own queue pair is not found")
	}
	introduced(t, a, b)
}

// After a queue pair has failed, datagrams go over UDP, and later over RDMA
// again. Unread datagrams remain, and no place for datagrams is lost.
func TestPacketsAfterFailure(t *testing.T) {
	d := needDatagrams(t)
	small := rsocket.Config{ReadBuffer: 8192, WriteBuffer: 8192}
	a, b := packets(t, d.IPv4, small), packets(t, d.IPv4, small)
	for range 2 {
		introduced(t, a, b)
		deliversOverRDMA(t, b, a, []byte("unread")) // a small device has room for one
		rsocket.FailQueuePairs(t, a)
		delivers(t, a, b, []byte("over UDP"))
		require.Eventually(t, func() bool { return rsocket.Works(t, a) }, patience, time.Millisecond)
		for range 4 { // as many as there are places
			_, err := rsocket.Post(b, addrOf(a), "more")
			require.NoError(t, err)
		}
		got := make([]byte, 10)
		n, _, err := a.ReadFrom(got)
		for err == nil && string(got[:n]) != "unread" {
			require.True(t, isRepeated(a, got[:n]), "%q", got[:n])
			n, _, err = a.ReadFrom(got)
		}
		require.NoError(t, err)
		for err == nil {
			require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
			_, _, err = a.ReadFrom(got)
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		for range 20 { // more than there are places
			delivers(t, a, b, []byte("question"))
			delivers(t, b, a, []byte("answer"))
		}
		deliversOverRDMA(t, b, a, []byte("over RDMA"))
		_, _, err = a.ReadFrom(got)
		require.NoError(t, err)
	}
}

// Calls go on while queue pairs fail, and Close ends while they are mended.
func TestPacketsWhileQueuePairsFail(t *testing.T) {
	d := needDatagrams(t)
	for range 5 {
		a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
		introduced(t, a, b)
		var calls sync.WaitGroup
		for from, to := range map[*rsocket.PacketConn]*rsocket.PacketConn{a: b, b: a} {
			calls.Go(func() {
				for range 200 {
					if _, err := from.WriteTo([]byte("hello"), to.LocalAddr()); err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
			calls.Go(func() {
				for {
					if _, _, err := to.ReadFrom(make([]byte, 10)); err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		rsocket.FailQueuePairs(t, a)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		calls.Wait()
	}
}

// Close ends calls that make queue pairs, and leaves none behind.
func TestPacketsCloseWhileQueuePairsAreMade(t *testing.T) {
	d := needDatagrams(t)
	there := packets(t, d.IPv4, rsocket.Config{})
	for range 20 {
		c, err := rsocket.ListenPacket("rdma", ":0")
		require.NoError(t, err)
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				for err := error(nil); err == nil; {
					if _, err = c.WriteTo([]byte("hello"), there.LocalAddr()); err != nil && !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		calls.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		calls.Wait()
		require.Zero(t, rsocket.Peers(c))
	}
}

// Negative lengths of queues are adjusted like small ones.
func TestPacketQueuesAreAdjusted(t *testing.T) {
	d := needDatagrams(t)
	a := packets(t, d.IPv4, rsocket.Config{})
	b := packets(t, d.IPv4, rsocket.Config{RecvQueue: -1, SendQueue: -1})
	greeting := []byte{0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 1, 9, 1, 2, 3, 4, 'h', 'i'}
	rsocket.Greet(t, b, addrOf(a), greeting)
	got := make([]byte, 10)
	n, _, err := rsocket.TryReadPacket(b, got)
	require.NoError(t, err)
	require.Equal(t, "hi", string(got[:n]))
	introduced(t, a, b)
}

// Nothing connects to an address that can be no peer's.
func TestPacketConnect(t *testing.T) {
	d := needDatagrams(t)
	c := packets(t, d.IPv4, rsocket.Config{})
	for name, to := range map[string]netip.AddrPort{
		"port 0":      netip.AddrPortFrom(d.IPv4, 0),
		"unspecified": netip.MustParseAddrPort("0.0.0.0:7"),
		"multicast":   netip.MustParseAddrPort("224.0.0.1:7"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rsocket.ConnectPackets(c, to)
			require.ErrorIs(t, err, syscall.EINVAL)
		})
	}
	mapped := netip.AddrFrom16(d.IPv4.As16())
	local, err := rsocket.ConnectPackets(c, netip.AddrPortFrom(mapped, addrOf(c).Port()))
	require.NoError(t, err)
	require.Equal(t, d.IPv4, local)
	delivers(t, c, c, []byte("of the only peer"))
}

// What is no Greeting, or no datagram, changes nothing.
func TestPacketsFromHostilePeers(t *testing.T) {
	d := needDatagrams(t)
	a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
	introduced(t, a, b)
	udp, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addrOf(a)))
	require.NoError(t, err)
	defer udp.Close()
	for _, data := range [][]byte{
		nil,
		{0x55},
		bytes.Repeat([]byte{0x55}, 16), bytes.Repeat([]byte{0x55}, 60000), append([]byte{0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0}, make([]byte, 8)...),
		append([]byte{0x55, 0x55, 0x55, 0x55, 6, 0, 28, 0, 0, 0, 0, 9}, make([]byte, 16)...),
		append([]byte{0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 0, 9, 1, 2, 3, 4}, make([]byte, 2040)...), // too long
		{0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 0, 9, 1, 2, 3, 4, 5},                                   // an answer with data
	} {
		_, err := udp.Write(data)
		require.NoError(t, err)
	}
	// Those between queue pairs, of which a knows b's.
	from := netip.AddrPortFrom(d.IPv4, 1234)
	for _, data := range rsocket.HostilePackets(from) {
		posted, err := rsocket.PostRaw(b, addrOf(a), data)
		require.NoError(t, err)
		require.True(t, posted)
	}
	delivers(t, b, a, []byte("the only one"))
	got := make([]byte, 4096)
	for err == nil {
		var n int
		if n, _, err = rsocket.TryReadPacket(a, got); err == nil {
			require.True(t, isRepeated(a, got[:n]), "%q", got[:n])
		}
	}
	require.ErrorIs(t, err, syscall.EAGAIN)
}

// Greetings of ever new peers take no more than limited memory, and do not
// disturb others.
func TestPacketsFromManyAddresses(t *testing.T) {
	d := needDatagrams(t)
	a, b := packets(t, d.IPv4, rsocket.Config{}), packets(t, d.IPv4, rsocket.Config{})
	introduced(t, a, b)
	greeting := []byte{0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 1, 9, 1, 2, 3, 4}
	for i := range rsocket.MaxPeers + 500 {
		rsocket.Greet(t, a, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 77), greeting)
	}
	require.LessOrEqual(t, rsocket.Peers(a), rsocket.MaxPeers)
	introduced(t, a, b)
}
