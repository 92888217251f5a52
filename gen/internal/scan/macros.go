// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// macros records the macros of the bound headers. It records the values of
// those that have one, and the targets of those that give a tag or an
// enumerator a second name. Of the others, it records the names. It leaves out
// macros without a definition, such as a header's guard. unusable has the
// macros that cc must not evaluate.
func (s *scanner) macros(ast *cc.AST, unusable map[string]unusable) {
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
		target := m.ReplacementList()
		if !bound || len(target) == 0 || isPlaceMacro(name) {
			continue
		}
		if !m.IsConst && !m.IsFnLike {
			if len(target) == 1 && target[0].SrcStr() == name {
				continue // it is defined as its own name
			}
			s.reject(m, "the macro %s is defined more than once", name)
			continue
		}
		s.name(m, name)
		s.defines[name] = s.place(m)
		if m.IsFnLike {
			s.unvalued(s.place(m), name, header, wordsOfMacro(m))
			continue
		}
		if len(target) == 1 && tags[target[0].SrcStr()] {
			s.api.Aliases = append(s.api.Aliases, &api.Alias{Name: name, Header: header, Target: target[0].SrcStr()})
			continue
		}
		if s.known.Macros[name] != "" {
			s.unvalued(s.place(m), name, header, wordsOfMacro(m))
			continue
		}
		if s.isBeyond(m, map[string]bool{}) {
			s.unvalued(s.place(m), name, header, wordsOfMacro(m))
			continue
		}
		if of, ok := s.needsRules(s.expansions[name]); ok {
			s.reject(m, "the C parser does not know the layout of %s, on which %s depends; add to the conventions a line such as: macro %[2]s skip=\"why\"", of, name)
			continue
		}
		if t, text, ok := textMacro(m); ok {
			s.api.Macros = append(s.api.Macros, &api.Macro{Name: name, Header: header, Type: t, Text: text})
			continue
		}
		if t, value, ok := s.valued(name, m); ok {
			s.api.Macros = append(s.api.Macros, &api.Macro{
				Name: name, Header: header, Type: t, Value: value, Enumerator: s.enumerator(m),
			})
			continue
		}
		s.unvalued(s.place(m), name, header, wordsOfMacro(m))
	}
	for name, m := range unusable {
		if header, bound := s.headerName(m.at.file); bound {
			s.unvalued(m.at, name, header, m.words)
		}
	}
	slices.SortFunc(s.api.Unvalued, func(a, b *api.Unvalued) int { return strings.Compare(a.Name, b.Name) })
}

// isPlaceMacro reports whether a macro is one of the compiler's whose value
// depends on where or when it is expanded. cc reports it as if the header that
// uses it had defined it.
func isPlaceMacro(name string) bool {
	switch name {
	case "__LINE__", "__FILE__", "__COUNTER__", "__DATE__", "__TIME__", "__TIMESTAMP__", "__BASE_FILE__", "__INCLUDE_LEVEL__":
		return true
	}
	return false
}

// isBeyond reports whether m has no value that holds in every program, or one
// that cc reads wrongly: it takes u8"x" for the string 8"x.
func (s *scanner) isBeyond(m *cc.Macro, seen map[string]bool) bool {
	for _, t := range m.ReplacementList() {
		word := t.SrcStr()
		if isPlaceMacro(word) || strings.HasPrefix(word, `u8"`) {
			return true
		}
		if inner := s.macroNamed[word]; inner != nil && !seen[word] {
			seen[word] = true
			if s.isBeyond(inner, seen) {
				return true
			}
		}
	}
	return false
}

// wordsOfMacro returns the words of a macro's parameters and definition.
func wordsOfMacro(m *cc.Macro) []string {
	var words []string
	for _, t := range append(slices.Clone(m.Params), m.ReplacementList()...) {
		words = append(words, t.SrcStr())
	}
	return words
}

// unvalued records a macro that the conventions must explain.
func (s *scanner) unvalued(at problem, name, header string, words []string) {
	if !s.draft {
		s.explained(at, name)
	}
	s.api.Unvalued = append(s.api.Unvalued, &api.Unvalued{Name: name, Header: header, Body: digest(words)})
}

// explained rejects a macro that the conventions do not explain. If a function
// has the same name, C programs call the macro, and the function must be marked
// as inline=own.
func (s *scanner) explained(at problem, name string) {
	if s.known.Macros[name] == "" {
		s.rejectAt(at, "the macro %s has no value; add to the conventions a line such as: macro %s skip=\"why\"", name, name)
	}
	for _, f := range s.api.Functions {
		if known := s.known.Funcs[name]; f.Name == name && known != nil && !known.Own && !s.behind {
			s.rejectAt(at, "the macro %s hides the function of this name, which the conventions must mark as inline=own", name)
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

// textMacro returns the type and the value of a macro that is a string or a
// floating-point constant.
func textMacro(m *cc.Macro) (t, text string, ok bool) {
	switch v := m.Value().(type) {
	case cc.StringValue:
		return "string", strconv.Quote(strings.TrimSuffix(string(v), "\x00")), true
	case cc.Float64Value:
		t = plainName(strings.Fields(m.Type().String()))
		f := float64(v)
		return t, strconv.FormatFloat(f, 'x', -1, 64), layout.IsFloat(t) && !math.IsInf(f, 0) && !math.IsNaN(f)
	}
	return "", "", false
}

// valued returns the type and the value of a macro, if it has one.
func (s *scanner) valued(name string, m *cc.Macro) (string, int64, bool) {
	value, isInteger := integerOf(m.Value())
	if !isInteger {
		return "", 0, false
	}
	c, ok := s.evaluated[name]
	if !ok {
		kind, _ := s.constants.integerKind(m.Type())
		c = inKind(value, kind)
	}
	return integers[c.kind].name, c.value, c.known
}

func integerOf(v cc.Value) (int64, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return int64(v), true
	case cc.UInt64Value:
		return int64(v), true
	}
	return 0, false
}

// asserted evaluates and records a macro that translation.types has put into an
// assertion.
func (s *scanner) asserted(d *cc.Declaration) {
	if d.Position().Filename != endName {
		return
	}
	a := d.StaticAssertDeclaration
	condition := a.ConstantExpression.(*cc.ConstantExpression).ConditionalExpression
	s.evaluated[strings.Trim(a.Token4.SrcStr(), `"`)] = s.constants.of(condition.(*cc.LogicalOrExpression).LogicalOrExpression)
}
