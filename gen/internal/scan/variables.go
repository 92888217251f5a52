// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// variable records a variable that the library exports.
func (s *scanner) variable(l *cc.InitDeclaratorList, header string, sp *specifiers) {
	d := l.InitDeclarator
	name := d.Declarator.Name()
	switch {
	case sp.static:
		s.reject(d, "the static variable %s cannot be represented", name)
		return
	case d.Initializer != nil:
		s.reject(d, "the variable %s is defined in the header", name)
		return
	case d.Asm != nil:
		s.reject(d.Asm, "the asm label of %s cannot be represented", name)
	}
	s.attributes(l.AttributeSpecifierList)
	s.attributes(d.AttributeSpecifierList)
	t, _ := s.declared(d.Declarator, sp.base)
	if t.Kind == api.Array && t.Len == 0 { // only the library knows the length
		s.sized(d, t.Elem)
	} else {
		s.sized(d, t)
	}
	s.representable(d, name, t)
	for _, v := range s.api.Variables {
		if v.Name == name {
			if v.Type.String() != t.String() {
				s.reject(d, "the variable %s has another type at %v", name, s.ordinary[name].Position())
			}
			return
		}
	}
	s.declare(d.Declarator, name)
	s.api.Variables = append(s.api.Variables, &api.Variable{Name: name, Header: header, Type: t})
}
