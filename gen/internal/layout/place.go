// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// place sets the offsets of the members of a struct or union, and returns its
// size. It counts in bits, because bit-fields share bytes.
func (e *Engine) place(members []*api.Member, isUnion bool, rules api.Rules) (Size, error) {
	total := Size{Align: 1}
	var end, largest int64 // in bits
	for _, m := range members {
		size, err := e.OfMember(m)
		if err != nil {
			return Size{}, fmt.Errorf("member %q: %w", m.Name, err)
		}
		if isUnion {
			end = 0
		}
		if m.Bits != nil {
			size.Align = e.placeBits(m, size, rules, &end)
		} else {
			size.Align = memberAlign(m, size.Align, rules)
			m.Offset = align(ceil(end), size.Align)
			end = 8 * (m.Offset + size.Size)
		}
		total.Align = max(total.Align, size.Align)
		largest = max(largest, end)
	}
	total.Align = max(total.Align, rules.Aligned)
	total.Size = align(ceil(largest), total.Align)
	return total, nil
}

// memberAlign returns the alignment of a member in a struct with the given
// rules. natural is the alignment of the member's type.
func memberAlign(m *api.Member, natural int64, rules api.Rules) int64 {
	if rules.Pack > 0 {
		natural = min(natural, rules.Pack)
	}
	if m.Type == nil { // m.Rules are about the members of the nested struct
		return natural
	}
	if m.Pack > 0 {
		natural = min(natural, m.Pack)
	}
	natural = max(natural, m.Aligned)
	if rules.Pragma { // #pragma pack also limits the attribute aligned
		natural = min(natural, rules.Pack)
	}
	return natural
}

// placeBits places a bit-field at or after the bit *end, and sets *end to the
// bit after it. It returns the alignment that the struct needs because of the
// bit-field.
func (e *Engine) placeBits(m *api.Member, size Size, rules api.Rules, end *int64) int64 {
	packed := rules.Pack > 0 || m.Pack > 0
	unit := size.Align
	if rules.Pack > 0 {
		unit = min(unit, rules.Pack)
	}
	if m.Pack > 0 {
		unit = min(unit, m.Pack)
	}
	switch bits := 8 * unit; {
	case m.Bits.Width == 0: // the next member begins in another unit
		*end = align(*end, 8*size.Align)
		unit = size.Align
	case !packed && ((*end)%bits+m.Bits.Width+bits-1)/bits > size.Size/unit:
		*end = align(*end, bits)
	}
	m.Bits.At, m.Offset = *end, *end/8
	*end += m.Bits.Width
	if m.Name == "" && !e.arch.Unnamed {
		return 1
	}
	return unit
}

func ceil(bits int64) int64 { return (bits + 7) / 8 }
