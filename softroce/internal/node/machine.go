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
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// machine is the network of this machine. Its nodes are processes, the
// neighbours of each other, and share its addresses. The number of a queue pair
// has the slot of its node in the upper eight bits. A frame over the link has a
// packet or a message of the connection manager.
type machine struct {
	n           *Node
	link        *link.Link           // nil: the node has no neighbours
	memberships map[wire.GID]members // of groups that the node sent to a short while ago
}

func newMachine(n *Node) *machine { return &machine{n: n, memberships: map[wire.GID]members{}} }

const (
	qpnBits = 16
	qpns    = 1 << qpnBits
)

// Kinds of frames, in their first byte.
const (
	packetFrame = 'P'
	madFrame    = 'M'
)

const (
	// headerLen is the length of what precedes a packet in its frame: kind,
	// addresses, flow label, traffic class, hop limit.
	headerLen = 1 + 16 + 16 + 4 + 1 + 1
	// madHeaderLen is the length of what precedes a message: kind,
	// addresses.
	madHeaderLen = 1 + 16 + 16
)

// join makes the process a node of the machine.
func (m *machine) join() (err error) {
	l := chosenLink()
	if l == nil {
		if l, err = link.Reserve(); err != nil {
			return err
		}
	}
	if err := l.Start((*neighbours)(m), m.n.worker.bell); err != nil {
		return err
	}
	m.link, m.n.slot = l, l.Slot()
	return nil
}

func (m *machine) configure(c *engine.Config) {
	if m.link != nil {
		c.Outgoing = m
	}
}

func (m *machine) addresses() ([]machineAddress, error) { return machineAddresses() }

func (m *machine) isPublic() bool { return false }

// Flush does nothing: neighbours see a frame when the link has sent it.
func (m *machine) Flush() {}

// Idle reports whether no frame is in the process any more.
func (m *machine) Idle() bool { return m.link == nil || m.link.Idle() }

// Way returns the way to the node of a queue pair, or to all nodes for a
// multicast packet. It returns nil for this node.
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

// reach looks whether the address is a new one of the machine, whose nodes have
// all its addresses.
func (m *machine) reach(g wire.GID) error {
	m.n.devices.refreshGIDs()
	if m.n.devices.current.Has(g) {
		return nil
	}
	return syscall.ETIMEDOUT
}

func (m *machine) route(dst, _, usual netip.Addr) (netip.Addr, error) {
	if _, err := (*host)(m.n).Port(dst); err != nil { // the network has no other machines
		return netip.Addr{}, errNoHost
	}
	return usual, nil
}

// answers is always true: processes of one machine reach each other.
func (m *machine) answers(_, _ netip.Addr) bool { return true }

// carry takes a packet to this node, to a neighbour, or to several.
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

// sendTo sends a packet to a neighbour, unless the program has unmapped what it
// sends.
func (m *machine) sendTo(slot int, p *wire.Packet) {
	if m.link == nil || slot == 0 {
		return
	}
	m.n.note(m.link.Way(slot))
	m.link.Send(slot, headerLen+p.Size(), func(frame []byte) bool {
		b := append(frame[:0], packetFrame)
		b = append(b, p.SGID[:]...)
		b = append(b, p.DGID[:]...)
		b = binary.BigEndian.AppendUint32(b, p.FlowLabel)
		_ = append(b, p.TrafficClass, p.HopLimit)
		return marshal(frame[headerLen:], p)
	})
}

// carryMAD takes a message to its node. A request that names none goes to the
// node that has claimed the port.
func (m *machine) carryMAD(mad manager.MAD) {
	switch {
	case mad.Node == m.n.slot || m.link == nil:
		went(mad, m.n.slot)
		m.n.cm.keep(m.n.slot, mad)
	case mad.Node != 0:
		m.sendMADTo(mad.Node, mad)
	default:
		m.ask(mad)
	}
}

// ask sends a request to the node that has claimed the port. If there is none,
// this node refuses the request.
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
		went(mad, n.slot)
		n.cm.keep(n.slot, mad)
		return
	}
	mine := n.cm.claims[names[1]] != nil
	go func() { // a neighbour may hang
		if mine {
			names = names[:1]
		}
		slot, err := m.link.Find(names...)
		if errors.Is(err, syscall.ECONNREFUSED) {
			slot, err = n.slot, nil
		}
		if err != nil {
			return // the node that has the port does not answer now; the request will be repeated
		}
		n.Lock()
		defer n.Unlock()
		went(mad, slot)
		if slot == n.slot {
			n.cm.keep(n.slot, mad)
			return
		}
		m.sendMADTo(slot, mad)
	}()
}

func (m *machine) sendMADTo(slot int, mad manager.MAD) {
	src, dst := wire.GIDOf(mad.Src), wire.GIDOf(mad.Dst)
	m.n.note(m.link.Way(slot))
	m.link.Send(slot, madHeaderLen+len(mad.Data), func(frame []byte) bool {
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

// groupNames returns the beginning of the names by which the nodes that have
// queue pairs in a group tell the others so.
func groupNames(group wire.GID) string { return fmt.Sprintf("group/%v/", group.Addr()) }

func (m *machine) enter(group wire.GID) (io.Closer, error) {
	if m.link == nil {
		return nil, nil
	}
	return m.link.Claim(groupNames(group) + strconv.Itoa(m.n.slot))
}

// membersLast is how long the node does not look for new members of a group.
const membersLast = 100 * time.Millisecond

// members are the neighbours that are in a group.
type members struct {
	until time.Duration
	slots []int
}

// members returns the neighbours that are in a group, or were a short while
// ago.
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

// neighbours is the machine as its link sees it. Poll calls the methods.
type neighbours machine

// Receive takes a frame from a neighbour.
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
	n.devices.current.Receive(p)
}

// receiveMAD takes a frame with a message from a neighbour.
func (b *neighbours) receiveMAD(slot int, frame []byte) {
	if len(frame) < madHeaderLen {
		return
	}
	b.n.cm.keep(slot, manager.MAD{
		Src: wire.GID(frame[1:17]).Addr(), Dst: wire.GID(frame[17:33]).Addr(),
		Data: append([]byte(nil), frame[madHeaderLen:]...),
	})
}

// moment is the time from the end of a neighbour until requests to it fail. A
// program that waits for the events of its connections hears of the end by
// them.
const moment = 250 * time.Millisecond

// Gone notes that a neighbour has ended.
func (b *neighbours) Gone(slot int) {
	n := b.n
	n.cm.receive(n.Now()) // its last messages may have come just now
	n.cm.manager.NodeGone(n.Now(), slot)
	for _, d := range n.devices.inUse {
		d.PeersGone(uint32(slot)<<qpnBits, qpns, n.Now()+moment)
	}
}

// Resume notes that neighbours may have room again.
func (b *neighbours) Resume() { b.n.devices.resume() }
