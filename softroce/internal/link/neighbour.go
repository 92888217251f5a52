// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/verbena-go/verbena/internal/netlink"
)

// Constants of rtnetlink(7) that package syscall does not define.
const (
	rtmGetNeigh  = 30
	ndaDst       = 1
	stateAt      = 8    // offset of the state in a neighbour's message
	stateIsValid = 0xDE // NUD_VALID: states with a link-layer address
	messageLen   = 12   // size of struct rtmsg, and of struct ndmsg
)

// Reachable reports whether the system knows the link-layer address for packets
// to dst: that of the host, or that of the router on the way. If the system
// does not know it, Reachable makes it ask the network for the address.
// Reachable also returns true if the interface needs no such addresses, or if
// the system's tables cannot be read.
func Reachable(dst netip.Addr) bool {
	kernel, err := netlink.Open(syscall.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer kernel.Close()
	hop, link, err := nextHop(kernel, dst)
	if err != nil || !hop.IsValid() {
		return true
	}
	known, err := knows(kernel, hop, link)
	if known || err != nil {
		return true
	}
	if i, err := net.InterfaceByIndex(link); err != nil || i.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 {
		return true
	}
	triggerLookup(dst)
	return false
}

// nextHop returns the host to which the system sends packets for dst, and the
// index of the interface. hop is the zero Addr if dst is an address of this
// machine.
func nextHop(kernel *netlink.Conn, dst netip.Addr) (hop netip.Addr, link int, err error) {
	body := make([]byte, messageLen)
	body[0], body[1] = family(dst), byte(dst.BitLen())
	body = netlink.Append(body, syscall.RTA_DST, dst.AsSlice())
	if zone, err := strconv.ParseUint(dst.Zone(), 10, 32); err == nil {
		body = netlink.Append(body, syscall.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(zone)))
	}
	m, err := inquire(kernel, syscall.RTM_GETROUTE, body)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	if m[7] != syscall.RTN_UNICAST {
		return netip.Addr{}, 0, nil
	}
	attributes, err := netlink.Parse(m[messageLen:])
	if err != nil {
		return netip.Addr{}, 0, err
	}
	hop = dst.WithZone("")
	if gateway, ok := netip.AddrFromSlice(attributes.Bytes(syscall.RTA_GATEWAY)); ok {
		hop = gateway
	}
	number, _ := attributes.Uint32(syscall.RTA_OIF)
	link = int(number)
	return hop, link, nil
}

// fibMatch is RTM_F_FIB_MATCH. With it, the answer is the matching entry of the
// routing table, or an error if there is none. Without it, Linux would assume
// that the host is on the link.
const fibMatch = 0x2000

// Answers reports whether the routing table lets the system send packets for
// peer from the address own through the interface with the index link. If it
// does not, a packet from peer to own that came through this interface may be
// forged. A link of 0 means any interface. Answers also returns true if peer is
// an address of this machine, or if no netlink socket can be opened to read the
// table. Linux's rdma_cm makes the same check (validate_net_dev).
func Answers(own netip.Addr, link int, peer netip.Addr) bool {
	kernel, err := netlink.Open(syscall.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer kernel.Close()
	ask := func(by int) (kind byte, out int, err error) {
		body := make([]byte, messageLen)
		body[0], body[1], body[2] = family(peer), byte(peer.BitLen()), byte(own.BitLen())
		body = netlink.Append(body, syscall.RTA_DST, peer.AsSlice())
		body = netlink.Append(body, syscall.RTA_SRC, own.AsSlice())
		if by != 0 {
			binary.NativeEndian.PutUint32(body[8:], fibMatch)
			body = netlink.Append(body, syscall.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(by)))
		}
		m, err := inquire(kernel, syscall.RTM_GETROUTE, body)
		if err != nil {
			return 0, 0, err
		}
		attributes, err := netlink.Parse(m[messageLen:])
		if err != nil {
			return 0, 0, err
		}
		number, _ := attributes.Uint32(syscall.RTA_OIF)
		return m[7], int(number), nil
	}
	usual := 0
	if peer.Is6() && peer.IsLinkLocalUnicast() {
		usual = link
	}
	kind, out, err := ask(usual)
	switch {
	case err == nil && kind == syscall.RTN_LOCAL:
		return true
	case err == nil && kind == syscall.RTN_UNICAST && (link == 0 || out == link):
		return true
	case link == 0 || err == nil && kind != syscall.RTN_UNICAST:
		return false
	}
	kind, out, err = ask(link)
	return err == nil && kind == syscall.RTN_UNICAST && out == link
}

// knows reports whether the system knows the link-layer address of a host. link
// is the index of the interface.
func knows(kernel *netlink.Conn, host netip.Addr, link int) (bool, error) {
	body := make([]byte, messageLen)
	body[0] = family(host)
	binary.NativeEndian.PutUint32(body[4:], uint32(link))
	m, err := inquire(kernel, rtmGetNeigh, netlink.Append(body, ndaDst, host.AsSlice()))
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return binary.NativeEndian.Uint16(m[stateAt:])&stateIsValid != 0, nil
}

// discard is the port of a service that ignores all data (RFC 863).
// triggerLookup does not use RoCE's port, since an empty datagram to it crashes
// the kernel of Linux 6.1 with rdma_rxe.
const discard = 9

// triggerLookup sends an empty datagram to dst, so that the system asks the
// network for the link-layer address.
func triggerLookup(dst netip.Addr) {
	fd, err := syscall.Socket(int(family(dst)), syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	if to, err := socketAddress(dst, discard); err == nil {
		_ = syscall.Sendto(fd, nil, 0, to)
	}
}

// family returns the address family of a.
func family(a netip.Addr) byte {
	if a.Is4() {
		return syscall.AF_INET
	}
	return syscall.AF_INET6
}

// inquire sends a netlink request and returns the answer, which must be one
// message.
func inquire(kernel *netlink.Conn, kind uint16, body []byte) ([]byte, error) {
	messages, err := kernel.Ask(kind, 0, body)
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 || len(messages[0]) < messageLen {
		return nil, netlink.ErrShort
	}
	return messages[0], nil
}
