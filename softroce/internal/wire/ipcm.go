// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// IPHeaderLen is the number of bytes of an IPHeader in private data.
const IPHeaderLen = 36

// IPHeader is the header with which rdma_cm begins the private data of a REQ
// and a SIDRReq. It has the addresses of both ends and the sender's port. The
// receiver's port is in the service ID.
type IPHeader struct {
	Src, Dst netip.Addr
	SrcPort  uint16
}

// Put encodes the header in private data, as an IPv4 header if both addresses
// are IPv4, and otherwise as an IPv6 header.
func (h IPHeader) Put(b *[IPHeaderLen]byte) {
	*b = [IPHeaderLen]byte{}
	src, dst := GIDOf(h.Src), GIDOf(h.Dst)
	b[1] = 6 << 4
	if src.Is4() && dst.Is4() {
		b[1] = 4 << 4
		clear(src[:12])
		clear(dst[:12])
	}
	binary.BigEndian.PutUint16(b[2:], h.SrcPort)
	copy(b[4:], src[:])
	copy(b[20:], dst[:])
}

// ParseIPHeader decodes the header at the beginning of private data.
func ParseIPHeader(b []byte) (IPHeader, error) {
	if len(b) < IPHeaderLen {
		return IPHeader{}, fmt.Errorf("IP header in private data has %d bytes, fewer than %d", len(b), IPHeaderLen)
	}
	if b[0] != 0 {
		return IPHeader{}, fmt.Errorf("IP header in private data has version %d, not 0", b[0])
	}
	h := IPHeader{SrcPort: binary.BigEndian.Uint16(b[2:])}
	switch v := b[1] >> 4; v {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:20])), netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:20])), netip.AddrFrom16([16]byte(b[20:36]))
	default:
		return IPHeader{}, fmt.Errorf("IP header in private data has IP version %d, neither 4 nor 6", v)
	}
	return h, nil
}

// ServiceID returns the service ID of a port in a port space of rdma_cm.
func ServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// ServicePort returns the port space and the port of a service ID. ok is false
// if rdma_cm has no such service IDs.
func ServicePort(id uint64) (space, port uint16, ok bool) {
	return uint16(id >> 16), uint16(id), id>>32 == 0
}
