// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Nodes of one machine share its addresses. What tells them apart is the number of a queue pair, whose upper
// eight bits are the node's slot.

const (
	qpnBits = 16
	qpns    = 1 << qpnBits
)

// packetFrame is the kind of a frame with a packet: its first byte.
const packetFrame = 'P'

// headerLen is the length of what precedes a packet in its frame: kind, addresses, flow label, traffic
// class, hop limit.
const headerLen = 1 + 16 + 16 + 4 + 1 + 1

// join makes the process a node of the machine.
func (n *node) join() (err error) {
	l := chosenLink()
	if l == nil {
		if l, err = link.Reserve(); err != nil {
			return err
		}
	}
	if err := l.Start((*neighbours)(n), n.bell); err != nil {
		return err
	}
	n.link, n.slot = l, l.Slot()
	return nil
}

// send takes a packet of the device.
func (n *node) send(p *wire.Packet) { n.dispatch(parcel{packet: p}) }

// sendMessage takes a message of the connection manager.
func (n *node) sendMessage(m manager.MAD) {
	switch {
	case !n.connected():
	case n.faults == nil && n.hostile == nil && len(n.captures) == 0:
		n.sendMAD(m)
	default:
		n.dispatch(parcel{n.packetOf(m), &m})
	}
}

// parcel is what goes over the network: a packet, or a message of the connection manager and the
// packet that it would be.
type parcel struct {
	packet *wire.Packet
	mad    *manager.MAD
}

// dispatch captures a parcel, and sends what the faults leave of it.
func (n *node) dispatch(p parcel) {
	if n.faults == nil && n.hostile == nil && len(n.captures) == 0 {
		n.deliver(p)
		return
	}
	for _, c := range n.captures {
		c.add(p.packet, time.Now())
	}
	now, f := n.now(), Fault{}
	if n.faults != nil {
		f = decide(n.faults, p.packet)
	}
	if n.hostile != nil && !f.Drop {
		f = n.hostile.add(n.device, p.packet, now, f)
	}
	if f == (Fault{}) {
		n.deliver(p)
		return
	}
	n.suffer(p, f, now)
}

// decide asks a program's fault function.
func decide(faults func(p *wire.Packet) Fault, p *wire.Packet) (f Fault) {
	within(func() { f = faults(p) })
	return f
}

// deliver brings a parcel to where it goes.
func (n *node) deliver(p parcel) {
	if p.mad != nil {
		n.packets.Put(p.packet)
		n.sendMAD(*p.mad)
		return
	}
	n.carry(p.packet)
}

// packetOf returns the packet that carries a message of the connection manager.
func (n *node) packetOf(m manager.MAD) *wire.Packet {
	p := n.packets.Get()
	p.SGID, p.DGID = wire.GIDOf(m.Src), wire.GIDOf(m.Dst)
	p.HopLimit = 64
	p.Opcode, p.PKey, p.DestQP, p.SrcQP, p.QKey = wire.UDSendOnly, wire.DefaultPKey, wire.GSI, wire.GSI, wire.GSIQKey
	p.Payload = append(p.Payload, m.Data)
	return p
}

// carry brings a packet to where it goes: to this node, to a neighbour, or both.
func (n *node) carry(p *wire.Packet) {
	switch slot := int(p.DestQP >> qpnBits); {
	case n.internet != nil && p.DGID.Addr().IsMulticast():
		n.sendOut(p)
		n.keep(p)
	case n.internet != nil && !n.device.Has(p.DGID):
		n.sendOut(p)
		n.packets.Put(p)
	case p.DestQP == wire.MulticastQP:
		for _, slot := range n.members(p.DGID) {
			n.sendTo(slot, p)
		}
		n.keep(p)
	case slot == n.slot || n.internet != nil:
		n.keep(p)
	default:
		n.sendTo(slot, p)
		n.packets.Put(p)
	}
}

// keep puts a packet into the inbox. An unreliable send has completed before its packet is taken from there, and then its memory
// is the program's again. So the packet gets a copy, unless the program has unmapped what it sends.
func (n *node) keep(p *wire.Packet) {
	if size := p.PayloadLen(); size > 0 && p.Opcode.Transport() != wire.RC {
		n.copies = slices.Grow(n.copies, size) // the copies before it stay where they are
		c := n.copies[len(n.copies):][:size]
		if !engine.Copy(c, p.Payload) {
			n.packets.Put(p)
			return
		}
		n.copies = n.copies[:len(n.copies)+size]
		clear(p.Payload)
		p.Payload = append(p.Payload[:0], c)
	}
	n.inbox = append(n.inbox, p)
}

// A node that has queue pairs in a group has a name that tells the others.

func groupNames(group wire.GID) string { return fmt.Sprintf("group/%v/", group.Addr()) }

// enter makes a queue pair receive what is sent to a group.
func (n *node) enter(q *engine.QP, group wire.GID) error {
	if err := q.Attach(group); err != nil {
		return err
	}
	if n.link == nil && n.internet == nil || n.groups[group] != nil {
		return nil
	}
	name, err := n.claimGroup(group)
	if err != nil {
		_ = q.Detach(group) // it is in the group
		return err
	}
	n.groups[group] = name
	return nil
}

// claimGroup makes what others send to a group come to this node.
func (n *node) claimGroup(group wire.GID) (io.Closer, error) {
	if n.internet != nil {
		return n.openGroup(group.Addr())
	}
	return n.link.Claim(groupNames(group) + strconv.Itoa(n.slot))
}

// exit undoes enter.
func (n *node) exit(q *engine.QP, group wire.GID) error {
	if err := q.Detach(group); err != nil {
		return err
	}
	if name := n.groups[group]; name != nil && !slices.ContainsFunc(n.inUse, func(d *engine.Device) bool { return d.HasMembers(group) }) {
		delete(n.groups, group)
		return name.Close()
	}
	return nil
}

// membersLast is how long the node does not look for new members of a group.
const membersLast = 100 * time.Millisecond

// members are the neighbours that are in a group.
type members struct {
	until time.Duration
	slots []int
}

// members returns the neighbours that are in a group, or were a short while ago.
func (n *node) members(group wire.GID) []int {
	if n.link == nil {
		return nil
	}
	now := n.now()
	m, known := n.memberships[group]
	if known && now < m.until {
		return m.slots
	}
	maps.DeleteFunc(n.memberships, func(_ wire.GID, m members) bool { return now >= m.until })
	m = members{until: now + membersLast}
	for _, rest := range n.link.Names(groupNames(group)) {
		if slot, err := strconv.Atoi(rest); err == nil && slot != n.slot {
			m.slots = append(m.slots, slot)
		}
	}
	n.memberships[group] = m
	return m.slots
}

// sendTo sends a packet to a neighbour, unless the program has unmapped what it sends.
func (n *node) sendTo(slot int, p *wire.Packet) {
	if n.link == nil || slot == 0 {
		return
	}
	n.note(n.link.Way(slot))
	n.link.Send(slot, headerLen+p.Size(), func(frame []byte) bool {
		b := append(frame[:0], packetFrame)
		b = append(b, p.SGID[:]...)
		b = append(b, p.DGID[:]...)
		b = binary.BigEndian.AppendUint32(b, p.FlowLabel)
		_ = append(b, p.TrafficClass, p.HopLimit)
		return marshal(frame[headerLen:], p)
	})
}

// marshal writes a packet to b, which has its size. It returns false if the program has unmapped what it sends.
func marshal(b []byte, p *wire.Packet) bool {
	headers, size := p.Opcode.HeaderLen(), p.PayloadLen()
	p.AppendHeaders(b[:0])
	clear(b[headers+size:]) // padding and ICRC
	return engine.Copy(b[headers:][:size], p.Payload)
}

// room reports whether the node of a queue pair keeps up with what is sent to it.
func (n *node) room(qpn uint32) bool {
	if n.internet != nil {
		return !n.internet.blocked()
	}
	slot := int(qpn >> qpnBits)
	return n.link == nil || slot == n.slot || n.link.Room(slot)
}

// poll takes what neighbours have sent. It reports whether there is more.
func (n *node) poll() bool { return n.link != nil && n.link.Poll() }

// neighbours is the node as its link sees it. Its methods are called by poll.
type neighbours node

// Receive takes a frame from a neighbour.
func (b *neighbours) Receive(slot int, frame []byte) {
	n := (*node)(b)
	if len(frame) > 0 && frame[0] == madFrame {
		n.receiveMADFrame(slot, frame)
		return
	}
	if len(frame) < headerLen || frame[0] != packetFrame {
		return
	}
	p := n.packets.Get()
	src, dst := wire.GID(frame[1:17]), wire.GID(frame[17:33])
	if p.Parse(frame[headerLen:], netip.AddrPortFrom(src.Addr(), wire.Port), dst.Addr()) != nil {
		n.packets.Put(p)
		return
	}
	p.FlowLabel = binary.BigEndian.Uint32(frame[33:37])
	p.TrafficClass, p.HopLimit = frame[37], frame[38]
	n.device.Receive(p)
}

// moment is after how long what is under way to a neighbour that has ended fails: so that a program hears of the end by the events of its
// connections, if it waits for them.
const moment = 250 * time.Millisecond

// Gone tells that a neighbour has ended.
func (b *neighbours) Gone(slot int) {
	n := (*node)(b)
	n.cm.receive(n.now()) // its last messages may have come just now
	n.cm.manager.NodeGone(n.now(), slot)
	for _, d := range n.inUse {
		d.PeersGone(uint32(slot)<<qpnBits, qpns, n.now()+moment)
	}
}

// Resume tells that neighbours may have room again.
func (b *neighbours) Resume() {
	for _, d := range b.inUse {
		d.Resume()
	}
}
