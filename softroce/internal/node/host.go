// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"math"
	"net/netip"
	"syscall"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// host is the node in its role as manager.Host.
type host Node

// errNoHost is the error for a destination address that no reachable host has.
const errNoHost = syscall.EHOSTUNREACH

// Route returns the source address for packets to dst. src is the address that
// the program bound, if it is valid. Route fails if dst cannot be reached.
func (h *host) Route(dst, src netip.Addr) (netip.Addr, error) {
	from, err := h.source(dst, src)
	if dst.IsMulticast() {
		if err != nil && src.IsValid() { // a multicast packet needs no router
			return src, nil
		}
		return from, err
	}
	if err != nil {
		if !h.network.knows(wire.GIDOf(dst)) {
			return netip.Addr{}, err
		}
		if from = dst; src.IsValid() {
			from = src
		}
	}
	if h.devices.removed() { // Port reports it
		return from, nil
	}
	return h.network.route(dst, src, from)
}

// source returns what the function Route returns. It does not ask the system
// for its loopback address, which is its own source.
func (h *host) source(dst, src netip.Addr) (netip.Addr, error) {
	if dst == loopbackIPv4 && !src.IsValid() && h.devices.with(wire.GIDOf(dst)) != nil {
		return dst, nil
	}
	return Route(dst, src)
}

var loopbackIPv4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Port returns the port of the device that has the address addr, with the index
// of addr in the device's GID table. It fails with ENODEV if that device is
// removed, or if all are, and with EADDRNOTAVAIL if no device has the address.
func (h *host) Port(addr netip.Addr) (manager.Port, error) {
	s, g := &h.devices, wire.GIDOf(addr)
	c := s.with(g)
	if c == nil && !s.removed() && !(h.network.isPublic() && h.cm.receiving) { // any host may ask, so the tables are not refreshed for each request
		s.refreshGIDs() // the address may be new
		c = s.with(g)
	}
	switch {
	case c == nil && !s.removed():
		return manager.Port{}, syscall.EADDRNOTAVAIL
	case c == nil:
		return manager.Port{}, syscall.ENODEV
	}
	return c.port(g)
}

// port returns the card's port, as seen from the address g.
func (c *Card) port(g wire.GID) (manager.Port, error) {
	device, err := c.current.Attr()
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	port, err := c.current.PortAttr(PortNumber)
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	index, ok := c.gidIndex(g)
	if !ok {
		return manager.Port{}, syscall.EADDRNOTAVAIL
	}
	return manager.Port{
		Device:                c.current,
		Num:                   PortNumber,
		SGIDIndex:             uint8(index),
		MTU:                   port.ActiveMtu,
		AckDelay:              device.OrigAttr.LocalCaAckDelay,
		FlushAccess:           c.current.FlushAccess(),
		MaxResponderResources: uint8(min(device.OrigAttr.MaxQpRdAtom, math.MaxUint8)),
		MaxInitiatorDepth:     uint8(min(device.OrigAttr.MaxQpInitRdAtom, math.MaxUint8)),
	}, nil
}

// Answers reports whether the machine would send packets for peer through the
// interface that has the address own. On this machine's network it always
// returns true.
func (h *host) Answers(own, peer netip.Addr) bool { return h.network.answers(own, peer) }

// Claim claims an address and port for this node, until release is called.
func (h *host) Claim(c manager.Claim) (release func(), err error) { return h.cm.claim(c) }

// Announce shows other processes that an ID listens at c, until end is called.
func (h *host) Announce(c manager.Claim) (end func()) { return announce(c) }

// Send sends a message of the connection manager.
func (h *host) Send(m manager.MAD) { h.path.sendMAD(m) }

// JoinMulticast does nothing: attaching a queue pair to the group is enough for
// the device to receive the group's packets.
func (h *host) JoinMulticast(manager.Port, netip.Addr) error { return nil }

// LeaveMulticast does nothing, like JoinMulticast.
func (h *host) LeaveMulticast(manager.Port, netip.Addr) {}
