// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
)

// packetPeer is an address to which a PacketConn has sent, or from which it has
// received over UDP. The fields below port are guarded by the PacketConn's mu.
type packetPeer struct {
	addr      netip.AddrPort
	port      *packetPort // from which datagrams to the peer are sent
	path      *packetPath // nil if it is not known yet
	qpNum     uint32      // queue pair at the end of path
	wanted    uint32      // queue pair that the peer has named last; 0 if it has named none
	resolving bool        // whether a resolver works on it, or will
	forgotten bool        // whether the PacketConn has forgotten it
	retry     time.Time   // when the next attempt to find the path may begin
	heard     time.Time   // when a Greeting, or a datagram from wanted, last came from it
	greeted   time.Time   // when a Greeting last went to it
}

// packetPath is the way to a peer.
type packetPath struct {
	ah      *ibverbs.AH
	users   int  // number of datagrams in flight that use it
	retired bool // whether it is closed after the last of these
}

// Other hosts can cause the work and the memory for peers, as a Greeting needs
// no proof. So both have limits.
const (
	maxPeers       = 4096
	maxResolvers   = 4
	maxResolved    = 64 // peers that wait for a resolver
	resolveTimeout = 2 * time.Second
	refusedFor     = 3 * time.Second // time after a failure until the next attempt
)

// peer returns the peer with an address. The result has a port.
func (c *PacketConn) peer(addr netip.AddrPort) (*packetPeer, error) {
	c.mu.Lock()
	peer := c.peers[addr]
	err := c.err
	c.mu.Unlock()
	if peer != nil || err != nil {
		return peer, err
	}
	local, err := c.localFor(addr)
	if err != nil {
		return nil, err
	}
	port, err := c.port(local)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch peer := c.peers[addr]; {
	case c.err != nil:
		return nil, c.err
	case peer != nil:
		return peer, nil
	case len(c.peers) >= maxPeers:
		c.forget()
	}
	peer = &packetPeer{addr: addr, port: port}
	c.peers[addr] = peer
	return peer, nil
}

// forget forgets a peer, which will be greeted again. It prefers one without a
// path. The caller holds c.mu.
func (c *PacketConn) forget() {
	var victim *packetPeer
	looks := 0
	for addr, peer := range c.peers {
		if addr == c.connected {
			continue
		}
		victim = peer
		if looks++; peer.path == nil || looks == 64 {
			break
		}
	}
	victim.forgotten = true
	victim.retire()
	delete(c.peers, victim.addr)
}

// localFor returns the address from which this host sends to another.
func (c *PacketConn) localFor(to netip.AddrPort) (netip.Addr, error) {
	if !c.local.Addr().IsUnspecified() {
		return c.local.Addr(), nil
	}
	udp, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer udp.Close()
	return udp.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// find has the path to a peer found that has named its queue pair. Only a peer
// to which the program sends has a path, as others cost nothing then. The
// caller holds c.mu.
func (c *PacketConn) find(peer *packetPeer) {
	if peer.wanted == 0 || peer.resolving || peer.forgotten || fired(c.closed) ||
		len(c.queued) >= maxResolved || time.Now().Before(peer.retry) {
		return
	}
	peer.resolving = true
	c.queued = append(c.queued, peer)
	if c.resolvers < maxResolvers {
		c.resolvers++
		c.serving.Go(c.resolve)
	}
}

// resolve finds the paths to peers that wait for it.
func (c *PacketConn) resolve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queued) > 0 && !fired(c.closed) {
		peer := c.queued[0]
		c.queued = c.queued[1:]
		qpNum := peer.wanted
		c.mu.Unlock()
		ah, err := peer.port.path(c.ctx, peer.addr)
		c.mu.Lock()
		peer.resolving = false
		switch {
		case err != nil:
			peer.retry = time.Now().Add(refusedFor)
		case peer.forgotten:
			_ = ah.Close()
		default:
			peer.retire()
			peer.path, peer.qpNum = &packetPath{ah: ah}, qpNum
		}
	}
	c.resolvers--
}

// retire gives the path up. The caller holds the PacketConn's mu.
func (peer *packetPeer) retire() {
	if path := peer.path; path != nil {
		path.retired = true
		path.closeUnused()
		peer.path = nil
	}
}

// greetAfter is the time after which a peer from which nothing comes is greeted
// again. It may have restarted, or another host may have named wanted for it.
const greetAfter = time.Second

// isSilent reports whether it is time to greet the peer again. The caller holds
// the PacketConn's mu.
func (peer *packetPeer) isSilent(now time.Time) bool {
	return now.Sub(peer.heard) > greetAfter && now.Sub(peer.greeted) > greetAfter
}

// closeUnused closes a retired path that no datagram in flight uses. The caller
// holds the PacketConn's mu.
func (p *packetPath) closeUnused() {
	if p.retired && p.users == 0 {
		_ = p.ah.Close()
	}
}

// path finds the way from a port to a peer's host.
func (p *packetPort) path(ctx context.Context, to netip.AddrPort) (*ibverbs.AH, error) {
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, err
	}
	defer channel.Close()
	id, err := channel.NewID(rdmacm.PortSpaceUDP)
	if err != nil {
		return nil, err
	}
	defer id.Close()
	if err := id.ResolveAddr(netip.AddrPortFrom(p.local, 0), to, resolveTimeout); err != nil {
		return nil, err
	}
	if err := await(ctx, channel, rdmacm.EventAddrResolved); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(resolveTimeout); err != nil {
		return nil, err
	}
	if err := await(ctx, channel, rdmacm.EventRouteResolved); err != nil {
		return nil, err
	}
	rec := id.Raw().Route.PathRec
	if rec == nil {
		return nil, cerr.InvalidAs(syscall.EHOSTUNREACH, "rdma_cm knows no path to %v", to)
	}
	attr := p.ahAttr(rec)
	attr.Port = id.PortNum()
	return p.pd.CreateAH(attr)
}

// flowLabelMask has the 20 bits of a flow label.
const flowLabelMask = 1<<20 - 1

// ahAttr returns the attributes of an address handle for the path that rdma_cm
// has found, apart from the port.
func (p *packetPort) ahAttr(rec *libibverbs.SaPathRec) ibverbs.AHAttr {
	attr := ibverbs.AHAttr{DLID: rec.Dlid.Host(), SL: rec.Sl, StaticRate: ibverbs.Rate(rec.Rate)}
	if rec.HopLimit > 1 || p.isRoCE {
		attr.DGID, attr.SGIDIndex = *rec.Dgid.Raw(), p.gid.Index // on InfiniBand, index 0 is that of the port's GUID
		attr.HopLimit, attr.TrafficClass = rec.HopLimit, rec.TrafficClass
		// On RoCE, Linux sets a bit above the flow label that is one of the
		// peer's MAC address.
		attr.FlowLabel = rec.FlowLabel.Host() & flowLabelMask
	}
	return attr
}

// await waits for an event.
func await(ctx context.Context, channel *rdmacm.EventChannel, want rdmacm.EventType) error {
	event, err := channel.Next(ctx)
	switch {
	case err != nil:
		return err
	case event.Type != want:
		return fmt.Errorf("find a path: %w", event.Err())
	}
	return nil
}
