// SPDX-License-Identifier: Apache-2.0

package fabric

// attribute is the data of a management datagram. Its fields are at bit
// offsets: bit 0 is the most significant bit of the first byte. A datagram of
// subnet management uses only the first 64 bytes.
type attribute [192]byte

// smpSize is the length in bytes of an attribute of subnet management.
const smpSize = 64

// field returns the value of the field that begins at a bit offset and has
// width bits, at most 64.
func (a *attribute) field(offset, width int) uint64 {
	var v uint64
	for bit := offset; bit < offset+width; {
		// The number of bits to take from this byte.
		take := min(8-bit%8, offset+width-bit)
		part := a[bit/8] >> (8 - bit%8 - take) & (1<<take - 1)
		v = v<<take | uint64(part)
		bit += take
	}
	return v
}

// setField sets the field that begins at a bit offset and has width bits, at
// most 64.
func (a *attribute) setField(offset, width int, v uint64) {
	for bit := offset + width; bit > offset; {
		take := min((bit-1)%8+1, bit-offset)
		shift := (8 - bit%8) % 8
		mask := byte(1<<take-1) << shift
		a[(bit-1)/8] = a[(bit-1)/8]&^mask | byte(v)<<shift&mask
		v >>= take
		bit -= take
	}
}

// flag returns the bit at an offset.
func (a *attribute) flag(offset int) bool { return a.field(offset, 1) == 1 }

// u8 returns the field of at most 8 bits at an offset.
func (a *attribute) u8(offset, width int) uint8 { return uint8(a.field(offset, width)) }

// u16 returns the 16 bits at an offset.
func (a *attribute) u16(offset int) uint16 { return uint16(a.field(offset, 16)) }

// u32 returns the field of at most 32 bits at an offset.
func (a *attribute) u32(offset, width int) uint32 { return uint32(a.field(offset, width)) }

// u64 returns the 64 bits at an offset.
func (a *attribute) u64(offset int) uint64 { return a.field(offset, 64) }
