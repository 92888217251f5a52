// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// The ICRC is Ethernet's CRC-32 over eight bytes of ones, the IP and UDP
// headers, and the packet. In the headers, all fields that routers may change
// are set to ones, and in the packet byte 4.
//
// A CRC is linear: each bit adds (XORs) a value to the final state that depends
// only on the number of bits after it. So a Flow has the state after the UDP
// header for the case that all fields which differ between packets are 0. For
// each of these fields, a table has the values that its bits add.

const (
	maskedLen    = 8 // number of bytes of ones, in place of InfiniBand's local route header
	ip4HeaderLen = 20
	ip6HeaderLen = 40
	udpHeaderLen = 8
	dontFragment = 0x4000
)

// Flow computes the ICRCs of packets from one address and port to one address.
type Flow struct {
	is6   bool
	state uint32
}

// NewFlow returns the flow of packets from srcPort at src to Port at dst. It
// uses IPv4 if dst is an IPv4 address.
func NewFlow(src, dst GID, srcPort uint16) Flow {
	var b [maskedLen + ip6HeaderLen + udpHeaderLen]byte
	for i := range maskedLen {
		b[i] = 0xFF
	}
	f := Flow{is6: !dst.Is4()}
	ip := b[maskedLen:]
	udp := ip[ip6HeaderLen:]
	if f.is6 {
		copy(ip, []byte{0x6F, 0xFF, 0xFF, 0xFF, 0, 0, protocolUDP, 0xFF})
		copy(ip[8:], src[:])
		copy(ip[24:], dst[:])
	} else {
		copy(ip, []byte{0x45, 0xFF, 0, 0, 0, 0, dontFragment >> 8, 0, 0xFF, protocolUDP, 0xFF, 0xFF})
		copy(ip[12:], src[12:])
		copy(ip[16:], dst[12:])
		udp = ip[ip4HeaderLen:]
	}
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], Port)
	binary.BigEndian.PutUint16(udp[6:], 0xFFFF)
	n := len(b) - len(udp) + udpHeaderLen
	f.state = feed(0xFFFFFFFF, b[:n])
	return f
}

// ICRC returns the ICRC of b, a packet without its ICRC. id is the
// identification in the IPv4 header; it is ignored for IPv6. Linux uses the
// identification 0 for packets of an unconnected socket with path MTU discovery
// (IP_PMTUDISC_DO). If several packets are sent as one message (UDP_SEGMENT),
// it uses k for the packet with the index k.
func (f Flow) ICRC(b []byte, id uint16) uint32 {
	size := uint16(udpHeaderLen + len(b) + icrcLen)
	state := f.state ^ udpLength.of(size)
	if f.is6 {
		state ^= ip6Length.of(size)
	} else {
		state ^= ip4Length.of(ip4HeaderLen+size) ^ ip4ID.of(id)
	}
	state = feed(state, []byte{b[0], b[1], b[2], b[3], 0xFF})
	return crc32.Update(^state, crc32.IEEETable, b[5:])
}

// Seal writes the ICRC to the last four bytes of b, a packet with room for it.
// id is the identification in the IPv4 header, as for ICRC.
func (f Flow) Seal(b []byte, id uint16) {
	n := len(b) - icrcLen
	binary.LittleEndian.PutUint32(b[n:], f.ICRC(b[:n], id))
}

// Renumber changes the ICRC in the last four bytes of b from the one for the
// IPv4 identification id to the one for 0.
func Renumber(b []byte, id uint16) {
	n := len(b) - icrcLen
	added := ip4ID.of(id)
	for range n {
		added = crc32.IEEETable[byte(added)] ^ added>>8
	}
	binary.LittleEndian.PutUint32(b[n:], binary.LittleEndian.Uint32(b[n:])^added)
}

// Verify reports whether the ICRC in the last four bytes of b is right. With
// IPv4, the ICRC depends on the identification, which a socket does not report.
// So Verify looks for an identification for which the ICRC is right. There is
// at most one. Verify returns it, or false if there is none. One in 65,536
// random ICRCs passes; no packet with a single wrong bit does. Verify is
// fastest if the identification is likely.
func (f Flow) Verify(b []byte, likely uint16) (id uint16, ok bool) {
	n := len(b) - icrcLen
	if n < bthLen || n%4 != 0 || n >= maxLen {
		return 0, false
	}
	if f.is6 {
		likely = 0
	}
	wrong := f.ICRC(b[:n], likely) ^ binary.LittleEndian.Uint32(b[n:])
	if wrong == 0 || f.is6 {
		return likely, wrong == 0
	}
	// If the packet is intact, wrong is what the bits have added in which the
	// identification differs from likely. Trace that back to the end of the
	// identification field, where it must be a state that two bytes produce
	// from 0.
	state := multiply(wrong, multiply(undoLow[n/4%undoLen], undoHigh[n/4/undoLen]))
	table := crc32.IEEETable
	// Each step of the CRC shifts the state by a byte and adds an entry of the
	// table. So the highest byte identifies the second byte's entry. The state
	// without that entry is, but for the lowest byte, the first byte's entry.
	second := entryOf[state>>24]
	before := (state ^ table[second]) << 8
	first := entryOf[before>>24]
	if before != table[first]&^0xFF {
		return 0, false
	}
	return likely ^ (uint16(first)<<8 | uint16(second^byte(table[first]))), true
}

// feed returns the state of the CRC after the bytes b. state is the state
// before them.
func feed(state uint32, b []byte) uint32 {
	for _, x := range b {
		state = crc32.IEEETable[byte(state)^x] ^ state>>8
	}
	return state
}

// field has, for each byte of a two-byte header field and each value of that
// byte, the value that is added to the state after the UDP header.
type field [2][256]uint32

// Header fields that differ between the packets of a flow.
var (
	udpLength = newField(udpHeaderLen - 6)
	ip6Length = newField(udpHeaderLen + ip6HeaderLen - 6)
	ip4Length = newField(udpHeaderLen + ip4HeaderLen - 4)
	ip4ID     = newField(behindID)
)

const behindID = udpHeaderLen + ip4HeaderLen - 6

// newField returns the table for a two-byte header field. behind is the number
// of bytes from the end of the field to the end of the UDP header.
func newField(behind int) *field {
	f := new(field)
	var b [2 + ip6HeaderLen + udpHeaderLen]byte
	for i := range f {
		for v := range f[i] {
			if rest := v & (v - 1); rest != 0 {
				f[i][v] = f[i][rest] ^ f[i][v^rest]
				continue
			}
			b[i] = byte(v)
			f[i][v] = feed(0, b[:2+behind])
		}
		b[i] = 0
	}
	return f
}

// of returns the value that is added to the state if the field's content is v.
func (f *field) of(v uint16) uint32 { return f[0][v>>8] ^ f[1][byte(v)] }

const (
	undoLen = 128
	maxLen  = undoLen * undoLen * 4
)

// Factors that undo steps of the CRC: element i of undoLow undoes 4i + behindID
// bytes, and element i of undoHigh 4i * undoLen bytes.
var (
	undoLow  [undoLen]uint32
	undoHigh [undoLen]uint32
)

// entryOf maps the highest byte of an entry of crc32.IEEETable to its index.
var entryOf [256]uint8

func init() {
	for i, entry := range crc32.IEEETable {
		entryOf[entry>>24] = uint8(i)
	}
	undo := func(n int) uint32 {
		state := uint32(1) << 31
		for range 8 * n {
			state = state<<1 ^ (crc32.IEEE<<1&0xFFFFFFFF|1)&-(state>>31)
		}
		return state
	}
	undoLow[0], undoHigh[0] = undo(behindID), 1<<31
	word, row := undo(4), undo(4*undoLen)
	for i := 1; i < undoLen; i++ {
		undoLow[i] = multiply(undoLow[i-1], word)
		undoHigh[i] = multiply(undoHigh[i-1], row)
	}
}

// multiply returns the product of two states modulo the CRC's polynomial. The
// states stand for polynomials: bit 31 is the coefficient of the lowest power.
func multiply(a, b uint32) uint32 {
	product := uint32(0)
	for ; a != 0; a <<= 1 {
		product ^= b & -(a >> 31)
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
