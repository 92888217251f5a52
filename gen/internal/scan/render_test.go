// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// render writes the declarations of a snapshot as C again, as far as they are
// of the bound headers.
func render(a *api.API) string {
	var b strings.Builder
	for _, e := range a.Enums {
		if e.Header != generatedHeader {
			continue
		}
		head, tail := "enum "+e.Name, ""
		if e.Bare {
			head, tail = "typedef enum", " "+e.Name
		}
		fmt.Fprintf(&b, "%s {\n", head)
		for _, v := range e.Values {
			fmt.Fprintf(&b, "\t%s = %s,\n", v.Name, enumValue(e, v.Value))
		}
		fmt.Fprintf(&b, "}%s;\n", tail)
	}
	for _, s := range a.Structs {
		if s.Header != generatedHeader {
			continue
		}
		head, tail := s.Name, ""
		if s.Bare {
			head, tail = "typedef "+s.Keyword(), " "+s.C()
		}
		if s.Pragma {
			fmt.Fprintf(&b, "#pragma pack(push, %d)\n", s.Pack)
		}
		fmt.Fprintf(&b, "%s {\n%s}%s%s;\n", head, renderMembers(a, s.Members), renderRules(s.Rules), tail)
		if s.Pragma {
			b.WriteString("#pragma pack(pop)\n")
		}
	}
	for _, t := range a.Typedefs {
		fmt.Fprintf(&b, "typedef %s;\n", t.Type.C(t.Name))
	}
	for _, v := range a.Variables {
		name, of := v.Name, v.Type
		if of.Kind == api.Array && of.Len == 0 {
			name, of = name+"[]", of.Elem
		}
		fmt.Fprintf(&b, "extern %s;\n", of.C(name))
	}
	for _, f := range a.Functions {
		renderFunction(&b, f)
	}
	for _, m := range a.Macros {
		value := fmt.Sprintf("((%s)%dUL)", m.Type, uint64(m.Value))
		switch {
		case m.Type == "string":
			value = m.Text
		case m.Text != "":
			value = fmt.Sprintf("((%s)%s)", m.Type, m.Text)
		case m.Enumerator != "":
			value = m.Enumerator
		case m.Type == "pointer":
			value = fmt.Sprintf("((void *)(uintptr_t)%dUL)", uint64(m.Value))
		}
		fmt.Fprintf(&b, "#define %s %s\n", m.Name, value)
	}
	for _, alias := range a.Aliases {
		fmt.Fprintf(&b, "#define %s %s\n", alias.Name, alias.Target)
	}
	for _, m := range a.Unvalued {
		fmt.Fprintf(&b, "#define %s() text\n", m.Name)
	}
	return b.String()
}

func renderRules(rules api.Rules) string {
	text := ""
	if rules.Pack > 0 && !rules.Pragma {
		text += " __attribute__((packed))"
	}
	if rules.Aligned > 0 {
		text += fmt.Sprintf(" __attribute__((aligned(%d)))", rules.Aligned)
	}
	return text
}

func enumValue(e *api.Enum, v int64) string {
	switch {
	case v == -1<<63 && e.Signed:
		return "-0x7fffffffffffffffLL - 1"
	case v < 0 && !e.Signed:
		return fmt.Sprint(uint64(v)) + "ULL"
	case v > 1<<32-1 || v < -1<<31:
		return fmt.Sprint(v) + "LL"
	}
	if v > 1<<31-1 {
		return fmt.Sprint(v) + "u"
	}
	return fmt.Sprint(v)
}

func renderMembers(a *api.API, members []*api.Member) string {
	var b strings.Builder
	for _, m := range members {
		if m.Type != nil {
			text := m.Type.C(m.Name)
			if m.Bits != nil {
				text += fmt.Sprintf(" : %d", m.Bits.Width)
			}
			fmt.Fprintf(&b, "%s%s;\n", text, renderRules(m.Rules))
		} else {
			fmt.Fprintf(&b, "%s {\n%s}%s %s;\n", m.Aggregate, renderMembers(a, m.Members), renderRules(m.Rules), m.Name)
		}
	}
	return b.String()
}

// prototype returns a function as C declares it.
func prototype(f *api.Function) string {
	var params []string
	for i, t := range f.Type.Params {
		params = append(params, t.C(f.Params[i]))
	}
	if f.Type.Variadic {
		params = append(params, "...")
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return f.Type.Elem.C(f.Name + "(" + strings.Join(params, ", ") + ")")
}

func renderFunction(b *strings.Builder, f *api.Function) {
	switch {
	case f.Inline == nil:
		fmt.Fprintf(b, "%s;\n", prototype(f))
	case f.Inline.Call != "" && f.Inline.Guard == "":
		call := f.Inline.Call + "(" + strings.Join(f.Params, ", ") + ")"
		if !f.Type.Elem.IsVoid() {
			call = "return " + call
		}
		fmt.Fprintf(b, "static %s { %s; }\n", prototype(f), call)
	default:
		fmt.Fprintf(b, "static %s { for (;;); }\n", prototype(f))
	}
}
