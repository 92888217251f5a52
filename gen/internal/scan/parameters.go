// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"math"
	"slices"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

func (s *scanner) array(n cc.Node, length cc.ExpressionNode, elem *api.Type) *api.Type {
	t := &api.Type{Kind: api.Array, Elem: elem}
	if length == nil {
		s.unsized[t] = true
		return t
	}
	v := s.constantOf(length)
	if !v.known {
		if n != s.unread {
			s.reject(n, "the array length %q is not constant", cc.NodeSource(length))
		}
		v.value = 1 // any length, to find further problems
	}
	if t.Len = v.value; t.Len < 0 && integers[v.kind].unsigned {
		t.Len = math.MaxInt64
	}
	s.corrected = s.corrected || v != s.constants.ccs(length)
	return t
}

// maxSize is the maximum size of an array or struct in bytes. It keeps sums
// from overflowing.
const maxSize = 1 << 30

// sized rejects flexible arrays, arrays of length 0, and arrays that are larger
// than maxSize.
func (s *scanner) sized(n cc.Node, t *api.Type) {
	elements := int64(1)
	for ; t != nil; t = t.Elem {
		if t.Kind != api.Array {
			elements = 1
			continue
		}
		switch {
		case t.Len == 0:
			s.reject(n, "a flexible array cannot be represented")
		case t.Len < 0 || t.Len > maxSize/elements:
			s.reject(n, "an array of %d elements cannot be represented", t.Len)
			return
		default:
			elements *= t.Len
		}
	}
}

// prototype returns the type of a function with the parameters in list, and
// their names.
func (s *scanner) prototype(n cc.Node, list *cc.ParameterTypeList, result *api.Type) (*api.Type, []string) {
	t := &api.Type{Kind: api.Func, Elem: result}
	if list == nil {
		s.reject(n, "a function without a prototype cannot be represented")
		return t, nil
	}
	t.Variadic = list.Case == cc.ParameterTypeListVar
	var names []string
	for l := list.ParameterList; l != nil; l = l.ParameterList {
		p := l.ParameterDeclaration
		param, name := s.parameter(p)
		if param == nil {
			continue
		}
		if param.IsVoid() && name == "" && list.ParameterList.ParameterList == nil && !t.Variadic {
			break // (void)
		}
		if param.IsVoid() {
			s.reject(p, "a parameter has the type void")
		}
		if name != "" && slices.Contains(names, name) {
			s.reject(p, "two parameters have the name %s", name)
		}
		s.name(p, name)
		t.Params = append(t.Params, param)
		names = append(names, name)
	}
	return t, names
}

func (s *scanner) parameter(p *cc.ParameterDeclaration) (t *api.Type, name string) {
	sp := s.declarationSpecifiers(p.DeclarationSpecifiers)
	s.attributes(p.AttributeSpecifierList)
	switch {
	case sp.base == nil && p.Declarator == nil:
		s.reject(p, "a type without a name cannot be represented here")
		return nil, ""
	case sp.base != nil && (sp.aggregate != nil || sp.enum != nil):
		s.reject(p, "a type cannot be defined here")
	}
	t = sp.base
	around := s.unread
	s.unread = adjusted(p)
	defer func() { s.unread = around }()
	switch {
	case p.Declarator != nil:
		t, _ = s.declared(p.Declarator, sp.base)
		name = p.Declarator.Name()
	case p.AbstractDeclarator != nil:
		t = s.abstract(p.AbstractDeclarator, sp.base)
	}
	switch t.Kind { // C turns these into pointers
	case api.Array:
		t = &api.Type{Kind: api.Pointer, Elem: t.Elem}
	case api.Func:
		t = &api.Type{Kind: api.Pointer, Elem: t}
	}
	s.sized(p, t)
	return t, name
}

// adjusted returns the part of a parameter's declarator with the length of an
// array that C turns into a pointer, as in int v[n]. C does not need the
// length, which may depend on other parameters. The result is nil if there is
// none.
func adjusted(p *cc.ParameterDeclaration) (array cc.Node) {
	if p.Declarator == nil && p.AbstractDeclarator == nil {
		return nil
	}
	if p.Declarator == nil {
		d := p.AbstractDeclarator
		for dd := d.DirectAbstractDeclarator; dd != nil; dd = dd.DirectAbstractDeclarator {
			if array = dd; dd.Case == cc.DirectAbstractDeclaratorDecl { // as in int (*)[n]
				return nil
			}
		}
		return array
	}
	for dd := p.Declarator.DirectDeclarator; dd.Case != cc.DirectDeclaratorIdent; {
		if dd.Case != cc.DirectDeclaratorDecl {
			array, dd = dd, dd.DirectDeclarator
			continue
		}
		if dd.Declarator.Pointer != nil { // as in int (*v)[n]
			array = nil
		}
		dd = dd.Declarator.DirectDeclarator
	}
	return array
}

// abstract returns the type of an unnamed parameter.
func (s *scanner) abstract(d *cc.AbstractDeclarator, base *api.Type) *api.Type {
	t := s.pointers(d.Pointer, base)
	for dd := d.DirectAbstractDeclarator; dd != nil; dd = dd.DirectAbstractDeclarator {
		switch dd.Case {
		case cc.DirectAbstractDeclaratorDecl:
			return s.abstract(dd.AbstractDeclarator, t)
		case cc.DirectAbstractDeclaratorArr:
			t = s.array(dd, dd.AssignmentExpression, t)
		case cc.DirectAbstractDeclaratorFunc:
			t, _ = s.prototype(dd, dd.ParameterTypeList, t)
		default:
			s.reject(d, "an unnamed parameter written as %q cannot be represented", cc.NodeSource(d))
		}
	}
	return t
}
