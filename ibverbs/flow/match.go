// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"net"
	"net/netip"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Match matches a field of a packet's header if it equals Value in the bits of
// Mask. The zero value matches everything. Most devices accept only masks of
// all bits or none. Numbers are in host byte order.
type Match[T uint8 | uint16 | uint32 | MAC] struct{ Value, Mask T }

// Exact returns a Match for fields that equal the value in all bits.
func Exact[T uint8 | uint16 | uint32 | MAC](value T) Match[T] {
	m := Match[T]{Value: value}
	mask := bytesOf(&m.Mask)
	for i := range mask {
		mask[i] = 0xff
	}
	return m
}

// check returns an error if Value has bits outside Mask, as when the mask was
// forgotten. field is the field's name in the error.
func (m Match[T]) check(field string) error {
	value, mask := bytesOf(&m.Value), bytesOf(&m.Mask)
	for i := range value {
		if value[i]&^mask[i] != 0 {
			return cerr.Invalid("%s is %v, which has bits outside the mask %v", field, m.Value, m.Mask)
		}
	}
	return nil
}

// lowBits returns m for a field of only n bits, with the higher bits of the
// mask cleared.
func lowBits(m Match[uint32], n int) Match[uint32] {
	m.Mask &= 1<<n - 1
	return m
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// be16 and be32 convert a number to network byte order, for fields that C
// declares as plain numbers.
func be16(v uint16) uint16 { return uint16(libibverbs.NewBe16(v)) }

func be32(v uint32) uint32 { return uint32(libibverbs.NewBe32(v)) }

// addressBytes returns the address and the mask of a prefix as bytes, which are
// zero for the zero prefix. A valid m replaces the mask of the prefix's length.
// The prefix and m must be of the family whose addresses have size bytes.
func addressBytes(field string, p netip.Prefix, m netip.Addr, size int) (value, mask [16]byte, err error) {
	fits := func(a netip.Addr) bool { return a.BitLen() == size*8 && a.Zone() == "" }
	if p == (netip.Prefix{}) && !m.IsValid() {
		return value, mask, nil
	}
	if !p.IsValid() || !fits(p.Addr()) {
		return value, mask, cerr.Invalid("%s is %v, not a prefix of %d-bit addresses", field, p, size*8)
	}
	if !m.IsValid() {
		copy(value[:], p.Masked().Addr().AsSlice())
		copy(mask[:], net.CIDRMask(p.Bits(), size*8))
		return value, mask, nil
	}
	if !fits(m) {
		return value, mask, cerr.Invalid("%sMask is %v, not a %d-bit address without a zone", field, m, size*8)
	}
	copy(value[:], p.Addr().AsSlice())
	copy(mask[:], m.AsSlice())
	for i := range value {
		if value[i]&^mask[i] != 0 {
			return value, mask, cerr.Invalid("%s is %v, which has bits outside the mask %v", field, p.Addr(), m)
		}
	}
	return value, mask, nil
}

// ipv4Of is like addressBytes, but returns C's IPv4 addresses, in network byte
// order.
func ipv4Of(field string, p netip.Prefix, m netip.Addr) (value, mask uint32, err error) {
	v, b, err := addressBytes(field, p, m, 4)
	return *(*uint32)(unsafe.Pointer(&v)), *(*uint32)(unsafe.Pointer(&b)), err
}

// MAC is an Ethernet address. MAC(a) converts a [net.HardwareAddr] of 6 bytes.
type MAC [6]byte

// String returns the six bytes in hexadecimal, separated by colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }
