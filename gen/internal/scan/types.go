package scan

import (
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// specifiers is what precedes a declarator: a base type, or a struct, union or
// enum written in place.
type specifiers struct {
	base      *api.Type
	aggregate *cc.StructOrUnionSpecifier
	enum      *cc.EnumSpecifier
	words     []string
}

func (sp *specifiers) add(s *scanner, t *cc.TypeSpecifier) {
	switch {
	case t.StructOrUnionSpecifier != nil:
		u := t.StructOrUnionSpecifier
		if u.Case == cc.StructOrUnionSpecifierDef {
			sp.aggregate = u
		}
		if tag := tagOf(u); tag != "" {
			sp.words = append(sp.words, keyword(u)+" "+tag)
		}
	case t.EnumSpecifier != nil:
		if t.EnumSpecifier.Case == cc.EnumSpecifierDef {
			sp.enum = t.EnumSpecifier
		}
		if tag := enumTag(t.EnumSpecifier); tag != "" {
			sp.words = append(sp.words, "enum "+tag)
		}
	case t.Case == cc.TypeSpecifierTypeofExpr, t.Case == cc.TypeSpecifierTypeofType, t.Case == cc.TypeSpecifierAtomic:
		s.reject(t, "a type written as %q cannot be represented", cc.NodeSource(t))
		sp.words = append(sp.words, "void") // to go on with
	default:
		sp.words = append(sp.words, t.Token.SrcStr())
	}
}

func (sp *specifiers) finish(isConst bool) {
	if len(sp.words) > 0 {
		sp.base = &api.Type{Name: plainName(sp.words), Const: isConst}
	}
}

// plainName gives each of C's spellings of an integer type one name.
func plainName(words []string) string {
	name := strings.Join(words, " ")
	if short, ok := strings.CutSuffix(name, " int"); ok && short != "unsigned" {
		return short
	}
	if name == "unsigned" {
		return "unsigned int"
	}
	return name
}

func (s *scanner) declarationSpecifiers(n *cc.DeclarationSpecifiers) *specifiers {
	sp := new(specifiers)
	isConst := false
	for ; n != nil; n = n.DeclarationSpecifiers {
		switch {
		case n.TypeSpecifier != nil:
			sp.add(s, n.TypeSpecifier)
		case n.TypeQualifier != nil:
			isConst = isConst || n.TypeQualifier.Case == cc.TypeQualifierConst
			s.attributes(n.TypeQualifier.AttributeSpecifierList, "")
		}
		s.attributes(n.AttributeSpecifierList, "")
	}
	sp.finish(isConst)
	return sp
}

func (s *scanner) memberSpecifiers(n *cc.SpecifierQualifierList) *specifiers {
	sp := new(specifiers)
	isConst := false
	for ; n != nil; n = n.SpecifierQualifierList {
		switch {
		case n.TypeSpecifier != nil:
			sp.add(s, n.TypeSpecifier)
		case n.TypeQualifier != nil:
			isConst = isConst || n.TypeQualifier.Case == cc.TypeQualifierConst
			s.attributes(n.TypeQualifier.AttributeSpecifierList, "(8)")
		}
		s.attributes(n.AttributeSpecifierList, "(8)")
	}
	sp.finish(isConst)
	return sp
}

func pointers(p *cc.Pointer, t *api.Type) *api.Type {
	for ; p != nil; p = p.Pointer {
		t = &api.Type{Kind: api.Pointer, Elem: t}
		for q := p.TypeQualifiers; q != nil; q = q.TypeQualifiers {
			if q.TypeQualifier != nil && q.TypeQualifier.Case == cc.TypeQualifierConst {
				t.Const = true
			}
		}
	}
	return t
}

// declared returns the type that declarator d gives to its name, and the
// names of the parameters if it declares a function.
func (s *scanner) declared(d *cc.Declarator, base *api.Type) (*api.Type, []string) {
	if base == nil {
		s.reject(d, "a type without a name cannot be represented here")
		base = &api.Type{Name: "void"} // to go on with
	}
	return s.direct(d.DirectDeclarator, pointers(d.Pointer, base))
}

func (s *scanner) direct(d *cc.DirectDeclarator, t *api.Type) (*api.Type, []string) {
	switch d.Case {
	case cc.DirectDeclaratorIdent:
		return t, nil
	case cc.DirectDeclaratorDecl:
		return s.declared(d.Declarator, t)
	case cc.DirectDeclaratorArr:
		return s.direct(d.DirectDeclarator, s.array(d, d.AssignmentExpression, t))
	case cc.DirectDeclaratorFuncParam:
		fn, names := s.function(d.ParameterTypeList, t)
		outer, inner := s.direct(d.DirectDeclarator, fn)
		if outer == fn {
			return fn, names
		}
		return outer, inner
	case cc.DirectDeclaratorFuncIdent:
		return s.direct(d.DirectDeclarator, &api.Type{Kind: api.Func, Elem: t})
	}
	s.reject(d, "a declarator written as %q cannot be represented", cc.NodeSource(d))
	return t, nil
}

func (s *scanner) array(n cc.Node, length cc.ExpressionNode, elem *api.Type) *api.Type {
	t := &api.Type{Kind: api.Array, Elem: elem}
	if length == nil {
		return t
	}
	switch v := length.Value().(type) {
	case cc.Int64Value:
		t.Len = int64(v)
	case cc.UInt64Value:
		t.Len = int64(v)
	default:
		s.reject(n, "the array length %q is not constant", cc.NodeSource(length))
	}
	return t
}

// sized rejects flexible arrays, also those with a length of 0.
func (s *scanner) sized(n cc.Node, t *api.Type) {
	for ; t != nil; t = t.Elem {
		if t.Kind == api.Array && t.Len == 0 {
			s.reject(n, "a flexible array cannot be represented")
		}
	}
}

func (s *scanner) function(list *cc.ParameterTypeList, result *api.Type) (*api.Type, []string) {
	t := &api.Type{Kind: api.Func, Elem: result}
	if list == nil {
		return t, nil
	}
	t.Variadic = list.Case == cc.ParameterTypeListVar
	var names []string
	for l := list.ParameterList; l != nil; l = l.ParameterList {
		p := l.ParameterDeclaration
		sp := s.declarationSpecifiers(p.DeclarationSpecifiers)
		param, name := sp.base, ""
		switch {
		case sp.base == nil && p.Declarator == nil:
			s.reject(p, "a type without a name cannot be represented here")
			continue
		case p.Declarator != nil:
			param, _ = s.declared(p.Declarator, sp.base)
			name = p.Declarator.Name()
		case p.AbstractDeclarator != nil:
			param = s.abstract(p.AbstractDeclarator, sp.base)
		}
		if param.Kind == api.Array { // as C adjusts it
			param = &api.Type{Kind: api.Pointer, Elem: param.Elem}
		}
		s.sized(p, param)
		t.Params = append(t.Params, param)
		names = append(names, name)
	}
	if len(t.Params) == 1 && t.Params[0].IsVoid() {
		return &api.Type{Kind: api.Func, Elem: result}, nil
	}
	return t, names
}

func (s *scanner) abstract(d *cc.AbstractDeclarator, base *api.Type) *api.Type {
	t := pointers(d.Pointer, base)
	if d.DirectAbstractDeclarator != nil {
		s.reject(d, "an unnamed parameter written as %q cannot be represented", cc.NodeSource(d))
	}
	return t
}

func tagOf(u *cc.StructOrUnionSpecifier) string {
	if u.Token.SrcStr() == "{" {
		return ""
	}
	return u.Token.SrcStr()
}

func keyword(u *cc.StructOrUnionSpecifier) string { return u.StructOrUnion.Token.SrcStr() }

func enumTag(e *cc.EnumSpecifier) string {
	if t := e.Token2.SrcStr(); t != "{" {
		return t
	}
	return ""
}
