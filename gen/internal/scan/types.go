// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// specifiers holds the part of a declaration before the declarators: a type, or
// the definition of a struct, union or enum.
type specifiers struct {
	base      *api.Type
	renamed   *api.Type // type of the typedef, if the specifiers name one
	params    []string  // names of its parameters, if it is a function
	rules     api.Rules // rules of a member, from attributes among the specifiers
	aggregate *cc.StructOrUnionSpecifier
	enum      *cc.EnumSpecifier
	tagged    bool // whether the specifiers name a struct, union or enum by its tag
	static    bool
	typedef   bool
	qualified api.Type // has the qualifiers alone
	words     []string
}

func (s *scanner) specifier(sp *specifiers, t *cc.TypeSpecifier) {
	switch {
	case t.StructOrUnionSpecifier != nil:
		u := t.StructOrUnionSpecifier
		if u.Case == cc.StructOrUnionSpecifierDef {
			sp.aggregate = u
		}
		s.tag(sp, u, keyword(u), tagOf(u))
	case t.EnumSpecifier != nil:
		if t.EnumSpecifier.Case == cc.EnumSpecifierDef {
			sp.enum = t.EnumSpecifier
		}
		s.tag(sp, t.EnumSpecifier, "enum", enumTag(t.EnumSpecifier))
	case t.Case == cc.TypeSpecifierTypeofExpr, t.Case == cc.TypeSpecifierTypeofType, t.Case == cc.TypeSpecifierAtomic:
		s.reject(t, "a type written as %q cannot be represented", cc.NodeSource(t))
		sp.words = append(sp.words, "void") // any type, to find further problems
	case s.isRenamed(t):
		td := s.typedefs[t.Token.SrcStr()]
		sp.renamed, sp.params = td.Type, td.params
	default:
		sp.words = append(sp.words, strings.Trim(t.Token.SrcStr(), "_"))
		if !isArithmetic(sp.words[len(sp.words)-1]) {
			sp.words[len(sp.words)-1] = t.Token.SrcStr()
		}
	}
}

// tag records the tag of a struct, union or enum. tag may be empty.
func (s *scanner) tag(sp *specifiers, n cc.Node, kind, tag string) {
	if tag == "" {
		return
	}
	s.name(n, tag)
	if old, ok := s.kinds[tag]; ok && old != kind {
		s.reject(n, "%s is a tag of both %s and %s", tag, old, kind)
	}
	s.kinds[tag] = kind
	sp.tagged = true
	sp.words = append(sp.words, kind+" "+tag)
}

func (s *scanner) memberQualifier(sp *specifiers, q *cc.TypeQualifier) {
	if q.Case == cc.TypeQualifierAtomic {
		s.reject(q, "_Atomic cannot be represented")
	}
	sp.rules = s.layoutAttributes(sp.rules, q.AttributeSpecifierList)
}

func (s *scanner) qualifier(sp *specifiers, q *cc.TypeQualifier) {
	switch q.Case {
	case cc.TypeQualifierAtomic:
		s.reject(q, "_Atomic cannot be represented")
	default:
		sp.qualify(q)
	}
	s.attributes(q.AttributeSpecifierList)
}

func (sp *specifiers) qualify(q *cc.TypeQualifier) {
	switch q.Case {
	case cc.TypeQualifierConst:
		sp.qualified.Const = true
	case cc.TypeQualifierVolatile:
		sp.qualified.Volatile = true
	}
}

func (sp *specifiers) finish() *specifiers {
	if sp.renamed != nil && len(sp.words) == 0 {
		sp.base = qualified(sp.renamed, sp.qualified)
	} else if len(sp.words) > 0 {
		sp.base = qualified(&api.Type{Name: plainName(sp.words)}, sp.qualified)
	}
	return sp
}

var arithmetic = []string{"float", "double", "signed", "unsigned", "char", "short", "int", "long"}

func isArithmetic(word string) bool { return slices.Contains(arithmetic, word) }

// plainName returns the name of a type. It returns the same name for all of C's
// spellings of an arithmetic type.
func plainName(words []string) string {
	n := map[string]int{}
	for _, word := range words {
		if !isArithmetic(word) {
			return strings.Join(words, " ")
		}
		n[word]++
	}
	size := "int"
	switch {
	case n["float"] > 0:
		return "float"
	case n["double"] > 0:
		return strings.TrimSpace(strings.Repeat("long ", n["long"]) + "double")
	case n["char"] > 0:
		size = "char"
	case n["short"] > 0:
		size = "short"
	case n["long"] > 0:
		size = strings.TrimSpace(strings.Repeat("long ", n["long"]))
	}
	switch {
	case n["unsigned"] > 0:
		return "unsigned " + size
	case n["signed"] > 0 && size == "char":
		return "signed char"
	}
	return size
}

func (s *scanner) declarationSpecifiers(n *cc.DeclarationSpecifiers) *specifiers {
	sp := new(specifiers)
	for ; n != nil; n = n.DeclarationSpecifiers {
		switch {
		case n.TypeSpecifier != nil:
			s.specifier(sp, n.TypeSpecifier)
		case n.TypeQualifier != nil:
			s.qualifier(sp, n.TypeQualifier)
		case n.AlignmentSpecifier != nil:
			s.reject(n, "_Alignas cannot be represented")
		case n.StorageClassSpecifier != nil:
			s.storage(sp, n.StorageClassSpecifier)
		}
		s.attributes(n.AttributeSpecifierList)
	}
	return sp.finish()
}

func (s *scanner) storage(sp *specifiers, n *cc.StorageClassSpecifier) {
	switch n.Case {
	case cc.StorageClassSpecifierStatic:
		sp.static = true
	case cc.StorageClassSpecifierTypedef:
		sp.typedef = true
	case cc.StorageClassSpecifierExtern:
	default:
		s.reject(n, "the storage class %s cannot be represented", n.Token.SrcStr())
	}
}

func (s *scanner) memberSpecifiers(n *cc.SpecifierQualifierList) *specifiers {
	sp := new(specifiers)
	for ; n != nil; n = n.SpecifierQualifierList {
		switch {
		case n.TypeSpecifier != nil:
			s.specifier(sp, n.TypeSpecifier)
		case n.TypeQualifier != nil:
			sp.qualify(n.TypeQualifier)
			s.memberQualifier(sp, n.TypeQualifier)
		case n.AlignmentSpecifier != nil:
			s.reject(n, "_Alignas cannot be represented")
		}
		sp.rules = s.layoutAttributes(sp.rules, n.AttributeSpecifierList)
	}
	return sp.finish()
}

func (s *scanner) pointers(p *cc.Pointer, t *api.Type) *api.Type {
	for ; p != nil; p = p.Pointer {
		if p.Case == cc.PointerBlock {
			s.reject(p, "a block cannot be represented")
		}
		sp := new(specifiers)
		for q := p.TypeQualifiers; q != nil; q = q.TypeQualifiers {
			if q.TypeQualifier != nil {
				s.qualifier(sp, q.TypeQualifier)
			}
		}
		t = qualified(&api.Type{Kind: api.Pointer, Elem: t}, sp.qualified)
	}
	return t
}

// declared returns the type of the name that d declares, and the names of the
// parameters if that is a function.
func (s *scanner) declared(d *cc.Declarator, base *api.Type) (*api.Type, []string) {
	if base == nil {
		s.reject(d, "a type without a name cannot be represented here")
		base = &api.Type{Name: "void"} // any type, to find further problems
	}
	return s.direct(d.DirectDeclarator, s.pointers(d.Pointer, base))
}

func (s *scanner) direct(d *cc.DirectDeclarator, t *api.Type) (*api.Type, []string) {
	switch d.Case {
	case cc.DirectDeclaratorIdent:
		return t, nil
	case cc.DirectDeclaratorDecl:
		return s.declared(d.Declarator, t)
	case cc.DirectDeclaratorArr, cc.DirectDeclaratorStaticArr, cc.DirectDeclaratorArrStatic:
		return s.direct(d.DirectDeclarator, s.array(d, d.AssignmentExpression, t))
	case cc.DirectDeclaratorFuncParam:
		fn, names := s.prototype(d, d.ParameterTypeList, t)
		outer, inner := s.direct(d.DirectDeclarator, fn)
		if outer == fn {
			return fn, names
		}
		return outer, inner
	case cc.DirectDeclaratorFuncIdent:
		s.reject(d, "a function without a prototype cannot be represented")
		return s.direct(d.DirectDeclarator, &api.Type{Kind: api.Func, Elem: t})
	}
	s.reject(d, "a declarator written as %q cannot be represented", cc.NodeSource(d))
	return t, nil
}

func tagOf(u *cc.StructOrUnionSpecifier) string {
	if u.Token.SrcStr() == "{" {
		return ""
	}
	return u.Token.SrcStr()
}

func keyword(u *cc.StructOrUnionSpecifier) string { return u.StructOrUnion.Token.SrcStr() }
