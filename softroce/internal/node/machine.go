// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// machine is the network that consists of the processes of this machine. Each
// process is a node, and each node has all addresses of the machine, unless
// others were chosen for its devices. Each node
// has a slot number, which is in the upper eight bits of its queue pairs'
// numbers. Each frame that nodes exchange carries a packet or a message of the
// connection manager.
type machine struct {
	n           *Node
	link        *link.Link             // link to the other nodes; nil: the node reaches only itself
	memberships map[wire.GID]members   // keyed by the group's address; a cache of what link.Names has returned
	awaiting    int                    // number of queue pairs that wait for acknowledgements
	spares      bool                   // whether acknowledgements alone do not wake this node
	shown       map[wire.GID]io.Closer // names that let other nodes find addresses which no interface of the machine has
}

// newMachine returns the network without a link. join opens the link.
func newMachine(n *Node) *machine {
	return &machine{n: n, memberships: map[wire.GID]members{}, shown: map[wire.GID]io.Closer{}}
}

const (
	qpnBits = 16
	qpns    = 1 << qpnBits
)

// The first byte of a frame says what follows.
const (
	packetFrame = 'P'
	madFrame    = 'M'
)

const (
	// headerLen is the number of bytes before the packet in a frame: kind,
	// two addresses, flow label, traffic class, hop limit, and for how many
	// packets more it stands.
	headerLen = 1 + 16 + 16 + 4 + 1 + 1 + 2
	// maxOverhead is more than the bytes of a packet's headers, padding and
	// ICRC.
	maxOverhead = 128
	// longPacket is the number of payload bytes for which a frame has room.
	longPacket = link.MaxFrame - headerLen - maxOverhead
	// madHeaderLen is the number of bytes before the message in a frame:
	// kind, two addresses.
	madHeaderLen = 1 + 16 + 16
)

// join makes the process a node of this machine's network, which gives it a
// slot.
func (m *machine) join() (err error) {
	l := takeLink()
	if l == nil {
		if l, err = link.Reserve(); err != nil {
			return err
		}
	}
	if err := l.Start((*neighbours)(m), m.n.worker.bell); err != nil {
		return errors.Join(err, l.Close())
	}
	m.link, m.n.slot = l, l.Slot()
	return nil
}

func (m *machine) configure(c *engine.Config) {
	if m.link != nil {
		c.Outgoing, c.Acks = m, m
		c.LongPacket = longPacket
	}
}

func (m *machine) addresses() ([]machineAddress, error) { return machineAddresses() }

func (m *machine) isPublic() bool { return false }

// Flush does nothing: other nodes see a frame as soon as the link has it.
func (m *machine) Flush() {}

// Idle reports whether all frames that were sent have left the process.
func (m *machine) Idle() bool { return m.link == nil || m.link.Idle() }

// Way returns the way of packets to the queue pair qpn: the way to the node
// that has it or, for a multicast packet, to all nodes. It returns nil if this
// node has the queue pair.
func (m *machine) Way(_, _ wire.GID, qpn uint32) engine.Way {
	slot := int(qpn >> qpnBits)
	switch {
	case m.link == nil || slot == m.n.slot || slot == 0:
		return nil
	case qpn == wire.MulticastQP:
		return m.link.Way(link.Slots)
	}
	return m.link.Way(slot)
}

// Await adds n to the number of queue pairs that wait for acknowledgements.
func (m *machine) Await(n int) {
	if m.awaiting += n; m.awaiting > 0 && m.spares {
		m.spares = false
		m.n.worker.bell.SpareAcks(false)
	}
}

// Spare keeps acknowledgements from waking this node while no queue pair waits
// for them.
func (m *machine) Spare() {
	if m.awaiting == 0 && !m.spares {
		m.spares = true
		m.n.worker.bell.SpareAcks(true)
	}
}

func (m *machine) wake() {
	if m.link != nil {
		m.link.Flush()
	}
}

func (m *machine) room(qpn uint32) bool {
	slot := int(qpn >> qpnBits)
	return m.link == nil || slot == m.n.slot || m.link.Room(slot)
}

func (m *machine) receive() (more bool) { return m.link != nil && m.link.Poll() }

// addressNames returns the prefix of the names that nodes claim for an address
// which no interface of the machine has. After the prefix, such a name has the
// node's slot.
func addressNames(g wire.GID) string { return fmt.Sprintf("address/%v/", g.Addr()) }

func (m *machine) show(all []machineAddress) {
	if m.link == nil {
		return
	}
	wanted := map[wire.GID]bool{}
	for _, a := range all {
		g := wire.GIDOf(a.addr)
		if wanted[g] = a.netDev == 0; !wanted[g] || m.shown[g] != nil {
			continue
		}
		if name, err := m.link.Claim(addressNames(g) + strconv.Itoa(m.n.slot)); err == nil { // if it fails, the node still has the address
			m.shown[g] = name
		}
	}
	for g, name := range m.shown {
		if !wanted[g] {
			name.Close()
			delete(m.shown, g)
		}
	}
}

// knows reports whether a node on the machine may have the address g: an
// interface of the machine has it, or this node, or one that has shown it.
func (m *machine) knows(g wire.GID) bool {
	all, err := machineAddresses()
	return err == nil && slices.ContainsFunc(all, func(a machineAddress) bool { return wire.GIDOf(a.addr) == g }) ||
		m.n.devices.has(g) || m.link != nil && len(m.link.Names(addressNames(g))) > 0
}

// reach fails if no node on the machine has the address g. It refreshes the
// devices' addresses, as g may be new.
func (m *machine) reach(g wire.GID) error {
	m.n.devices.refreshGIDs()
	if m.knows(g) {
		return nil
	}
	return syscall.ETIMEDOUT
}

func (m *machine) route(dst, src, usual netip.Addr) (netip.Addr, error) {
	if _, err := (*host)(m.n).Port(dst); err != nil && !m.knows(wire.GIDOf(dst)) { // only this machine's addresses can be reached
		return netip.Addr{}, errNoHost
	}
	if src.IsValid() {
		return usual, nil
	}
	return m.n.devices.source(dst, usual, func(netip.Addr) bool { return true }), nil
}

// answers returns true: processes of one machine always reach each other.
func (m *machine) answers(_, _ netip.Addr) bool { return true }

// carry delivers a packet to this node or to another, and a multicast packet to
// all nodes that have members of the group.
func (m *machine) carry(p *wire.Packet) {
	w := &m.n.path
	switch slot := int(p.DestQP >> qpnBits); {
	case p.DestQP == wire.MulticastQP:
		for _, slot := range m.members(p.DGID) {
			m.sendTo(slot, p)
		}
		w.keep(p)
	case slot == m.n.slot:
		w.keep(p)
	default:
		m.sendTo(slot, p)
		w.packets.Put(p)
	}
}

// sendTo sends a packet to the node with that slot. It sends nothing if the
// program has unmapped the memory of the payload.
func (m *machine) sendTo(slot int, p *wire.Packet) {
	if m.link == nil || slot == 0 {
		return
	}
	m.n.note(m.link.Way(slot))
	m.link.Send(slot, headerLen+p.Size(), !p.IsAck(), func(frame []byte) bool { return enframe(frame, p) })
}

// enframe writes a packet to a frame, which has the right size. It returns
// false if the program has unmapped the memory of the payload.
func enframe(frame []byte, p *wire.Packet) bool {
	b := append(frame[:0], packetFrame)
	b = append(b, p.SGID[:]...)
	b = append(b, p.DGID[:]...)
	b = binary.BigEndian.AppendUint32(b, p.FlowLabel)
	b = append(b, p.TrafficClass, p.HopLimit)
	_ = binary.BigEndian.AppendUint16(b, p.More)
	return marshal(frame[headerLen:], p)
}

// carryMAD delivers a message of the connection manager to its node. If
// mad.Node is 0, the message goes to the node that has claimed the port.
func (m *machine) carryMAD(mad manager.MAD) {
	switch {
	case mad.Node == m.n.slot || m.link == nil:
		routed(mad, m.n.slot)
		m.n.cm.keep(m.n.slot, mad)
	case mad.Node != 0:
		m.sendMADTo(mad.Node, mad)
	default:
		m.ask(mad)
	}
}

// ask sends a connection request to the node that has claimed the port. If no
// node has, this node gets the request and refuses it.
func (m *machine) ask(mad manager.MAD) {
	n := m.n
	space, port, _ := wire.ServicePort(mad.Service)
	anyAddr := netip.IPv4Unspecified()
	if mad.Dst.Is6() {
		anyAddr = netip.IPv6Unspecified()
	}
	names := []string{
		claimName(librdmacm.PortSpace(space), mad.Dst, port),
		claimName(librdmacm.PortSpace(space), anyAddr, port),
	}
	if n.cm.claims[names[0]] != nil {
		routed(mad, n.slot)
		n.cm.keep(n.slot, mad)
		return
	}
	mine := n.cm.claims[names[1]] != nil
	go func() { // the search may take long if a process does not answer
		if mine {
			names = names[:1]
		}
		slot, err := m.link.Find(names...)
		if errors.Is(err, syscall.ECONNREFUSED) {
			slot, err = n.slot, nil
		}
		if err != nil {
			return // the node with the port does not answer now; the manager will repeat the request
		}
		n.Lock()
		defer n.Unlock()
		routed(mad, slot)
		if slot == n.slot {
			n.cm.keep(n.slot, mad)
			return
		}
		m.sendMADTo(slot, mad)
	}()
}

// sendMADTo sends a message of the connection manager to the node with that
// slot.
func (m *machine) sendMADTo(slot int, mad manager.MAD) {
	src, dst := wire.GIDOf(mad.Src), wire.GIDOf(mad.Dst)
	m.n.note(m.link.Way(slot))
	m.link.Send(slot, madHeaderLen+len(mad.Data), true, func(frame []byte) bool {
		b := append(frame[:0], madFrame)
		b = append(b, src[:]...)
		b = append(b, dst[:]...)
		copy(frame[len(b):], mad.Data)
		return true
	})
}

func (m *machine) claim(name string) (io.Closer, error) {
	if m.link == nil {
		return nil, nil
	}
	closer, err := m.link.Claim(name)
	var errno syscall.Errno
	switch {
	case err == nil:
		return closer, nil
	case errors.As(err, &errno):
		return nil, errno
	}
	return nil, syscall.EADDRNOTAVAIL
}

// groupNames returns the prefix of the names that nodes claim when they have
// queue pairs in a group. After the prefix, such a name has the node's slot.
func groupNames(group wire.GID) string { return fmt.Sprintf("group/%v/", group.Addr()) }

func (m *machine) enter(group wire.GID) (io.Closer, error) {
	if m.link == nil {
		return nil, nil
	}
	return m.link.Claim(groupNames(group) + strconv.Itoa(m.n.slot))
}

// membersLast is the time for which a node relies on the members of a group
// that it has found.
const membersLast = 100 * time.Millisecond

// members are the other nodes that have queue pairs in a multicast group.
type members struct {
	until time.Duration // time after which the members are out of date
	slots []int
}

// members returns the slots of the other nodes that have queue pairs in a
// group. The result is up to membersLast old.
func (m *machine) members(group wire.GID) []int {
	if m.link == nil {
		return nil
	}
	now := m.n.Now()
	found, known := m.memberships[group]
	if known && now < found.until {
		return found.slots
	}
	maps.DeleteFunc(m.memberships, func(_ wire.GID, old members) bool { return now >= old.until })
	found = members{until: now + membersLast}
	for _, rest := range m.link.Names(groupNames(group)) {
		if slot, err := strconv.Atoi(rest); err == nil && slot != m.n.slot {
			found.slots = append(found.slots, slot)
		}
	}
	m.memberships[group] = found
	return found.slots
}

// neighbours is a machine in its role as link.Handler. link.Poll calls the
// methods.
type neighbours machine

// Receive handles a frame from the node with that slot.
func (b *neighbours) Receive(slot int, frame []byte) {
	n := b.n
	if len(frame) > 0 && frame[0] == madFrame {
		b.receiveMAD(slot, frame)
		return
	}
	if len(frame) < headerLen || frame[0] != packetFrame {
		return
	}
	p := n.path.packets.Get()
	src, dst := wire.GID(frame[1:17]), wire.GID(frame[17:33])
	if p.Parse(frame[headerLen:], netip.AddrPortFrom(src.Addr(), wire.Port), dst.Addr()) != nil {
		n.path.packets.Put(p)
		return
	}
	p.FlowLabel = binary.BigEndian.Uint32(frame[33:37])
	p.TrafficClass, p.HopLimit = frame[37], frame[38]
	p.More = binary.BigEndian.Uint16(frame[39:])
	n.worker.received.Add(1)
	n.devices.receive(p)
}

// receiveMAD handles a frame that carries a message of the connection manager.
func (b *neighbours) receiveMAD(slot int, frame []byte) {
	if len(frame) < madHeaderLen {
		return
	}
	b.n.cm.keep(slot, manager.MAD{
		Src: wire.GID(frame[1:17]).Addr(), Dst: wire.GID(frame[17:33]).Addr(),
		Data: append([]byte(nil), frame[madHeaderLen:]...),
	})
}

// goneDelay is the time from the end of a peer's process until requests to it
// fail. A program that waits for connection events thus gets these before the
// failed completions.
const goneDelay = 250 * time.Millisecond

// Gone handles the end of the process with that slot. Connections to it end at
// once, and requests to it fail after goneDelay.
func (b *neighbours) Gone(slot int) {
	n := b.n
	n.cm.receive(n.Now()) // the process may have sent messages before it ended
	n.cm.manager.NodeGone(n.Now(), slot)
	for _, d := range n.devices.inUse {
		d.PeersGone(uint32(slot)<<qpnBits, qpns, n.Now()+goneDelay)
	}
}

// Resume handles that other nodes may have room for frames again.
func (b *neighbours) Resume() { b.n.devices.resume() }
