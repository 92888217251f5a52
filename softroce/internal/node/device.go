// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"net/netip"
	"slices"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// PortNumber is the number of the only port of each device.
const PortNumber = 1

// devices has the cards, whose devices the program can open, and the removed
// devices that the program still has open.
type devices struct {
	n     *Node
	cards []*Card                // in the order of the configuration
	inUse []*engine.Device       // devices of the cards, and removed devices that the program still has open
	opens map[*engine.Device]int // number of calls of Open without Close
	// owners has the card of each address. An address that a card has lost
	// is still the card's, until another has it.
	owners map[wire.GID]*Card
	// The devices have numbers of queue pairs from firstQPN on, each as many
	// as qpnsEach, so that the number tells to which device a packet goes.
	firstQPN, qpnsEach uint32
}

// configure makes the cards.
func (s *devices) configure(all []DeviceConfig) {
	s.cards = nil
	for i, config := range all {
		s.cards = append(s.cards, &Card{n: s.n, index: i, config: config})
	}
}

// plugAll puts a device into each card.
func (s *devices) plugAll() {
	for _, c := range s.cards {
		c.plug()
	}
	s.refreshGIDs()
}

// numbers returns the range of numbers that the card's queue pairs have.
func (s *devices) numbers(c *engine.Config, index int) {
	s.firstQPN, s.qpnsEach = c.FirstQPN, c.QPNs/uint32(len(s.cards))
	c.FirstQPN, c.QPNs = s.firstQPN+uint32(index)*s.qpnsEach, s.qpnsEach
}

// forget drops the device d if it is removed and the program has closed it.
func (s *devices) forget(d *engine.Device) {
	if s.cardOf(d) == nil && s.opens[d] == 0 {
		s.inUse = slices.DeleteFunc(s.inUse, func(other *engine.Device) bool { return other == d })
	}
}

// cardOf returns the card whose device is d, or nil if another device has taken
// d's place.
func (s *devices) cardOf(d *engine.Device) *Card {
	for _, c := range s.cards {
		if c.current == d {
			return c
		}
	}
	return nil
}

// resume lets queue pairs continue that waited for room in the network.
func (s *devices) resume() {
	for _, d := range s.inUse {
		d.Resume()
	}
}

// removed reports whether all devices are removed.
func (s *devices) removed() bool {
	return !slices.ContainsFunc(s.cards, func(c *Card) bool { return !c.removed })
}

// with returns the card whose device has the address g, or nil.
func (s *devices) with(g wire.GID) *Card {
	if c := s.owners[g]; c != nil && c.current.Has(g) { // a removed device may have had it before
		return c
	}
	for _, c := range s.cards {
		if c.current.Has(g) {
			return c
		}
	}
	return nil
}

// has reports whether one of the devices has the address g.
func (s *devices) has(g wire.GID) bool { return s.with(g) != nil }

// connected reports whether the connection manager may send messages from, and
// receive messages to, the address a: whether the port of the device that has
// a is active. The node also refuses requests in place of nodes that do not
// exist, from addresses that are not its own.
func (s *devices) connected(a netip.Addr) bool {
	if len(s.cards) == 1 {
		return s.cards[0].connected()
	}
	c := s.owners[wire.GIDOf(a)]
	return c == nil || c.connected()
}

// receive passes a packet to the device that has the destination queue pair,
// or to all devices with members of a multicast group.
func (s *devices) receive(p *wire.Packet) {
	if len(s.cards) == 1 {
		s.cards[0].current.Receive(p)
		return
	}
	if p.DestQP != wire.MulticastQP {
		if d := s.withNumber(p.DestQP); d != nil {
			d.Receive(p)
			return
		}
	} else {
		for _, c := range s.cards {
			if !c.current.HasMembers(p.DGID) {
				continue
			}
			if copied := s.n.path.clone(p); copied != nil {
				c.current.Receive(copied)
			}
		}
	}
	s.n.path.packets.Put(p)
}

// withNumber returns the device whose queue pairs have numbers such as qpn, or
// nil.
func (s *devices) withNumber(qpn uint32) *engine.Device {
	index := (qpn - s.firstQPN) / s.qpnsEach
	if qpn < s.firstQPN || index >= uint32(len(s.cards)) {
		return nil
	}
	return s.cards[index].current
}

// findQP returns the queue pair of a device that is plugged in with that
// number, or nil.
func (s *devices) findQP(qpn uint32) *engine.QP {
	if d := s.withNumber(qpn); d != nil {
		return d.FindQP(qpn)
	}
	return nil
}

// refreshGIDs updates the GID tables of all devices. The card whose addresses
// are not chosen comes first: it loses those that other cards get.
func (s *devices) refreshGIDs() {
	all, err := s.n.network.addresses()
	if err != nil {
		return
	}
	for _, c := range s.cards {
		if c.chosen() == nil {
			c.setGIDs(slices.DeleteFunc(slices.Clone(all), func(a machineAddress) bool { return s.takenFrom(c, a.addr) != nil }))
		}
	}
	var chosen []machineAddress
	for _, c := range s.cards {
		if c.chosen() != nil {
			own := withNetDevs(c.chosen(), all)
			c.setGIDs(own)
			chosen = append(chosen, own...)
		}
	}
	s.n.network.show(chosen)
}

// takenFrom returns the card other than c whose chosen addresses include a, or
// nil.
func (s *devices) takenFrom(c *Card, a netip.Addr) *Card {
	g := wire.GIDOf(a)
	for _, other := range s.cards {
		if other != c && slices.ContainsFunc(other.chosen(), func(a netip.Addr) bool { return wire.GIDOf(a) == g }) {
			return other
		}
	}
	return nil
}

// withNetDevs returns the chosen addresses with what the network says of them.
func withNetDevs(chosen []netip.Addr, all []machineAddress) (found []machineAddress) {
	netDevs := map[wire.GID]uint32{}
	for _, a := range all {
		netDevs[wire.GIDOf(a.addr)] = a.netDev
	}
	for _, a := range chosen {
		found = append(found, machineAddress{addr: a, netDev: netDevs[wire.GIDOf(a)]})
	}
	return found
}

// source returns the source address for packets to dst: usual if it is one of
// the node's addresses, and otherwise the first address of the node that may be
// the source. If there is none, source returns usual.
func (s *devices) source(dst, usual netip.Addr, may func(own netip.Addr) bool) netip.Addr {
	if s.has(wire.GIDOf(usual)) {
		return usual
	}
	for _, c := range s.cards {
		table, err := c.current.GIDs()
		if err != nil {
			continue
		}
		for _, e := range table {
			own := wire.GID(*e.Gid.Raw()).Addr()
			if own.Is4() != dst.Is4() || own.IsLoopback() != dst.IsLoopback() || own.IsLinkLocalUnicast() {
				continue
			}
			if may(own) {
				return own
			}
		}
	}
	return usual
}

// Cards returns the node's cards. There is at least one.
func (n *Node) Cards() []*Card { return n.devices.cards }

// CardOf returns the card whose device is d, or nil if d has been removed and
// another device has taken its place. The caller holds the node's lock.
func (n *Node) CardOf(d *engine.Device) *Card { return n.devices.cardOf(d) }

// Close ends the use of a device that Card.Open returned. The caller holds the
// node's lock.
func (n *Node) Close(d *engine.Device) {
	s := &n.devices
	if s.opens[d]--; s.opens[d] == 0 {
		delete(s.opens, d)
	}
	s.forget(d)
}

// Reach fails if the network has no node with the destination address in a. The
// caller holds the node's lock.
func (n *Node) Reach(a *libibverbs.AhAttr) error {
	g := wire.GID(*a.Grh.Dgid.Raw())
	if a.IsGlobal == 0 || g.Addr().IsMulticast() || n.devices.has(g) {
		return nil
	}
	return n.network.reach(g)
}
