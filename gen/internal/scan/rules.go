// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strconv"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// maxAlign is the maximum alignment that a header may request, in bytes.
const maxAlign = 4096

// rules returns the layout rules of a struct or union, from its attributes and
// from #pragma pack.
func (s *scanner) rules(u *cc.StructOrUnionSpecifier) api.Rules {
	rules := s.layoutAttributes(api.Rules{}, u.AttributeSpecifierList)
	rules = s.layoutAttributes(rules, u.AttributeSpecifierList2)
	at := u.Position()
	switch pack := s.packs.at(at.Filename, at.Line); {
	case pack > 0 && rules.Pack == 0:
		rules.Pack, rules.Pragma = pack, true
	case pack > 0 && slices.ContainsFunc(wordsOf(u), func(word string) bool { return word == ":" || strings.Contains(word, "aligned") }):
		s.reject(u, "packed where #pragma pack is in effect cannot be represented for bit-fields and aligned members")
	}
	return rules
}

// memberRules returns the layout rules of a member, from its attributes.
func (s *scanner) memberRules(d *cc.StructDeclaration, sp *specifiers) api.Rules {
	rules := s.layoutAttributes(sp.rules, d.AttributeSpecifierList)
	if sp.aggregate != nil && sp.base == nil && rules != (api.Rules{}) {
		s.reject(d, "an attribute about the layout of an unnamed struct's member cannot be represented")
	}
	if sp.aggregate != nil && sp.base == nil && (sp.qualified.Const || sp.qualified.Volatile) { // each member would have them
		s.reject(d, "const or volatile before an unnamed struct cannot be represented")
	}
	return rules
}

// layoutAttributes adds the rules of attributes about the layout, and rejects
// other attributes unless they are harmless.
func (s *scanner) layoutAttributes(rules api.Rules, list *cc.AttributeSpecifierList) api.Rules {
	s.eachAttribute(list, func(at cc.Node, name, arguments, text string) {
		switch n, err := strconv.ParseInt(strings.TrimSuffix(arguments, ")"), 0, 64); {
		case name == "packed" && arguments == "":
			rules.Pack = 1
		case name == "aligned" && err == nil && n > 0 && n&(n-1) == 0 && n <= maxAlign:
			rules.Aligned = max(rules.Aligned, n)
		default:
			s.reject(at, "the attribute %s cannot be represented", text)
		}
	})
	return rules
}

// dropNeedless removes an alignment that the member's type has anyway on a
// 64-bit machine, such as that of the kernel's __aligned_u64.
func dropNeedless(m *api.Member, around api.Rules) {
	t := m.Type
	for t != nil && t.Kind == api.Array {
		t = t.Elem
	}
	if t == nil || m.Pack > 0 || around.Pack > 0 {
		return
	}
	natural := layout.ScalarSize(t.Name)
	if t.Kind == api.Pointer {
		natural = 8
	}
	if m.Aligned <= natural {
		m.Aligned = 0
	}
}

// hasRules reports whether the layout of st, or of a struct in it, follows
// rules that cc does not apply. It counts all bit-fields, because cc misplaces
// some: see TestCCLayouts.
func (s *scanner) hasRules(st *structure) bool {
	return st != nil && (st.Rules != (api.Rules{}) || s.membersHaveRules(st.Members))
}

func (s *scanner) membersHaveRules(members []*api.Member) bool {
	for _, m := range members {
		t := m.Type
		for t != nil && t.Kind == api.Array {
			t = t.Elem
		}
		if m.Bits != nil || m.Rules != (api.Rules{}) || s.membersHaveRules(m.Members) || t != nil && t.Kind == api.Named && s.hasRules(s.structs[t.Name]) {
			return true
		}
	}
	return false
}

// needsRules returns the first struct or union in a constant expression whose
// layout cc does not know.
func (s *scanner) needsRules(expression []string) (name string, ok bool) {
	for _, word := range expression {
		names := []string{"struct " + word, "union " + word}
		if t := s.typedefs[word]; t != nil {
			names = append(names, t.Name)
		}
		for _, name := range names {
			if s.hasRules(s.structs[name]) {
				return name, true
			}
		}
	}
	return "", false
}

// constantOf returns the value of a constant expression. It rejects an
// expression that depends on a layout which cc does not know.
func (s *scanner) constantOf(n cc.ExpressionNode) constant {
	if name, ok := s.needsRules(wordsOf(n)); ok {
		s.reject(n, "the C parser does not know the layout of %s, on which this depends", name)
	}
	return s.constants.of(n)
}
