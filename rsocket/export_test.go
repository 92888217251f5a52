// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Idle reports whether nothing of a connection is under way.
func Idle(c *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Idle()
}

// SlabsInUse returns how much memory to send from connections of a pool have.
func SlabsInUse(p *Pool) (used, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.parts {
		s.memory.mu.Lock()
		used, all = used+len(s.memory.all), all+len(s.memory.all)
		for _, free := range s.memory.free {
			used -= len(free)
		}
		s.memory.mu.Unlock()
	}
	return used, all
}

// HurryHandshakes lets the time be up of the peers that a listener has asked to
// complete their handshakes, if a request waits. It reports whether one waits.
func HurryHandshakes(ln *Listener) bool {
	l := &ln.queue
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return false
	}
	for h := range l.underWay {
		if !h.asked.IsZero() {
			h.asked = time.Now().Add(-longPatience)
			h.began = h.asked
		}
	}
	l.fill()
	return true
}

// Received returns the receive buffer of a connection.
func Received(c *Conn) []byte { return c.received }

// HoldReader uses the reading direction of a connection until release is
// called.
func HoldReader(t testing.TB, c *Conn) (release func()) {
	require.NoError(t, c.begin(&c.reader))
	return c.reader.end
}

// FailBelow makes the queue pair of a connection flush all requests, of which
// rdmacm does not know.
func FailBelow(c *Conn) error { return c.qp.SetError() }

// HandleAfterClose takes completions of a connection, among them one of a
// receive, and closes the connection before it handles them, as may happen to a
// goroutine that waits.
func HandleAfterClose(c *Conn) error {
	p := c.pump
	p.lock <- struct{}{}
	defer p.unlock()
	for {
		n, err := p.cq.Wait(background, p.wcs)
		if err != nil {
			return err
		}
		received := slices.ContainsFunc(p.wcs[:n], func(wc ibverbs.WC) bool { return isReceive(&wc) })
		if received {
			err = c.Close()
		}
		p.pass(n, nil)
		if received {
			return err
		}
	}
}

// Parts returns how many queues the connections of a pool are on.
func Parts(p *Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.parts)
}

// KeepsAlive reports whether a connection checks its peer.
func KeepsAlive(c *Conn) bool {
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	return c.keepAlive.timer != nil
}

// MaxPeers limits the peers of a PacketConn.
const MaxPeers = maxPeers

// Peers returns how many peers a PacketConn knows.
func Peers(c *PacketConn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.peers)
}

// Introduced reports whether datagrams to a peer go from queue pair to queue
// pair.
func Introduced(c *PacketConn, addr netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	peer := c.peers[addr]
	return peer != nil && peer.path != nil && peer.qpNum == peer.wanted
}

// ConnectPackets makes an address the only peer of a PacketConn.
func ConnectPackets(c *PacketConn, to netip.AddrPort) (netip.Addr, error) {
	return packetInternals{c}.Connect(to)
}

// FailQueuePairs makes the queue pairs of a PacketConn flush all requests.
func FailQueuePairs(t testing.TB, c *PacketConn) {
	for _, p := range *c.all.Load() {
		require.NoError(t, p.qp.SetError())
	}
}

// Knows reports whether a PacketConn sends to a queue pair of a peer.
func Knows(c *PacketConn, addr netip.AddrPort, qpNum uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	peer := c.peers[addr]
	return peer != nil && peer.path != nil && peer.qpNum == qpNum && peer.wanted == qpNum
}

// Works reports whether the queue pairs of a PacketConn send and receive. It
// takes completions, which tell the PacketConn of failures.
func Works(t testing.TB, c *PacketConn) bool {
	c.refresh()
	for _, p := range *c.all.Load() {
		state, err := p.qp.State()
		require.NoError(t, err)
		if state != ibverbs.QPStateRTS || p.broken.Load() {
			return false
		}
	}
	return true
}

// NextPacket returns the data of the next unread datagram, and whether it has
// come over a queue pair. It takes what is there; data is nil if that is
// nothing.
func NextPacket(c *PacketConn) (data []byte, overRDMA bool) {
	c.refresh()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unread) == 0 {
		return nil, false
	}
	return append([]byte{}, c.unread[0].data...), c.unread[0].port != nil
}

// TryReadPacket reads a datagram without waiting.
func TryReadPacket(c *PacketConn, b []byte) (int, netip.AddrPort, error) {
	n, _, from, err := packetInternals{c}.TryRead([][]byte{b}, false)
	return n, from, err
}

// Greet makes a PacketConn handle a UDP packet from an address.
func Greet(t testing.TB, c *PacketConn, from netip.AddrPort, b []byte) {
	greeting, data, err := protocol.ParseGreeting(b, from.Addr())
	require.NoError(t, err)
	c.greeted(from, greeting, data)
}

// Post sends a datagram over RDMA, or not at all. It reports whether the
// datagram was posted.
func Post(c *PacketConn, to netip.AddrPort, data string) (bool, error) {
	peer, err := c.peer(to)
	if err != nil {
		return false, err
	}
	c.refresh()
	posted, err := c.post(peer, [][]byte{[]byte(data)}, len(data))
	if errors.Is(err, syscall.EAGAIN) {
		err = nil
	}
	return posted, err
}

// PostRaw posts bytes in place of a header and data to a peer that has been
// introduced. It reports whether the bytes were posted.
func PostRaw(c *PacketConn, to netip.AddrPort, b []byte) (bool, error) {
	peer, err := c.peer(to)
	if err != nil {
		return false, err
	}
	header := peer.port.header
	defer func() { peer.port.header = header }()
	peer.port.header = nil
	return c.post(peer, [][]byte{b}, len(b))
}

// HostilePackets returns what no peer sends: what is no datagram, and datagrams
// from an address that is not the sender's.
func HostilePackets(from netip.AddrPort) [][]byte {
	good := append(protocol.AppendHeader(nil, from), "hello"...)
	version, length := slices.Clone(good), slices.Clone(good)
	version[0], length[1] = 7, 200
	return [][]byte{
		{},
		good[:1], good[:7], version, length,
		append(protocol.AppendHeader(nil, netip.MustParseAddrPort("192.0.2.99:7")), "hello"...),
		append(protocol.AppendHeader(nil, netip.MustParseAddrPort("[2001:db8::99]:7")), "hello"...),
	}
}
