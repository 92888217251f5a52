package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// structure is a struct or union of the headers, whether or not it is needed.
type structure struct {
	*api.Struct
	node *cc.StructOrUnionSpecifier
	errs []error // why it cannot be represented
}

// aggregate notes a struct or union.
func (s *scanner) aggregate(header string, u *cc.StructOrUnionSpecifier) {
	tag := tagOf(u)
	if tag == "" {
		return // of a typedef; libc's only
	}
	name := keyword(u) + " " + tag
	if s.structs[name] != nil {
		return
	}
	st := &structure{Struct: &api.Struct{Name: name, Header: header}, node: u}
	s.structs[name] = st
	before := s.errs
	s.errs = nil
	st.Members = s.members(header, u)
	st.errs, s.errs = s.errs, before
	s.order = append(s.order, st)
}

func (s *scanner) members(header string, u *cc.StructOrUnionSpecifier) []*api.Member {
	s.attributes(u.AttributeSpecifierList, "")
	s.attributes(u.AttributeSpecifierList2, "")
	var out []*api.Member
	for l := u.StructDeclarationList; l != nil; l = l.StructDeclarationList {
		if l.StructDeclaration.Case != cc.StructDeclarationAssert {
			out = append(out, s.member(header, l.StructDeclaration)...)
		}
	}
	return out
}

// member returns the members that one declaration in a struct declares.
func (s *scanner) member(header string, d *cc.StructDeclaration) []*api.Member {
	s.attributes(d.AttributeSpecifierList, "(8)")
	sp := s.memberSpecifiers(d.SpecifierQualifierList)
	if sp.enum != nil {
		s.enum(header, sp.enum)
	}
	if sp.aggregate != nil && sp.base != nil {
		s.aggregate(header, sp.aggregate)
	}
	if d.StructDeclaratorList == nil && sp.aggregate != nil {
		return []*api.Member{s.inPlace("", header, sp)}
	}
	var out []*api.Member
	for l := d.StructDeclaratorList; l != nil; l = l.StructDeclaratorList {
		sd := l.StructDeclarator
		switch {
		case sd.Case == cc.StructDeclaratorBitField:
			s.reject(sd, "a bit-field cannot be represented")
		case sp.base != nil || sp.aggregate == nil:
			t, _ := s.declared(sd.Declarator, sp.base)
			s.sized(sd, t)
			out = append(out, &api.Member{Name: sd.Declarator.Name(), Type: t})
		case sd.Declarator.Pointer != nil || sd.Declarator.DirectDeclarator.Case != cc.DirectDeclaratorIdent:
			s.reject(sd, "a pointer to, or array of, an unnamed struct cannot be represented")
		default:
			out = append(out, s.inPlace(sd.Declarator.Name(), header, sp))
		}
	}
	return out
}

func (s *scanner) inPlace(name, header string, sp *specifiers) *api.Member {
	return &api.Member{
		Name: name, Aggregate: keyword(sp.aggregate), Members: s.members(header, sp.aggregate),
	}
}

// attributes rejects what changes a layout. aligned(8) on a member of eight
// bytes, as the kernel's __aligned_u64 has, changes none on a 64-bit machine;
// the comparison with cc's own layout would show if it did.
func (s *scanner) attributes(list *cc.AttributeSpecifierList, allowed string) {
	for ; list != nil; list = list.AttributeSpecifierList {
		values := list.AttributeSpecifier.AttributeValueList
		for ; values != nil; values = values.AttributeValueList {
			text := strings.ReplaceAll(cc.NodeSource(values.AttributeValue), " ", "")
			name := strings.Trim(text, "_")
			if allowed != "" && (name == "aligned"+allowed || text == "__aligned__"+allowed) {
				continue
			}
			if strings.Contains(name, "packed") || strings.Contains(name, "aligned") {
				s.reject(values.AttributeValue, "the attribute %s cannot be represented", text)
			}
		}
	}
}

// closure keeps the structs of the bound headers, and what those hold by
// value of other headers.
func (s *scanner) closure() {
	kept := map[*structure]bool{}
	for _, st := range s.order {
		if slices.Contains(Headers, st.Header) {
			s.keep(st, kept)
		}
	}
	for _, st := range s.order {
		if kept[st] {
			s.api.Structs = append(s.api.Structs, st.Struct)
			s.errs = append(s.errs, st.errs...)
		}
	}
}

// keep marks st, which may be nil, and what it holds by value.
func (s *scanner) keep(st *structure, kept map[*structure]bool) {
	if st == nil || kept[st] {
		return
	}
	kept[st] = true
	s.keepHeld(st.Members, kept)
}

func (s *scanner) keepHeld(members []*api.Member, kept map[*structure]bool) {
	for _, m := range members {
		t := m.Type
		for t != nil && t.Kind == api.Array {
			t = t.Elem
		}
		if t != nil && t.Kind == api.Named {
			s.keep(s.structs[t.Name], kept)
		}
		s.keepHeld(m.Members, kept)
	}
}

// checkLayouts computes every layout and compares it with what cc computed.
func (s *scanner) checkLayouts() {
	if len(s.errs) > 0 {
		return
	}
	engine := layout.New(s.api, layout.AMD64)
	for _, out := range s.api.Structs {
		node := s.structs[out.Name].node
		t := node.Type()
		switch err := engine.Apply(out); {
		case err != nil:
			s.reject(node, "%v", err)
		case len(out.Members) > 0 && (t.Size() != out.Size || int64(t.Align()) != out.Align):
			s.reject(node, "%s: size %d align %d by our rules, %d and %d by cc's",
				out.Name, out.Size, out.Align, t.Size(), t.Align())
		}
	}
}
