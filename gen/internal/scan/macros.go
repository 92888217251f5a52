package scan

import (
	"maps"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// macros records the object-like macros of the bound headers: those with a
// value, and those that give a tag or an enumerator a second name.
func (s *scanner) macros(ast *cc.AST) {
	tags := map[string]bool{}
	for _, e := range s.api.Enums {
		tags[e.Name] = true
	}
	for name := range s.structs {
		_, tag, _ := strings.Cut(name, " ")
		tags[tag] = true
	}
	for _, name := range slices.Sorted(maps.Keys(ast.Macros)) {
		m := ast.Macros[name]
		header, bound := s.header(m)
		if !bound || m.IsFnLike {
			continue
		}
		if target := m.ReplacementList(); len(target) == 1 && tags[target[0].SrcStr()] {
			s.api.Aliases = append(s.api.Aliases, &api.Alias{Name: name, Header: header, Target: target[0].SrcStr()})
			continue
		}
		if t, ok := macroType(m); ok {
			s.api.Macros = append(s.api.Macros, &api.Macro{
				Name: name, Header: header, Type: t, Value: number(m.Value()), Enumerator: s.enumerator(m),
			})
		}
	}
}

// enumerator returns the enumerator that m is another name of, if any.
func (s *scanner) enumerator(m *cc.Macro) string {
	target := m.ReplacementList()
	if len(target) != 1 {
		return ""
	}
	for _, e := range s.api.Enums {
		for _, v := range e.Values {
			if v.Name == target[0].SrcStr() {
				return v.Name
			}
		}
	}
	return ""
}

func macroType(m *cc.Macro) (string, bool) {
	switch m.Value().(type) {
	case cc.Int64Value, cc.UInt64Value:
	default:
		return "", false
	}
	if m.Type().Kind() == cc.Ptr {
		return "pointer", true
	}
	return plainName([]string{m.Type().String()}), true
}
