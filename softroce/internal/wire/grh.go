// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// GRHLen is the length in bytes of the global route header.
const GRHLen = 40

const protocolUDP = 17

// GRH returns the global route header that a datagram queue pair writes before
// the payload. With IPv6, that is the IPv6 header of the packet. With IPv4, it
// is 20 zero bytes and the IPv4 header, whose identification is 0. GRH makes
// the header from the packet's size and fields.
func (p *Packet) GRH() [GRHLen]byte {
	var b [GRHLen]byte
	size := udpHeaderLen + p.Size()
	if !p.DGID.Is4() {
		binary.BigEndian.PutUint32(b[0:], 6<<28|uint32(p.TrafficClass)<<20|p.FlowLabel&0xFFFFF)
		binary.BigEndian.PutUint16(b[4:], uint16(size))
		b[6] = protocolUDP
		b[7] = p.HopLimit
		copy(b[8:], p.SGID[:])
		copy(b[24:], p.DGID[:])
		return b
	}
	h := b[GRHLen-ip4HeaderLen:]
	h[0] = 0x45
	h[1] = p.TrafficClass
	binary.BigEndian.PutUint16(h[2:], uint16(ip4HeaderLen+size))
	binary.BigEndian.PutUint16(h[6:], dontFragment)
	h[8] = p.HopLimit
	h[9] = protocolUDP
	copy(h[12:], p.SGID[12:])
	copy(h[16:], p.DGID[12:])
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return b
}

// checksum returns the checksum of an IPv4 header whose checksum field is 0.
func checksum(h []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xFFFF
	return ^uint16(sum>>16 + sum)
}
