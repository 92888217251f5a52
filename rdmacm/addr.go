// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// Address families as Linux numbers them.
const (
	familyINET  = 2
	familyINET6 = 10
)

// sockaddr is a socket address in C's form. It is large enough for IPv4, IPv6
// and InfiniBand addresses.
type sockaddr struct {
	librdmacm.SockaddrStorage
}

func (s *sockaddr) ptr() *librdmacm.Sockaddr { return (*librdmacm.Sockaddr)(unsafe.Pointer(s)) }

// size returns the length of the address in bytes, as C expects it.
func (s *sockaddr) size() uint32 {
	switch s.ptr().SaFamily {
	case familyINET:
		return uint32(unsafe.Sizeof(librdmacm.SockaddrIn{}))
	case familyINET6:
		return uint32(unsafe.Sizeof(librdmacm.SockaddrIn6{}))
	}
	return uint32(unsafe.Sizeof(libibverbs.SockaddrIb{}))
}

// newSockaddr converts a to C's form. An address without an IP becomes the IPv6
// unspecified address, which matches every address of both families.
func newSockaddr(a netip.AddrPort) (*sockaddr, error) {
	s := new(sockaddr)
	ip := a.Addr().Unmap()
	switch {
	case ip.Is4():
		in := (*librdmacm.SockaddrIn)(unsafe.Pointer(s))
		in.SinFamily = familyINET
		in.SinPort = libibverbs.NewBe16(a.Port())
		*(*[4]byte)(unsafe.Pointer(&in.SinAddr)) = ip.As4()
	default:
		in := (*librdmacm.SockaddrIn6)(unsafe.Pointer(s))
		in.Sin6Family = familyINET6
		in.Sin6Port = libibverbs.NewBe16(a.Port())
		if ip.IsValid() {
			*(*[16]byte)(unsafe.Pointer(&in.Sin6Addr)) = ip.As16()
		}
		scope, err := scopeID(ip.Zone())
		if err != nil {
			return nil, err
		}
		in.Sin6ScopeId = scope
	}
	return s, nil
}

// scopeID returns the number of an IPv6 zone, given as an interface name or a
// number.
func scopeID(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("IPv6 zone %q: %w", zone, err)
	}
	return uint32(ifi.Index), nil
}

// zoneName returns the name of the IPv6 zone scope, as package net prints it:
// the name of the network interface with this index, or the number if there is
// no such interface.
func zoneName(scope uint32) string {
	if ifi, err := net.InterfaceByIndex(int(scope)); err == nil {
		return ifi.Name
	}
	return strconv.FormatUint(uint64(scope), 10)
}

// needsZone reports whether an address is only valid together with a zone.
func needsZone(ip netip.Addr) bool {
	return ip.Is6() && (ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast())
}

// addrPort converts an address from C's form. It returns the zero value for
// families other than IPv4 and IPv6.
func addrPort(s *librdmacm.Sockaddr) netip.AddrPort {
	switch s.SaFamily {
	case familyINET:
		in := (*librdmacm.SockaddrIn)(unsafe.Pointer(s))
		ip := *(*[4]byte)(unsafe.Pointer(&in.SinAddr))
		return netip.AddrPortFrom(netip.AddrFrom4(ip), in.SinPort.Host())
	case familyINET6:
		in := (*librdmacm.SockaddrIn6)(unsafe.Pointer(s))
		ip := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&in.Sin6Addr)))
		if in.Sin6ScopeId != 0 && needsZone(ip) {
			ip = ip.WithZone(zoneName(in.Sin6ScopeId))
		}
		return netip.AddrPortFrom(ip, in.Sin6Port.Host())
	}
	return netip.AddrPort{}
}
