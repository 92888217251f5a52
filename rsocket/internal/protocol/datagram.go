// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/binary"
	"net/netip"
)

// A datagram goes from the sender's unreliable datagram queue pair to that of
// the receiver, after a header that names the sender. Until the sender knows
// the receiver's queue pair, it sends datagrams over UDP, each after a
// Greeting. The receiver answers each with a Greeting without data. So both
// learn the other's queue pair, and the address is that of the UDP packet.

// DatagramLen is the number of bytes that a receive for datagrams has, for the
// header and the data.
const DatagramLen = 2048

// Lengths of headers before datagrams, and of Greetings, with addresses of IPv4
// and of IPv6.
const (
	header4Len   = 8
	header6Len   = 24
	greeting4Len = 16
	greeting6Len = 28
)

// MaxDatagram returns the largest number of bytes in a datagram to or from an
// address. The Greeting is longer than the header, and has to fit, too.
func MaxDatagram(ip netip.Addr) int {
	if ip.Is4() {
		return DatagramLen - greeting4Len
	}
	return DatagramLen - greeting6Len
}

// HeaderLen returns the length of the header that names an address.
func HeaderLen(ip netip.Addr) int {
	if ip.Is4() {
		return header4Len
	}
	return header6Len
}

// AppendHeader appends the header of datagrams from an address.
func AppendHeader(b []byte, from netip.AddrPort) []byte {
	if ip := from.Addr(); ip.Is4() {
		b = append(b, 4, header4Len)
		b = binary.BigEndian.AppendUint16(b, from.Port())
		a := ip.As4()
		return append(b, a[:]...)
	}
	b = append(b, 6, header6Len)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	a := from.Addr().As16()
	return append(append(b, 0, 0, 0, 0), a[:]...) // without flow information
}

// ParseDatagram decodes a datagram that a queue pair has received.
func ParseDatagram(b []byte) (from netip.AddrPort, data []byte, err error) {
	if len(b) < header4Len {
		return from, nil, violation("a datagram has %d bytes, fewer than its header", len(b))
	}
	var ip netip.Addr
	switch version, n := b[0], int(b[1]); {
	case version == 4 && n == header4Len:
		ip = netip.AddrFrom4([4]byte(b[4:]))
	case version == 6 && n == header6Len && len(b) >= header6Len:
		ip = netip.AddrFrom16([16]byte(b[8:])).Unmap()
	default:
		return from, nil, violation("a datagram of %d bytes has a header of version %d and length %d", len(b), version, n)
	}
	from = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	switch {
	case ip.IsUnspecified() || ip.IsMulticast():
		return from, nil, violation("a datagram names %v as its sender", ip)
	case from.Port() == 0:
		return from, nil, violation("a datagram names port 0 as its sender")
	}
	return from, b[b[1]:], nil
}

// Greeting tells the receiver of a UDP packet the sender's queue pair.
type Greeting struct {
	QPNum uint32
	Local netip.Addr // address of the queue pair, which receivers ignore
	Data  bool       // whether a datagram follows; otherwise the Greeting is an answer
}

// Values in a Greeting.
const (
	greetingTag  = 0x55555555
	opData       = 0
	opAnswer     = 7
	maxQPNum     = 1<<24 - 1
	reservedQPNs = 2 // 0 and 1 are those of management
)

// Append appends the Greeting to b.
func (g Greeting) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, greetingTag)
	version, n := byte(4), byte(greeting4Len)
	if !g.Local.Is4() {
		version, n = 6, greeting6Len
	}
	op := byte(opAnswer)
	if g.Data {
		op = opData
	}
	b = append(b, version, op, n, 0)
	b = binary.BigEndian.AppendUint32(b, g.QPNum&maxQPNum)
	if version == 4 {
		a := g.Local.As4()
		return append(b, a[:]...)
	}
	a := g.Local.As16()
	return append(b, a[:]...)
}

// ParseGreeting decodes a UDP packet from an address.
func ParseGreeting(b []byte, from netip.Addr) (g Greeting, data []byte, err error) {
	version, n := byte(4), greeting4Len
	if !from.Is4() {
		version, n = 6, greeting6Len
	}
	switch {
	case len(b) < n:
		return g, nil, violation("a greeting has %d bytes, fewer than %d", len(b), n)
	case binary.BigEndian.Uint32(b) != greetingTag:
		return g, nil, violation("a greeting begins with %#x", b[:4])
	case b[4] != version || int(b[6]) != n:
		return g, nil, violation("a greeting has version %d and length %d, want %d and %d", b[4], b[6], version, n)
	case b[5] != opData && b[5] != opAnswer:
		return g, nil, violation("a greeting has operation %d", b[5])
	}
	g.Data, g.QPNum = b[5] == opData, binary.BigEndian.Uint32(b[8:])&maxQPNum
	if version == 4 {
		g.Local = netip.AddrFrom4([4]byte(b[12:]))
	} else {
		g.Local = netip.AddrFrom16([16]byte(b[12:]))
	}
	switch {
	case g.QPNum < reservedQPNs || g.QPNum == maxQPNum:
		return g, nil, violation("a greeting names queue pair %#x", g.QPNum)
	case !g.Data && len(b) > n:
		return g, nil, violation("an answer has %d bytes more than a greeting", len(b)-n)
	}
	return g, b[n:], nil
}
