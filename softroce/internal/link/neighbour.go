// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// What package syscall does not have of Linux's rtnetlink(7).
const (
	rtmNewNeigh  = 28
	rtmGetNeigh  = 30
	ndaDst       = 1
	stateAt      = 8    // of the state in a neighbour's message
	stateIsValid = 0xDE // NUD_VALID
	messageLen   = 12   // struct rtmsg and struct ndmsg
)

var errTruncated = errors.New("the answer is too short")

// Reachable reports whether the system knows how to send to a host: its link address, or that of the router on the way, or that the link has
// no addresses. If it does not know yet, Reachable makes it find out. It is true, too, if the system does not tell.
func Reachable(dst netip.Addr) bool {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer syscall.Close(fd)
	hop, link, err := nextHop(fd, dst)
	if err != nil || !hop.IsValid() {
		return true
	}
	known, err := knows(fd, hop, link)
	if known || err != nil {
		return true
	}
	if i, err := net.InterfaceByIndex(link); err != nil || i.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 {
		return true
	}
	provoke(dst)
	return false
}

// nextHop returns the host to which the system sends what is for dst, and the interface; not a valid one if that is this machine.
func nextHop(fd int, dst netip.Addr) (hop netip.Addr, link int, err error) {
	body := make([]byte, messageLen)
	body[0], body[1] = family(dst), byte(dst.BitLen())
	body = appendAttribute(body, syscall.RTA_DST, dst.AsSlice())
	if zone, err := strconv.ParseUint(dst.Zone(), 10, 32); err == nil {
		body = appendAttribute(body, syscall.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(zone)))
	}
	m, err := inquire(fd, syscall.RTM_GETROUTE, body, syscall.RTM_NEWROUTE)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	if m.Data[7] != syscall.RTN_UNICAST {
		return netip.Addr{}, 0, nil
	}
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	hop = dst.WithZone("")
	for _, a := range attributes {
		switch {
		case a.Attr.Type == syscall.RTA_GATEWAY:
			if gateway, ok := netip.AddrFromSlice(a.Value); ok {
				hop = gateway
			}
		case a.Attr.Type == syscall.RTA_OIF && len(a.Value) == 4:
			link = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return hop, link, nil
}

// knows reports whether the system knows the link address of a host on an interface.
func knows(fd int, host netip.Addr, link int) (bool, error) {
	body := make([]byte, messageLen)
	body[0] = family(host)
	binary.NativeEndian.PutUint32(body[4:], uint32(link))
	m, err := inquire(fd, rtmGetNeigh, appendAttribute(body, ndaDst, host.AsSlice()), rtmNewNeigh)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return binary.NativeEndian.Uint16(m.Data[stateAt:])&stateIsValid != 0, nil
}

// discard is the port of a service that ignores all that it gets (RFC 863). RoCE's own port would not do: what is no packet there, and empty, makes
// rdma_rxe of Linux 6.1 crash its kernel.
const discard = 9

// provoke sends an empty datagram, so that the system asks for the link address.
func provoke(dst netip.Addr) {
	fd, err := syscall.Socket(int(family(dst)), syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	if to, err := socketAddress(dst, discard); err == nil {
		_ = syscall.Sendto(fd, nil, 0, to)
	}
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return syscall.AF_INET
	}
	return syscall.AF_INET6
}

func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(syscall.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...) // whose length is a multiple of four
}

// inquire sends a request, and returns the answer if it is of a type. The system answers at once.
func inquire(fd int, kind uint16, body []byte, want uint16) (*syscall.NetlinkMessage, error) {
	request := make([]byte, syscall.NLMSG_HDRLEN, syscall.NLMSG_HDRLEN+len(body))
	h := (*syscall.NlMsghdr)(unsafe.Pointer(&request[0]))
	h.Len, h.Type, h.Flags = uint32(syscall.NLMSG_HDRLEN+len(body)), kind, syscall.NLM_F_REQUEST
	if err := syscall.Sendto(fd, append(request, body...), 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, syscall.MSG_DONTWAIT)
	if err != nil {
		return nil, os.NewSyscallError("recvfrom", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 || len(messages[0].Data) < 4 {
		return nil, errTruncated
	}
	m := &messages[0]
	switch {
	case m.Header.Type == syscall.NLMSG_ERROR:
		return nil, syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	case m.Header.Type != want || len(m.Data) < messageLen:
		return nil, errTruncated
	}
	return m, nil
}
