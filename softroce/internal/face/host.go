// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"math"
	"net/netip"
	"strconv"
	"syscall"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// host is the node as the connection manager sees it.
type host node

// errNobody says that no host has an address.
const errNobody = syscall.EHOSTUNREACH

// Route asks the system for the source address.
func (h *host) Route(dst, src netip.Addr) (netip.Addr, error) {
	from, err := route(dst, src)
	if dst.IsMulticast() {
		if err != nil && src.IsValid() { // no router is needed
			return src, nil
		}
		return from, err
	}
	if err != nil {
		return netip.Addr{}, err
	}
	n := (*node)(h)
	if _, err := n.device.Attr(); err != nil { // it has gone: the port of the address says so
		return from, nil
	}
	if n.internet != nil {
		if !n.internet.reachable(dst) {
			return netip.Addr{}, errNobody
		}
		if src.IsValid() {
			return from, nil
		}
		return n.source(dst, from), nil
	}
	if _, err := h.Port(dst); err != nil { // there are no other machines
		return netip.Addr{}, errNobody
	}
	return from, nil
}

// route returns the address from which the system sends to dst, if src is not valid. It sends
// nothing.
func route(dst, src netip.Addr) (netip.Addr, error) {
	family := syscall.AF_INET
	if dst.Is6() {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer syscall.Close(fd)
	if src.IsValid() {
		if err := syscall.Bind(fd, socketAddress(src, 0)); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := syscall.Connect(fd, socketAddress(dst, wire.Port)); err != nil {
		return netip.Addr{}, err
	}
	own, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch own := own.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrFrom4(own.Addr), nil
	case *syscall.SockaddrInet6:
		return zoned(own.Addr, own.ZoneId), nil
	}
	return netip.Addr{}, syscall.EAFNOSUPPORT
}

func socketAddress(a netip.Addr, port int) syscall.Sockaddr {
	if a.Is4() {
		return &syscall.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &syscall.SockaddrInet6{Addr: a.As16(), Port: port, ZoneId: zone(a)}
}

// zoned returns an IPv6 address with the number of its zone, if it has one.
func zoned(a [16]byte, zone uint32) netip.Addr {
	addr := netip.AddrFrom16(a)
	if zone != 0 && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(strconv.FormatUint(uint64(zone), 10))
	}
	return addr
}

// zone returns the number of an address's zone, 0 if it has none.
func zone(a netip.Addr) uint32 {
	number, _ := strconv.ParseUint(a.Zone(), 10, 32)
	return uint32(number)
}

// Port returns the device's port and the index of the address in the GID table.
func (h *host) Port(addr netip.Addr) (manager.Port, error) {
	n := (*node)(h)
	device, err := n.device.Attr()
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	index, ok := n.gidIndex(wire.GIDOf(addr))
	if !ok && n.internet != nil && n.cm.receiving {
		return manager.Port{}, syscall.EADDRNOTAVAIL // nothing arrives at an address that is new; and anybody may ask
	}
	if !ok {
		n.refreshGIDs() // the address may be new
		if index, ok = n.gidIndex(wire.GIDOf(addr)); !ok {
			return manager.Port{}, syscall.EADDRNOTAVAIL
		}
	}
	port, err := n.device.PortAttr(portNumber)
	if err != nil {
		return manager.Port{}, syscall.ENODEV
	}
	return manager.Port{
		Device:                n.device,
		Num:                   portNumber,
		SGIDIndex:             uint8(index),
		MTU:                   port.ActiveMtu,
		AckDelay:              device.OrigAttr.LocalCaAckDelay,
		MaxResponderResources: uint8(min(device.OrigAttr.MaxQpRdAtom, math.MaxUint8)),
		MaxInitiatorDepth:     uint8(min(device.OrigAttr.MaxQpInitRdAtom, math.MaxUint8)),
	}, nil
}

func (n *node) gidIndex(g wire.GID) (index uint32, ok bool) {
	table, err := n.device.GIDs()
	if err != nil {
		return 0, false
	}
	for _, e := range table {
		if wire.GID(*e.Gid.Raw()) == g {
			return e.GidIndex, true
		}
	}
	return 0, false
}

// Answers reports whether the machine sends to a peer by the interface that has
// its own address. Processes of one machine always reach each other.
func (h *host) Answers(own, peer netip.Addr) bool {
	n := (*node)(h)
	if n.internet == nil {
		return true
	}
	u := n.internet
	return peer.IsLoopback() == own.IsLoopback() && u.answers(own, u.links[wire.GIDOf(own)], peer)
}

// Claim makes an address and port this node's.
func (h *host) Claim(c manager.Claim) (release func(), err error) { return (*node)(h).claim(c) }

// Send sends a message.
func (h *host) Send(m manager.MAD) { (*node)(h).sendMessage(m) }

// JoinMulticast does nothing: the device takes what is sent to the groups of its queue pairs.
func (h *host) JoinMulticast(manager.Port, netip.Addr) error { return nil }

// LeaveMulticast does nothing.
func (h *host) LeaveMulticast(manager.Port, netip.Addr) {}
