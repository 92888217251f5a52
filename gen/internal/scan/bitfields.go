// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// bitField returns a bit-field, which may have no name.
func (s *scanner) bitField(sd *cc.StructDeclarator, sp *specifiers, rules api.Rules) *api.Member {
	if sp.base == nil {
		s.reject(sd, "a bit-field of a type without a name cannot be represented")
		return nil
	}
	m := &api.Member{Type: sp.base, Bits: new(api.Bits), Rules: rules}
	if sd.Declarator != nil {
		m.Name = sd.Declarator.Name()
		m.Type, _ = s.declared(sd.Declarator, sp.base)
	}
	if m.Type == nil || m.Type.Kind != api.Named {
		s.reject(sd, "a bit-field of this type cannot be represented")
		return nil
	}
	bits := int64(32) // number of bits of an enum
	if _, ok := m.Type.Tag("enum"); !ok {
		bits = 8 * layout.ScalarSize(m.Type.Name)
	}
	width := s.constantOf(sd.ConstantExpression)
	switch {
	case bits == 0 || layout.IsFloat(m.Type.Name):
		s.reject(sd, "a bit-field of type %s cannot be represented", m.Type)
		return nil
	case !width.known || width.value < 0 || width.value > bits || width.value == 0 && m.Name != "" || m.Type.Name == "_Bool" && width.value > 1:
		s.reject(sd, "a bit-field of this width cannot be represented")
		return nil
	case m.Aligned > 0:
		s.reject(sd, "an aligned bit-field cannot be represented")
		return nil
	}
	m.Bits.Width = width.value
	return m
}
