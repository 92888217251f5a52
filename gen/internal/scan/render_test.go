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
		fmt.Fprintf(&b, "enum %s {\n", e.Name)
		for _, v := range e.Values {
			fmt.Fprintf(&b, "\t%s = %s,\n", v.Name, enumValue(v.Value))
		}
		b.WriteString("};\n")
	}
	for _, s := range a.Structs {
		if s.Header == generatedHeader {
			fmt.Fprintf(&b, "%s {\n%s};\n", s.Name, renderMembers(a, s.Members))
		}
	}
	for _, f := range a.Functions {
		renderFunction(&b, f)
	}
	for _, m := range a.Macros {
		value := fmt.Sprintf("((%s)%dUL)", m.Type, uint64(m.Value))
		switch {
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

func enumValue(v int64) string {
	if v > 1<<31-1 {
		return fmt.Sprint(v) + "u"
	}
	return fmt.Sprint(v)
}

func renderMembers(a *api.API, members []*api.Member) string {
	var b strings.Builder
	for _, m := range members {
		if m.Type != nil {
			fmt.Fprintf(&b, "%s;\n", m.Type.C(m.Name))
		} else {
			fmt.Fprintf(&b, "%s {\n%s} %s;\n", m.Aggregate, renderMembers(a, m.Members), m.Name)
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
