// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// structure is a struct or union of the headers, whether or not it is needed.
type structure struct {
	*api.Struct
	node     *cc.StructOrUnionSpecifier
	problems []problem // reasons why it cannot be represented
}

// notRepresented is part of the text of a problem with C code that is correct
// but that a snapshot cannot hold.
const notRepresented = "cannot be represented"

// aggregate records a struct or union. If it has no tag, bare is the name of
// the typedef for it.
func (s *scanner) aggregate(header, bare string, u *cc.StructOrUnionSpecifier) {
	tag := cmp.Or(tagOf(u), bare)
	if tag == "" {
		return // a declaration that uses it is rejected
	}
	name := keyword(u) + " " + tag
	if old := s.structs[name]; old != nil {
		s.reject(u, "%s is defined at %v already", name, old.node.Position())
		return
	}
	st := &structure{Struct: &api.Struct{Name: name, Header: header, Bare: tagOf(u) == ""}, node: u}
	s.structs[name] = st
	before := s.problems
	s.problems = nil
	s.whole(u)
	st.Rules = s.rules(u)
	st.Members = s.members(header, u, st.Rules)
	st.problems, s.problems = s.problems, before
	for i, p := range st.problems {
		if strings.Contains(p.text, notRepresented) {
			st.problems[i].text += fmt.Sprintf("; to bind its name alone, say in the conventions: struct %s opaque=\"why\"", tag)
		}
	}
	s.order = append(s.order, st)
}

func (s *scanner) members(header string, u *cc.StructOrUnionSpecifier, rules api.Rules) []*api.Member {
	var out []*api.Member
	names := map[string]bool{}
	for l := u.StructDeclarationList; l != nil; l = l.StructDeclarationList {
		if l.StructDeclaration.Case == cc.StructDeclarationAssert {
			continue
		}
		added := s.member(header, l.StructDeclaration)
		s.distinct(l.StructDeclaration, added, names)
		for _, m := range added {
			dropNeedless(m, rules)
			s.memberAt[m] = l.StructDeclaration
		}
		out = append(out, added...)
	}
	if u.StructDeclarationList == nil {
		s.reject(u, "a %s without members cannot be represented", keyword(u))
	}
	for i, m := range out {
		if m.IsFlexible() && s.unsized[m.Type] && (keyword(u) != "struct" || i == 0 || i < len(out)-1) {
			s.reject(s.memberAt[m], "a flexible array cannot be represented here")
		}
	}
	return out
}

// memberNode returns the node of the member with a path such as ibv_send_wr.wr,
// or nil. The members of an anonymous struct or union count as members of the
// struct around it.
func (s *scanner) memberNode(path string) cc.Node {
	tag, path, _ := strings.Cut(path, ".")
	st := s.structs["struct "+tag]
	if st == nil {
		st = s.structs["union "+tag]
	}
	if st == nil {
		return nil
	}
	var find func(path string, members []*api.Member) cc.Node
	find = func(path string, members []*api.Member) cc.Node {
		first, rest, deeper := strings.Cut(path, ".")
		for _, m := range members {
			n := cc.Node(nil)
			switch {
			case m.Name == "":
				n = find(path, m.Members)
			case m.Name == first && deeper:
				n = find(rest, m.Members)
			case m.Name == first:
				n = s.memberAt[m]
			}
			if n != nil {
				return n
			}
		}
		return nil
	}
	return find(path, st.Members)
}

// distinct rejects a second member of the same name. The members of an
// anonymous struct or union count as members of the struct around it.
func (s *scanner) distinct(n cc.Node, members []*api.Member, names map[string]bool) {
	for _, m := range members {
		if m.Name == "" {
			s.distinct(n, m.Members, names)
			continue
		}
		s.name(n, m.Name)
		if names[m.Name] {
			s.reject(n, "two members have the name %s", m.Name)
		}
		names[m.Name] = true
	}
}

// member returns the members that one declaration in a struct declares.
func (s *scanner) member(header string, d *cc.StructDeclaration) []*api.Member {
	sp := s.memberSpecifiers(d.SpecifierQualifierList)
	rules := s.memberRules(d, sp)
	if sp.enum != nil {
		s.enum(header, "", sp.enum)
	}
	var inner []*api.Member // members of an unnamed struct or union that is defined here
	var innerRules api.Rules
	switch {
	case sp.aggregate != nil && sp.base != nil:
		s.aggregate(header, "", sp.aggregate)
	case sp.aggregate != nil:
		innerRules = s.rules(sp.aggregate)
		inner = s.members(header, sp.aggregate, innerRules)
	}
	if d.StructDeclaratorList == nil {
		if sp.aggregate == nil || sp.base != nil {
			s.reject(d, "this declares no member")
			return nil
		}
		return []*api.Member{{Aggregate: keyword(sp.aggregate), Rules: innerRules, Members: inner}}
	}
	var out []*api.Member
	for l := d.StructDeclaratorList; l != nil; l = l.StructDeclaratorList {
		sd := l.StructDeclarator
		switch {
		case sd.Case == cc.StructDeclaratorBitField:
			if m := s.bitField(sd, sp, rules); m != nil {
				out = append(out, m)
			}
		case sp.base != nil || sp.aggregate == nil:
			t, _ := s.declared(sd.Declarator, sp.base)
			m := &api.Member{Name: sd.Declarator.Name(), Type: t, Rules: rules}
			if m.IsFlexible() {
				s.sized(sd, t.Elem)
			} else {
				s.sized(sd, t)
			}
			s.representable(sd, sd.Declarator.Name(), t)
			out = append(out, m)
		case sd.Declarator.Pointer != nil || sd.Declarator.DirectDeclarator.Case != cc.DirectDeclaratorIdent:
			s.reject(sd, "a pointer to, or array of, an unnamed struct cannot be represented")
		default:
			out = append(out, &api.Member{Name: sd.Declarator.Name(), Aggregate: keyword(sp.aggregate), Rules: innerRules, Members: inner})
		}
	}
	return out
}

// closure adds structs to the snapshot: those of the bound headers, and those
// of other headers that declarations of the bound ones hold by value. It leaves
// out those of the base. For a struct that the conventions call opaque, it adds
// only the name.
func (s *scanner) closure() {
	kept := map[*structure]bool{}
	for _, st := range s.order {
		if _, bound := s.header(st.node); bound {
			s.keep(st, kept)
		}
	}
	for _, f := range s.api.Functions {
		for _, t := range append([]*api.Type{f.Type.Elem}, f.Type.Params...) {
			s.keepHeld([]*api.Member{{Type: t}}, kept)
		}
	}
	for _, v := range s.api.Variables {
		s.keepHeld([]*api.Member{{Type: v.Type}}, kept)
	}
	for _, st := range s.order {
		if _, tag, _ := strings.Cut(st.Name, " "); kept[st] && s.known.Structs[tag] != "" {
			st.Members, st.Rules, st.problems = nil, api.Rules{}, nil
		}
		if kept[st] {
			s.api.Structs = append(s.api.Structs, st.Struct)
			s.problems = append(s.problems, st.problems...)
		}
	}
}

// keep marks st and the structs that it holds by value. st may be nil.
func (s *scanner) keep(st *structure, kept map[*structure]bool) {
	if st == nil || kept[st] || slices.ContainsFunc(s.base.Structs, func(b *api.Struct) bool { return b.Name == st.Name }) {
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

// checkLayouts computes every layout and compares it with cc's, unless cc has
// another length for some array.
func (s *scanner) checkLayouts() {
	if len(s.problems) > 0 {
		return
	}
	engine := layout.New(s.api.Over(s.base), layout.AMD64)
	for _, out := range s.api.Structs {
		node := s.structs[out.Name].node
		t := node.Type()
		switch err := engine.Apply(out); {
		case err != nil:
			s.reject(node, "%v", err)
		case !s.corrected && len(out.Members) > 0 && !s.hasRules(s.structs[out.Name]) && (t.Size() != out.Size || int64(t.Align()) != out.Align):
			s.reject(node, "%s: gen computes size %d and alignment %d, the C parser %d and %d",
				out.Name, out.Size, out.Align, t.Size(), t.Align())
		case out.Size > maxSize:
			s.reject(node, "%s of %d bytes cannot be represented", out.Name, out.Size)
		}
	}
}
