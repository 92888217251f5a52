// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// renamed is the type that a typedef stands for. If it is a function type,
// params holds the names of the parameters.
type renamed struct {
	*api.Type
	params []string
}

// isRenamed reports whether t is a typedef that the scanner replaces by the
// type it stands for. It does not replace typedefs of libc that the bindings
// know by name.
func (s *scanner) isRenamed(t *cc.TypeSpecifier) bool {
	name := t.Token.SrcStr()
	return t.Case == cc.TypeSpecifierTypeName && !isLibcs(name) && s.typedefs[name] != nil
}

func isLibcs(name string) bool {
	_, isOpaque := layout.Opaque(name)
	return isOpaque || layout.IsScalar(name) || slices.Contains(libcTypes, name)
}

// qualified returns t with qualifiers added. For an array, they belong to the
// elements. For a function, they have no meaning.
func qualified(t *api.Type, by api.Type) *api.Type {
	if t.Kind == api.Func || !by.Const && !by.Volatile {
		return t
	}
	c := *t
	if t.Kind == api.Array {
		c.Elem = qualified(t.Elem, by)
	} else {
		c.Const, c.Volatile = t.Const || by.Const, t.Volatile || by.Volatile
	}
	return &c
}

// bare returns the name of the typedef in which a struct, union or enum without
// a tag is defined, and makes it the type's name. It returns "" if there is
// none.
func (s *scanner) bare(l *cc.InitDeclaratorList, sp *specifiers) string {
	if !sp.typedef || sp.base != nil || sp.aggregate == nil && sp.enum == nil {
		return ""
	}
	for ; l != nil; l = l.InitDeclaratorList {
		d := l.InitDeclarator.Declarator
		if d.Pointer != nil || d.DirectDeclarator.Case != cc.DirectDeclaratorIdent {
			continue
		}
		kind := "enum"
		if sp.aggregate != nil {
			kind = keyword(sp.aggregate)
		}
		name := d.Name()
		s.name(d, name)
		if old, ok := s.kinds[name]; ok {
			s.reject(d, "%s is a tag of %s and the name of an unnamed %s", name, old, kind)
		}
		s.kinds[name] = "a typedef of " + kind
		if sp.qualified.Const || sp.qualified.Volatile { // the name itself would mean that
			s.reject(d, "const or volatile before an unnamed %s cannot be represented", kind)
		}
		sp.base = &api.Type{Name: kind + " " + name, Bare: true}
		return name
	}
	return ""
}

// typedef handles a typedef. It adds the typedef to the snapshot if its header
// is bound.
func (s *scanner) typedef(l *cc.InitDeclaratorList, header string, bound bool, sp *specifiers) {
	d := l.InitDeclarator.Declarator
	name := d.Name()
	if bound {
		s.attributes(l.AttributeSpecifierList)
		s.attributes(l.InitDeclarator.AttributeSpecifierList)
	}
	t, params := s.declared(d, sp.base)
	if isLibcs(name) {
		if !s.isSystem(d) && !(t.Kind == api.Named && layout.SameScalar(name, t.Name)) {
			s.reject(d, "%s is a typedef of libc", name)
		}
		return
	}
	if old := s.typedefs[name]; old != nil {
		if old.String() != t.String() {
			s.reject(d, "the typedef %s already stands for another type", name)
		}
		return
	}
	if len(params) == 0 && t == sp.base {
		params = sp.params
	}
	s.typedefs[name] = &renamed{t, params}
	if !bound {
		return
	}
	s.declare(d, name)
	if _, tag, ok := strings.Cut(t.Name, " "); ok && t.Kind == api.Named && tag == name {
		return // the struct, union or enum has this name as its tag
	}
	if !t.IsVoid() {
		s.representable(d, name, t)
	}
	s.api.Typedefs = append(s.api.Typedefs, &api.Typedef{Name: name, Header: header, Type: t})
}
