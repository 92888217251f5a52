// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// The sizes of struct sockaddr_in and struct sockaddr_in6.
const (
	sockaddrLen  = 16
	sockaddr6Len = 28
)

// addrOf returns the address in C's memory. It fails if the address is not of
// the family, or too short.
func addrOf(addr *librdmacm.Sockaddr, length uint32, family int) (netip.AddrPort, syscall.Errno) {
	switch {
	case addr == nil:
		return netip.AddrPort{}, syscall.EFAULT
	case length < sockaddrLen:
		return netip.AddrPort{}, syscall.EINVAL
	case int(addr.SaFamily) != family:
		return netip.AddrPort{}, syscall.EAFNOSUPPORT
	case family == syscall.AF_INET:
		b := (*[sockaddrLen]byte)(unsafe.Pointer(addr))
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), 0
	case length < sockaddr6Len:
		return netip.AddrPort{}, syscall.EINVAL
	}
	b := (*[sockaddr6Len]byte)(unsafe.Pointer(addr))
	ip := netip.AddrFrom16([16]byte(b[8:24]))
	if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
	}
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[2:])), 0
}

// putAddr copies an address to C's memory, as far as there is room, and sets
// *length to its whole length. An invalid address is one of zeros.
func putAddr(from netip.AddrPort, family int, addr *librdmacm.Sockaddr, length *uint32) syscall.Errno {
	if length == nil {
		if addr == nil {
			return 0
		}
		return syscall.EFAULT
	}
	var b [sockaddr6Len]byte
	n := sockaddrLen
	binary.NativeEndian.PutUint16(b[:], uint16(family))
	binary.BigEndian.PutUint16(b[2:], from.Port())
	switch ip := from.Addr(); {
	case family == syscall.AF_INET6:
		n = sockaddr6Len
		if !ip.IsValid() {
			break
		}
		a := ip.As16()
		copy(b[8:], a[:])
		if scope, err := strconv.ParseUint(zoneNumber(ip.Zone()), 10, 32); err == nil {
			binary.NativeEndian.PutUint32(b[24:], uint32(scope))
		}
	case ip.Is4():
		a := ip.As4()
		copy(b[4:], a[:])
	}
	if addr != nil {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(addr)), min(int(*length), n)), b[:])
	}
	*length = uint32(n)
	return 0
}
