// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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

// internet is the network of all machines: UDP, with a socket for each address
// of the node. The addresses belong to this process alone, so they tell nodes
// apart.
type internet struct {
	n       *Node        // nil until join
	named   []netip.Addr // nil: all addresses of the machine but loopback ones
	lack    error        // why the node cannot have IPv4
	sockets map[wire.GID]*link.Socket
	poller  *link.Poller                // nil until join
	used    []*link.Socket              // sockets that have something to flush
	busy    atomic.Pointer[link.Socket] // the socket that received last
	// reachable reports whether the system knows how to send to a host. If
	// it does not, it asks the network for the host.
	reachable func(dst netip.Addr) bool
	// answersBy reports whether the system can send packets for peer from the
	// address own through the interface with the index link.
	answersBy func(own netip.Addr, link int, peer netip.Addr) bool
	links     map[wire.GID]int // indexes of the interfaces of the own addresses; 0: a loopback interface, whose address others reach through any interface

	// The flow of the packet that was sent last. Most packets have the flow
	// of the packet before them.
	src, dst wire.GID
	flow     wire.Flow
}

// outside is the number of all nodes of other machines; their addresses tell
// them apart.
const outside = link.Slots

// Queue pairs on the network of all machines have numbers in this range.
const firstOutside, lastOutside = 1 << 8, 1<<24 - 2

// wanted returns the addresses that the node is to have. The node keeps an
// address whose interface is down for a while: it would not learn that the
// interface is up again, and nothing would arrive.
func (u *internet) wanted() (all []machineAddress, err error) {
	machine, err := machineAddresses()
	if err != nil {
		return nil, err
	}
	if u.named == nil {
		down, err := interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp == 0 })
		if err != nil {
			return nil, err
		}
		machine = append(machine, slices.DeleteFunc(down, func(a machineAddress) bool { return u.sockets[wire.GIDOf(a.addr)] == nil })...)
		machine = slices.DeleteFunc(machine, func(a machineAddress) bool { return a.addr.IsLoopback() || u.lack != nil && a.addr.Is4() })
		return machine, nil
	}
	for _, named := range u.named {
		i := slices.IndexFunc(machine, func(a machineAddress) bool { return a.addr.WithZone("") == named.WithZone("") })
		if i < 0 { // such as 127.0.0.2
			all = append(all, machineAddress{addr: named, mtu: 1 << 16})
		} else {
			all = append(all, machine[i])
		}
	}
	return all, nil
}

// open opens the sockets of the addresses. check fails if an IPv4 address
// cannot be used.
func (u *internet) open(check func(netip.Addr) error) error {
	wanted, err := u.wanted()
	if err != nil {
		return err
	}
	for _, a := range wanted {
		err := u.add(a.addr)
		if err == nil || u.named == nil && errors.Is(err, syscall.EADDRNOTAVAIL) { // the machine may have it in a moment
			continue
		}
		u.close()
		return err
	}
	for g, s := range u.sockets { // the answer is the same for all
		if g.Is4() {
			if err := check(s.Addr()); err != nil {
				u.lack = fmt.Errorf("IPv4 cannot be used: the packets' checksums cover the identification in IPv4's header, which the system chooses: %w", err)
			}
			break
		}
	}
	for g, s := range u.sockets {
		if g.Is4() && u.lack != nil {
			s.Close()
			delete(u.sockets, g)
		}
	}
	switch {
	case u.lack != nil && (u.named != nil || len(u.sockets) == 0):
		u.close()
		return u.lack
	case len(u.sockets) > 0:
		return nil
	}
	return fmt.Errorf("no interface that is up has an address, other than loopback ones: %w", syscall.EADDRNOTAVAIL)
}

// add opens the socket of an address.
func (u *internet) add(a netip.Addr) error {
	g := wire.GIDOf(a)
	if u.sockets[g] != nil {
		return nil
	}
	s, err := link.OpenUDP(a, wire.Renumber)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("UDP port %d of %v is taken: by another process with this device, which must have other addresses, or by the kernel "+
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

// join makes this the node's network, whose worker waits for its sockets from
// now on.
func (u *internet) join(n *Node) (err error) {
	if u.poller, err = link.NewPoller(n.worker.bell); err != nil {
		return err
	}
	u.n, n.network, n.worker.sockets = n, u, u
	for _, s := range u.sockets {
		u.attend(s)
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

func (u *internet) isPublic() bool { return true }

// attend makes a socket receive. The thread that receives a batch also does
// what has become due, such as acknowledgements.
func (u *internet) attend(s *link.Socket) {
	own, n := s.Addr(), u.n
	s.Start(u.poller, func(batch []link.Datagram) {
		u.busy.Store(s)
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

// resume lets queue pairs go on that found no room in a socket.
func (u *internet) resume() {
	u.n.mu.Lock()
	u.n.devices.resume()
	u.n.mu.Unlock()
	u.n.worker.bell.Ring()
}

// receiveRefusal takes the beginning of a packet that a host has refused, since
// no process has the port there any more.
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

// enter opens the socket of a multicast group.
func (u *internet) enter(group wire.GID) (io.Closer, error) {
	var own []netip.Addr
	for _, s := range u.sockets {
		own = append(own, s.Addr())
	}
	s, err := link.OpenGroup(group.Addr(), own)
	if err != nil {
		return nil, err
	}
	u.attend(s)
	return s, nil
}

// mtu returns the port's MTU: the largest that fits all interfaces with the
// headers.
func (u *internet) mtu() libibverbs.Mtu {
	const headers = 80 // as Linux counts
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

// window returns the bytes that one queue pair may have in flight, for receive
// buffers of the given size. It is a fraction of the buffer, as packets take
// about twice their length, and several queue pairs share it. A peer with a
// smaller buffer loses packets, and the queue pair has fewer in flight then.
func window(buffer int) int {
	const least, most, share = 128 << 10, 512 << 10, 16
	return max(least, min(most, buffer/share))
}

// packets returns the number of packets that a number of bytes takes.
func packets(bytes int, mtu libibverbs.Mtu) int {
	return bytes / (128 << max(mtu, libibverbs.IBV_MTU_1024))
}

// addresses opens sockets of addresses that are new, and closes those of
// addresses that are gone. It returns the addresses that have sockets.
func (u *internet) addresses() ([]machineAddress, error) {
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
			u.attend(u.sockets[g])
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
	u.n.devices.resume() // queue pairs may wait for room in one of those
	return wanted, nil
}

// reach fails if the system knows no way to the address. A host at its end
// shows itself only by its answers.
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
	return u.source(dst, usual), nil
}

// source returns the address to send from to dst: usual, if it is one of the
// node's addresses, and otherwise the first of the node's addresses from which
// the system can send to dst. If there is none, it returns usual.
func (u *internet) source(dst, usual netip.Addr) netip.Addr {
	device := u.n.devices.current
	if device.Has(wire.GIDOf(usual)) {
		return usual
	}
	table, err := device.GIDs()
	if err != nil {
		return usual
	}
	for _, e := range table {
		own := wire.GID(*e.Gid.Raw()).Addr()
		if own.Is4() != dst.Is4() || own.IsLoopback() != dst.IsLoopback() || own.IsLinkLocalUnicast() {
			continue
		}
		if from, err := Route(dst, own); err == nil {
			return from
		}
	}
	return usual
}

func (u *internet) answers(own, peer netip.Addr) bool {
	return peer.IsLoopback() == own.IsLoopback() && u.answersBy(own, u.links[wire.GIDOf(own)], peer)
}

// carry takes a packet to another node, to this one, or to both.
func (u *internet) carry(p *wire.Packet) {
	w := &u.n.path
	switch {
	case p.DGID.Addr().IsMulticast():
		u.send(p)
		w.keep(p)
	case !u.n.devices.current.Has(p.DGID):
		u.send(p)
		w.packets.Put(p)
	default:
		w.keep(p)
	}
}

func (u *internet) carryMAD(m manager.MAD) {
	n := u.n
	if n.devices.current.Has(wire.GIDOf(m.Dst)) {
		went(m, n.slot)
		n.cm.keep(n.slot, m)
		return
	}
	went(m, outside)
	p := n.path.packetOf(m)
	u.send(p)
	n.path.packets.Put(p)
}

// send sends a packet to another machine, or to another process of this one.
func (u *internet) send(p *wire.Packet) {
	s := u.sockets[p.SGID]
	if s == nil {
		return
	}
	u.n.note(s)
	if u.src != p.SGID || u.dst != p.DGID {
		u.src, u.dst, u.flow = p.SGID, p.DGID, wire.NewFlow(p.SGID, p.DGID, wire.Port)
	}
	s.Send(p.DGID.Addr(), p.TrafficClass, p.HopLimit, p.Size(), func(b []byte, id uint16) bool {
		if !marshal(b, p) {
			return false
		}
		u.flow.Seal(b, id)
		return true
	})
	if !slices.Contains(u.used, s) {
		u.used = append(u.used, s)
	}
}

// claim shows in /proc/net/unix the port that the node has. The addresses are
// this process's, so there are no nodes to claim ports from.
func (u *internet) claim(name string) (io.Closer, error) {
	closer, err := link.Announce(fmt.Sprintf("udp/%d/%s", os.Getpid(), name))
	if err != nil {
		return nil, nil
	}
	return closer, nil
}

// receive does nothing: the worker polls the sockets.
func (u *internet) receive() (more bool) { return false }

func (u *internet) event() int { return u.poller.Event() }

func (u *internet) look() { u.poller.Look() }

func (u *internet) take() { u.poller.Take() }

func (u *internet) poll() bool {
	s := u.busy.Load()
	if s == nil {
		return false
	}
	if s.Blocked() {
		s.Proceed()
	}
	return s.Poll()
}

// wake does nothing: Flush gives packets to the system.
func (u *internet) wake() {}

// room reports whether all sockets take more.
func (u *internet) room(uint32) bool { return !u.blocked() }

// blocked reports whether a socket takes no more.
func (u *internet) blocked() bool {
	for _, s := range u.sockets {
		if s.Blocked() {
			return true
		}
	}
	return false
}

// Way returns the socket that sends from an address, nil if the packets go to
// this node.
func (u *internet) Way(src, dst wire.GID, _ uint32) engine.Way {
	if s := u.sockets[src]; s != nil && !u.n.devices.current.Has(dst) {
		return s
	}
	return nil
}

// Flush gives the system the packets that sockets have kept.
func (u *internet) Flush() {
	for _, s := range u.used {
		s.Flush()
	}
	clear(u.used)
	u.used = u.used[:0]
}

// Idle reports whether the system has taken everything that was sent.
func (u *internet) Idle() bool {
	for _, s := range u.sockets {
		if !s.Idle() {
			return false
		}
	}
	return true
}

// maxMessages is the limit of messages that wait for the connection manager.
// Further ones are dropped, as if they were lost.
const maxMessages = 4096

// verify drops what has arrived at one of the node's addresses without a right
// ICRC.
func verify(own netip.Addr, batch []link.Datagram) []link.Datagram {
	gid := wire.GIDOf(own)
	var from netip.AddrPort
	var flow wire.Flow
	return slices.DeleteFunc(batch, func(d link.Datagram) bool {
		if d.From != from {
			from, flow = d.From, wire.NewFlow(wire.GIDOf(d.From.Addr()), gid, d.From.Port())
		}
		_, ok := flow.Verify(d.Data)
		return !ok
	})
}

// receiveDatagrams takes what has arrived at one of the node's addresses, with
// right ICRCs. Any host may have sent it: a datagram that is not a packet of
// the protocol is dropped.
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

// receivePacket takes a packet that has come from another machine.
func (u *internet) receivePacket(p *wire.Packet) {
	n := u.n
	switch {
	case p.DGID.Addr().IsMulticast() != (p.DestQP == wire.MulticastQP), n.devices.current.Has(p.SGID): // the node has kept its own packets
		n.path.packets.Put(p)
	case p.DestQP != wire.GSI:
		n.devices.current.Receive(p)
	default:
		if p.Opcode == wire.UDSendOnly && p.QKey == wire.GSIQKey && p.SrcQP == wire.GSI && p.PKey&0x7FFF == wire.DefaultPKey&0x7FFF &&
			len(p.Payload) == 1 && len(n.cm.mads) < maxMessages {
			n.cm.keep(outside, manager.MAD{Src: p.SGID.Addr(), Dst: p.DGID.Addr(), Data: slices.Clone(p.Payload[0])})
		}
		n.path.packets.Put(p)
	}
}
