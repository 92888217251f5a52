// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// internet is the network of all machines that UDP reaches. The node has a
// socket for each of its addresses. No other process on the machine can use
// these addresses, so an address identifies a node.
type internet struct {
	n            *Node                       // the node; nil until join
	named        []netip.Addr                // addresses that the program chose
	others       bool                        // whether the node also has all other addresses of the machine but loopback ones
	ip4Error     error                       // reason why the node cannot use IPv4 addresses; nil if it can
	sockets      map[wire.GID]*link.Socket   // keyed by the socket's address
	poller       *link.Poller                // poller of the sockets; nil until join
	used         []*link.Socket              // sockets that have packets for Flush
	lastReceived atomic.Pointer[link.Socket] // socket that received last
	// reachable reports whether the system knows the link-layer address for
	// dst: that of the host or of the router. If the system does not,
	// reachable makes it ask for the address.
	reachable func(dst netip.Addr) bool
	// answersBy reports whether the system would send packets for peer from
	// the address own through the interface with the index link.
	answersBy func(own netip.Addr, link int, peer netip.Addr) bool
	links     map[wire.GID]int // index of each own address's interface; 0: a loopback interface, whose address other machines reach through any interface

	last    route    // of the packet that was sent last
	foreign wire.GID // address that was last found not to be this node's; zero: none
}

// route is what packets from one address to another have in common. Most
// packets have the route of the one before.
type route struct {
	src, dst wire.GID
	flow     wire.Flow
	socket   *link.Socket // nil: there is no route
}

// outside stands for every node on another machine, as a node number. The
// addresses of these nodes distinguish them.
const outside = link.Slots

// Queue pairs on the UDP network have numbers from firstOutside to lastOutside.
const firstOutside, lastOutside = 1 << 8, 1<<24 - 2

// wanted returns the addresses that the node should have. The node keeps an
// address while the address's interface is down, since the node would not
// notice that the interface is up again.
func (u *internet) wanted() (all []machineAddress, err error) {
	machine, err := machineAddresses()
	if err != nil {
		return nil, err
	}
	if u.others {
		down, err := interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp == 0 })
		if err != nil {
			return nil, err
		}
		all = append(slices.Clone(machine), slices.DeleteFunc(down, func(a machineAddress) bool { return u.sockets[wire.GIDOf(a.addr)] == nil })...)
		all = slices.DeleteFunc(all, func(a machineAddress) bool { return a.addr.IsLoopback() || u.ip4Error != nil && a.addr.Is4() })
	}
	for _, named := range u.named {
		is := func(a machineAddress) bool { return a.addr.WithZone("") == named.WithZone("") }
		i := slices.IndexFunc(machine, is)
		switch {
		case slices.ContainsFunc(all, is):
		case i < 0: // no interface has the address, such as 127.0.0.2
			all = append(all, machineAddress{addr: named, mtu: 1 << 16})
		default:
			all = append(all, machine[i])
		}
	}
	return all, nil
}

// choose gives the node the addresses of its devices. It fails if the program
// has named the addresses of the network, and a device has another one.
func (u *internet) choose(devices []DeviceConfig) error {
	rest := false // whether a device has all addresses that others do not have
	var chosen []netip.Addr
	for _, d := range devices {
		rest = rest || len(d.Addresses) == 0
		for _, a := range d.Addresses {
			if !u.others && !isOneOf(a, u.named) {
				return fmt.Errorf("device %q has the address %v, which is not one of the network", d.Name, a)
			}
			chosen = append(chosen, a)
		}
	}
	switch {
	case !rest:
		u.named, u.others = chosen, false
	case u.others:
		u.named = chosen
	}
	return nil
}

// isOneOf reports whether a is one of the addresses in all, whose zones do not
// count.
func isOneOf(a netip.Addr, all []netip.Addr) bool {
	return slices.ContainsFunc(all, func(other netip.Addr) bool { return a.WithZone("") == other.WithZone("") })
}

// open opens the sockets of the wanted addresses. check returns an error if the
// node cannot use IPv4 addresses.
func (u *internet) open(check func(netip.Addr) error) error {
	wanted, err := u.wanted()
	if err != nil {
		return err
	}
	for _, a := range wanted {
		err := u.add(a.addr)
		if err == nil || !isOneOf(a.addr, u.named) && errors.Is(err, syscall.EADDRNOTAVAIL) { // an address that is new to the machine may not be usable yet
			continue
		}
		u.close()
		return err
	}
	for g, s := range u.sockets { // check returns the same for all IPv4 sockets
		if g.Is4() {
			if err := check(s.Addr()); err != nil {
				u.ip4Error = fmt.Errorf("IPv4 cannot be used: the packets' checksums cover the identification in IPv4's header, which the system chooses: %w", err)
			}
			break
		}
	}
	for g, s := range u.sockets {
		if g.Is4() && u.ip4Error != nil {
			s.Close()
			delete(u.sockets, g)
		}
	}
	switch {
	case u.ip4Error != nil && (slices.ContainsFunc(u.named, netip.Addr.Is4) || len(u.sockets) == 0):
		u.close()
		return u.ip4Error
	case len(u.sockets) > 0:
		return nil
	}
	return fmt.Errorf("no interface that is up has an address, apart from loopback interfaces: %w", syscall.EADDRNOTAVAIL)
}

// add opens the socket of the address a, unless it is open.
func (u *internet) add(a netip.Addr) error {
	g := wire.GIDOf(a)
	if u.sockets[g] != nil {
		return nil
	}
	s, err := link.OpenUDP(a, wire.Renumber)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("UDP port %d of %v is in use: by another process with this device, which must use other addresses, or by the kernel "+
			"(rmmod rdma_rxe frees it): %w", wire.Port, a, syscall.EADDRINUSE)
	case err != nil:
		return fmt.Errorf("%v: %w", a, err)
	}
	u.sockets[g] = s
	return nil
}

func (u *internet) close() {
	for g, s := range u.sockets {
		s.Close()
		delete(u.sockets, g)
	}
}

// join makes u the network of the node n, and lets n's worker wait for the
// sockets.
func (u *internet) join(n *Node) (err error) {
	if u.poller, err = link.NewPoller(n.worker.bell); err != nil {
		return err
	}
	u.n, n.network, n.worker.sockets = n, u, u
	for _, s := range u.sockets {
		u.startReceiving(s)
	}
	return nil
}

func (u *internet) configure(c *engine.Config) {
	c.Outgoing = u
	c.FirstQPN, c.QPNs, c.MaxQPs = firstOutside, lastOutside-firstOutside+1, qpns
	c.MTU = u.mtu()
	c.Window = packets(window(link.ReceiveBuffer()), c.MTU)
	c.ECN = true
}

// show does nothing: other nodes find the addresses of this node by the
// system's routes.
func (u *internet) show([]machineAddress) {}

func (u *internet) isPublic() bool { return true }

func (u *internet) knows(wire.GID) bool { return false }

// startReceiving starts to receive from a socket. The thread that receives a
// batch also runs a step of the worker, for example to send acknowledgements.
func (u *internet) startReceiving(s *link.Socket) {
	own, n := s.Addr(), u.n
	s.Start(u.poller, func(batch []link.Datagram) {
		u.lastReceived.Store(s)
		if batch = verify(own, batch); len(batch) == 0 {
			return
		}
		n.mu.Lock()
		u.receiveDatagrams(own, batch)
		n.worker.step()
		n.mu.Unlock()
	}, func(to netip.Addr, quote []byte) {
		n.mu.Lock()
		defer n.mu.Unlock()
		u.receiveRefusal(own, to, quote)
		n.worker.step()
	}, u.resume)
}

// resume lets queue pairs continue that waited for room in a socket.
func (u *internet) resume() {
	u.n.mu.Lock()
	u.n.devices.resume()
	u.n.mu.Unlock()
	u.n.worker.bell.Ring()
}

// receiveRefusal handles an ICMP error: the host with the address to has
// refused a packet that this node sent from the address own, as no process
// there has the port open. quote is the beginning of the packet.
func (u *internet) receiveRefusal(own, to netip.Addr, quote []byte) {
	n := u.n
	p := n.path.packets.Get()
	defer n.path.packets.Put(p)
	switch {
	case p.ParseQuote(quote, own, to) != nil:
	case p.DestQP != wire.GSI:
		for _, d := range n.devices.inUse {
			d.Unreachable(p)
		}
	case len(p.Payload) == 1:
		n.cm.manager.Unreachable(n.Now(), manager.MAD{Node: outside, Src: p.DGID.Addr(), Dst: p.SGID.Addr(), Data: p.Payload[0]})
	}
}

// enter opens the socket of a multicast group, which receives until the result
// is closed.
func (u *internet) enter(group wire.GID) (io.Closer, error) {
	var own []netip.Addr
	for _, s := range u.sockets {
		own = append(own, s.Addr())
	}
	s, err := link.OpenGroup(group.Addr(), own)
	if err != nil {
		return nil, err
	}
	u.startReceiving(s)
	return s, nil
}

// mtu returns the port's MTU: the largest whose packets fit into the MTU of
// each interface.
func (u *internet) mtu() libibverbs.Mtu {
	const headers = 80 // as Linux counts them
	mtu := libibverbs.IBV_MTU_4096
	wanted, err := u.wanted()
	if err != nil {
		return libibverbs.IBV_MTU_256
	}
	for _, a := range wanted {
		for mtu > libibverbs.IBV_MTU_256 && 128<<mtu > a.mtu-headers {
			mtu--
		}
	}
	return mtu
}

// window returns the number of bytes that one queue pair may have in flight.
// buffer is the size of a socket's receive buffer. The window is a fraction of
// it, as packets take about twice their length in the buffer, and several queue
// pairs share it. If a peer's buffer is smaller, packets get lost, and
// congestion control reduces the number in flight.
func window(buffer int) int {
	const least, most, share = 128 << 10, 512 << 10, 16
	return max(least, min(most, buffer/share))
}

// packets returns the number of packets of that MTU in which bytes fit.
func packets(bytes int, mtu libibverbs.Mtu) int {
	return bytes / (128 << max(mtu, libibverbs.IBV_MTU_1024))
}

// addresses opens sockets for new addresses, closes those of addresses that the
// node no longer has, and returns the addresses that have sockets.
func (u *internet) addresses() ([]machineAddress, error) {
	u.last, u.foreign = route{}, wire.GID{}
	wanted, err := u.wanted()
	if err != nil {
		return nil, err
	}
	have := map[wire.GID]bool{}
	u.links = map[wire.GID]int{}
	wanted = slices.DeleteFunc(wanted, func(a machineAddress) bool {
		g := wire.GIDOf(a.addr)
		if have[g] {
			return true
		}
		if u.sockets[g] == nil {
			if u.add(a.addr) != nil {
				return true
			}
			u.startReceiving(u.sockets[g])
		}
		have[g] = true
		if !a.isLoop {
			u.links[g] = int(a.netDev)
		}
		return false
	})
	for g, s := range u.sockets {
		if !have[g] {
			s.Close()
			delete(u.sockets, g)
		}
	}
	u.n.devices.resume() // queue pairs may have waited for room in a closed socket
	return wanted, nil
}

// reach fails if the system has no route to g. It succeeds even if no host has
// the address, as only an answer would show that.
func (u *internet) reach(g wire.GID) error {
	_, err := Route(g.Addr(), netip.Addr{})
	return err
}

func (u *internet) route(dst, src, usual netip.Addr) (netip.Addr, error) {
	if !u.reachable(dst) {
		return netip.Addr{}, errNoHost
	}
	if src.IsValid() {
		return usual, nil
	}
	return u.n.devices.source(dst, usual, func(own netip.Addr) bool {
		_, err := Route(dst, own)
		return err == nil
	}), nil
}

func (u *internet) answers(own, peer netip.Addr) bool {
	return peer.IsLoopback() == own.IsLoopback() && u.answersBy(own, u.links[wire.GIDOf(own)], peer)
}

// owns reports whether one of this node's devices has the address g.
func (u *internet) owns(g wire.GID) bool {
	if g == u.foreign {
		return false
	}
	owns := u.n.devices.has(g)
	if !owns {
		u.foreign = g
	}
	return owns
}

// carry delivers a packet to this node or to another, and a multicast packet to
// both.
func (u *internet) carry(p *wire.Packet) {
	w := &u.n.path
	switch {
	case p.DGID.Addr().IsMulticast():
		u.send(p)
		w.keep(p)
	case !u.owns(p.DGID):
		if p.More == 0 { // otherwise, the node has lost the address, and the packet is lost
			u.send(p)
		}
		w.packets.Put(p)
	default:
		w.keep(p)
	}
}

func (u *internet) carryMAD(m manager.MAD) {
	n := u.n
	if n.devices.has(wire.GIDOf(m.Dst)) {
		routed(m, n.slot)
		n.cm.keep(n.slot, m)
		return
	}
	routed(m, outside)
	p := n.path.packetOf(m)
	u.send(p)
	n.path.packets.Put(p)
}

// send sends a packet from the socket of its source address. If there is no
// such socket, the packet is dropped.
func (u *internet) send(p *wire.Packet) {
	if u.last.socket == nil || u.last.src != p.SGID || u.last.dst != p.DGID {
		u.last = route{p.SGID, p.DGID, wire.NewFlow(p.SGID, p.DGID, wire.Port), u.sockets[p.SGID]}
	}
	s := u.last.socket
	if s == nil {
		return
	}
	u.n.note(s)
	s.Send(p.DGID.Addr(), p.TrafficClass, p.HopLimit, p.Size(), func(b []byte, id uint16) bool {
		if !marshal(b, p) {
			return false
		}
		u.last.flow.Seal(b, id)
		return true
	})
	if !slices.Contains(u.used, s) {
		u.used = append(u.used, s)
	}
}

// claim claims nothing and never fails: no other node has the addresses of this
// node, and nodes on the network of all machines learn nothing of each other's
// files.
func (u *internet) claim(string) (io.Closer, error) { return nil, nil }

// receive does nothing, as the worker receives from the sockets.
func (u *internet) receive() (more bool) { return false }

func (u *internet) look() { u.poller.Look() }

func (u *internet) take() { u.poller.Take() }

func (u *internet) poll() bool {
	s := u.lastReceived.Load()
	if s == nil {
		return false
	}
	if s.Blocked() {
		s.Proceed()
	}
	return s.Poll()
}

// wake does nothing, as Flush passes all packets to the system.
func (u *internet) wake() {}

// room reports whether all sockets have room for packets.
func (u *internet) room(uint32) bool { return !u.blocked() }

// blocked reports whether a socket's buffer is full.
func (u *internet) blocked() bool {
	for _, s := range u.sockets {
		if s.Blocked() {
			return true
		}
	}
	return false
}

// Way returns the socket for packets from src, or nil if dst is an address of
// this node.
func (u *internet) Way(src, dst wire.GID, _ uint32) engine.Way {
	if s := u.sockets[src]; s != nil && !u.n.devices.has(dst) {
		return s
	}
	return nil
}

// Flush passes the packets that wait in sockets to the system.
func (u *internet) Flush() {
	for _, s := range u.used {
		s.Flush()
	}
	clear(u.used)
	u.used = u.used[:0]
}

// Idle reports whether the system has taken all packets that were sent.
func (u *internet) Idle() bool {
	for _, s := range u.sockets {
		if !s.Idle() {
			return false
		}
	}
	return true
}

// maxMessages limits the messages that wait for the connection manager. Further
// messages are dropped, and count as lost.
const maxMessages = 4096

// verify returns those datagrams of a batch whose ICRCs are right. own is the
// address at which they arrived.
func verify(own netip.Addr, batch []link.Datagram) []link.Datagram {
	gid := wire.GIDOf(own)
	var from netip.AddrPort
	var flow wire.Flow
	var id, before uint16 // identifications of the last two packets: packets have the same ones, or those of a train count up
	return slices.DeleteFunc(batch, func(d link.Datagram) bool {
		if d.From != from {
			from, flow = d.From, wire.NewFlow(wire.GIDOf(d.From.Addr()), gid, d.From.Port())
		}
		found, ok := flow.Verify(d.Data, 2*id-before)
		if ok {
			id, before = found, id
		}
		return !ok
	})
}

// receiveDatagrams handles datagrams whose ICRCs are right. They have arrived
// at the address own. Any host may have sent them, so receiveDatagrams drops
// those that are not valid packets.
func (u *internet) receiveDatagrams(own netip.Addr, batch []link.Datagram) {
	w := &u.n.path
	for _, d := range batch {
		p := w.packets.Get()
		if p.Parse(d.Data, d.From, own) != nil {
			w.packets.Put(p)
			continue
		}
		p.TrafficClass, p.HopLimit = d.TrafficClass, d.HopLimit
		for _, c := range w.captures {
			c.add(p, time.Now())
		}
		u.receivePacket(p)
	}
}

// receivePacket handles a packet from another node.
func (u *internet) receivePacket(p *wire.Packet) {
	n := u.n
	switch {
	case p.DGID.Addr().IsMulticast() != (p.DestQP == wire.MulticastQP), u.owns(p.SGID): // the node has already kept the packets that it sent itself
		n.path.packets.Put(p)
	case p.DestQP != wire.GSI:
		n.worker.received.Add(1)
		n.devices.receive(p)
	default:
		if p.Opcode == wire.UDSendOnly && p.QKey == wire.GSIQKey && p.SrcQP == wire.GSI && p.PKey&0x7FFF == wire.DefaultPKey&0x7FFF &&
			len(p.Payload) == 1 && len(n.cm.mads) < maxMessages {
			n.cm.keep(outside, manager.MAD{Src: p.SGID.Addr(), Dst: p.DGID.Addr(), Data: slices.Clone(p.Payload[0])})
		}
		n.path.packets.Put(p)
	}
}
