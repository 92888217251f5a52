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

// host is the node as the connection manager sees it.
type host Node

// errNoHost is the error for an address that no host has.
const errNoHost = syscall.EHOSTUNREACH

// Route asks the system for the source address.
func (h *host) Route(dst, src netip.Addr) (netip.Addr, error) {
	from, err := Route(dst, src)
	if dst.IsMulticast() {
		if err != nil && src.IsValid() { // no router is needed
			return src, nil
		}
		return from, err
	}
	if err != nil {
		return netip.Addr{}, err
	}
	if _, err := h.devices.current.Attr(); err != nil { // it is removed, and Port says so
		return from, nil
	}
	return h.network.route(dst, src, from)
}

// Port returns the device's port and the index of the address in the GID table.
func (h *host) Port(addr netip.Addr) (manager.Port, error) {
	s := &h.devices
	device, err := s.current.Attr()
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	index, ok := s.gidIndex(wire.GIDOf(addr))
	if !ok && h.network.isPublic() && h.cm.receiving {
		return manager.Port{}, syscall.EADDRNOTAVAIL // nothing arrives at a new address, and any host may ask
	}
	if !ok {
		s.refreshGIDs() // the address may be new
		if index, ok = s.gidIndex(wire.GIDOf(addr)); !ok {
			return manager.Port{}, syscall.EADDRNOTAVAIL
		}
	}
	port, err := s.current.PortAttr(PortNumber)
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	return manager.Port{
		Device:                s.current,
		Num:                   PortNumber,
		SGIDIndex:             uint8(index),
		MTU:                   port.ActiveMtu,
		AckDelay:              device.OrigAttr.LocalCaAckDelay,
		MaxResponderResources: uint8(min(device.OrigAttr.MaxQpRdAtom, math.MaxUint8)),
		MaxInitiatorDepth:     uint8(min(device.OrigAttr.MaxQpInitRdAtom, math.MaxUint8)),
	}, nil
}

// Answers reports whether the machine can send to peer through the interface
// that has the address own. Processes of one machine always reach each other.
func (h *host) Answers(own, peer netip.Addr) bool { return h.network.answers(own, peer) }

// Claim makes an address and port this node's.
func (h *host) Claim(c manager.Claim) (release func(), err error) { return h.cm.claim(c) }

// Send sends a message.
func (h *host) Send(m manager.MAD) { h.path.sendMAD(m) }

// JoinMulticast does nothing: the device takes what is sent to the groups of
// its queue pairs.
func (h *host) JoinMulticast(manager.Port, netip.Addr) error { return nil }

// LeaveMulticast does nothing.
func (h *host) LeaveMulticast(manager.Port, netip.Addr) {}
