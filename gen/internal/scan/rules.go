// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strconv"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// maxAlign bounds what a header may ask for, in bytes.
const maxAlign = 4096

// rules returns what the attributes of a struct or union and #pragma pack say
// about its layout.
func (s *scanner) rules(u *cc.StructOrUnionSpecifier) api.Rules {
	rules := s.layoutAttributes(api.Rules{}, u.AttributeSpecifierList)
	rules = s.layoutAttributes(rules, u.AttributeSpecifierList2)
	at := u.Position()
	if pack := s.packs.at(at.Filename, at.Line); pack > 0 && rules.Pack == 0 {
		rules.Pack, rules.Pragma = pack, true
	}
	return rules
}

// memberRules returns what the attributes of a member say.
func (s *scanner) memberRules(d *cc.StructDeclaration, sp *specifiers) api.Rules {
	rules := s.layoutAttributes(sp.rules, d.AttributeSpecifierList)
	if sp.aggregate != nil && sp.base == nil && rules != (api.Rules{}) {
		s.reject(d, "an attribute about the layout of an unnamed struct's member cannot be represented")
	}
	return rules
}

// layoutAttributes adds what attributes say about a layout, and rejects all
// others but the harmless.
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

// dropNeedless takes out an alignment that a member has anyway on a 64-bit
// machine, such as that of the kernel's __aligned_u64.
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

// hasRules reports whether the layout of st, or of what it holds, follows rules
// that cc does not know, or not all of: it places some bit-fields elsewhere.
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

// needsRules returns the struct or union which a constant expression mentions,
// because of its layout, and whose layout cc does not know.
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

// constantOf returns the value of a constant expression, and rejects one that
// cc has the wrong value of.
func (s *scanner) constantOf(n cc.ExpressionNode) constant {
	if name, ok := s.needsRules(wordsOf(n)); ok {
		s.reject(n, "the C parser does not know the layout of %s, which this is about", name)
	}
	return s.constants.of(n)
}
