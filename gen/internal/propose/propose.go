// SPDX-License-Identifier: Apache-2.0

// Package propose proposes the lines that the conventions need for new headers.
package propose

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
)

// Line is a proposed line for the conventions.
type Line struct {
	Kind string // header, enum, func, struct or macro
	Text string
	C    string // C declaration of a function; otherwise empty
}

// Lines returns proposals for the lines that the conventions lack. It does not
// guess how a function reports errors: the proposed class returns C's result as
// it is.
func Lines(a *api.API, known *conventions.Table) []Line {
	var all []Line
	add := func(kind, name, text string) {
		all = append(all, Line{Kind: kind, Text: kind + " " + name + " " + text})
	}
	binds := func(header string) bool { return known.Binds(header) }
	names := proposedNames(a, known)
	for _, h := range a.Headers {
		if h.Included && known.Header(h.Name) == nil {
			add("header", h.Name, `skip="only for what bound headers need of it"`)
		}
	}
	for _, e := range a.Enums {
		if binds(e.Header) && known.Enums[e.Key()] == nil {
			add("enum", e.Key(), proposedEnum(e))
		}
	}
	for _, f := range a.Functions {
		if binds(f.Header) && known.Funcs[f.Name] == nil {
			add("func", f.Name, proposedFunc(f, known)+names[f.Name])
			all[len(all)-1].C = emit.Prototype(f)
		}
	}
	for _, s := range a.Structs {
		if tag := tagOf(s.Name); names[s.Name] != "" && known.Names["struct "+tag] == "" && known.Structs[tag] == "" {
			add("struct", tag, strings.TrimSpace(names[s.Name]))
		}
	}
	for _, m := range a.Macros {
		if binds(m.Header) && known.Macros[m.Name] == "" && !emit.IsUsable(emit.ConstName(m.Name)) {
			add("macro", m.Name, `skip="its name does not begin with a capital letter"`)
		}
	}
	for _, m := range a.Unvalued {
		if binds(m.Header) && known.Macros[m.Name] == "" {
			add("macro", m.Name, `skip="it has no value"`)
		}
	}
	return all
}

func proposedEnum(e *api.Enum) string {
	kind, single := "flags", 0
	for _, v := range e.Values {
		switch bits.OnesCount64(uint64(v.Value)) {
		case 0:
		case 1:
			single++
		default:
			kind = "values"
		}
	}
	if single < 3 { // 1 and 2 may be two flags or the numbers 1 and 2
		kind = "values"
	}
	if e.Name == "" {
		return kind + " name=-"
	}
	return kind
}

// byValue reports whether f has a parameter or result that is, by value, a
// struct that the conventions call opaque.
func byValue(f *api.Function, known *conventions.Table) bool {
	return slices.ContainsFunc(append(f.Type.Params, f.Type.Elem), func(t *api.Type) bool {
		return t.Kind == api.Named && known.Structs[tagOf(t.Name)] != ""
	})
}

func proposedFunc(f *api.Function, known *conventions.Table) string {
	result := f.Type.Elem
	class := conventions.Value
	switch {
	case result.IsVoid():
		class = conventions.Void
	case result.Kind == api.Pointer && result.Elem.Kind == api.Named && result.Elem.Name == "char" && result.Elem.Const:
		class = conventions.String
	case result.Kind == api.Pointer:
		class = conventions.Pointer
	}
	switch {
	case byValue(f, known):
		return string(class) + ` skip="it takes or gives a struct by value whose members are not bound"`
	case f.Type.Variadic:
		return string(class) + ` skip="variadic, and what it takes depends on the other arguments"`
	case f.Inline != nil && f.Inline.Call == "":
		return string(class) + ` skip="inline with logic of its own"`
	}
	if names := counted(f); len(names) > 0 {
		return string(class) + " bytes=" + strings.Join(names, ",")
	}
	return string(class)
}

// counted returns the parameters of type const char * that are probably memory
// and no strings: the next parameter is a number with a name like len or
// data_size.
func counted(f *api.Function) []string {
	var names []string
	all := f.ParamNames()
	for i, t := range f.Type.Params[:max(len(f.Type.Params)-1, 0)] {
		isLength := strings.Contains(all[i+1], "len") || strings.Contains(all[i+1], "size")
		if emit.IsText(t) && isLength && f.Type.Params[i+1].Kind == api.Named {
			names = append(names, all[i])
		}
	}
	return names
}

func tagOf(name string) string {
	_, tag, _ := strings.Cut(name, " ")
	return tag
}

// proposedNames returns a word such as " name=GoName" for each declaration
// whose Go name would be that of another one, or one that programs cannot use.
// These are functions, and structs with the name of a function, a variable or
// another struct.
func proposedNames(a *api.API, known *conventions.Table) map[string]string {
	words, functions := map[string]string{}, map[string]string{}
	for _, f := range a.Functions {
		if !known.Binds(f.Header) || f.Inline != nil && f.Inline.Call == "" || f.Type.Variadic {
			continue
		}
		name := emit.GoName(known, f.Name)
		if !emit.IsUsable(name) {
			if name = emit.WholeName(f.Name); emit.IsUsable(name) {
				words[f.Name] = " name=" + name
			}
		}
		if other := functions[name]; other != "" && isInternal(f.Name) {
			words[f.Name] = " name=" + name + "Internal"
		} else if other != "" && isInternal(other) {
			words[other] = " name=" + name + "Internal"
		} else if other != "" && other != f.Name && emit.IsUsable(name) {
			name = free(functions, name)
			words[f.Name] = " name=" + name
		}
		functions[name] = f.Name
	}
	for _, v := range a.Variables {
		if known.Binds(v.Header) {
			functions[emit.GoName(known, v.Name)] = v.Name
		}
	}
	structs := map[string]string{}
	for _, s := range a.Structs {
		name := emit.GoName(known, tagOf(s.Name))
		switch {
		case functions[name] != "" && known.Binds(s.Header):
			name += "Struct"
		case structs[name] != "":
			name = free(structs, name)
		}
		if name != emit.GoName(known, tagOf(s.Name)) {
			words[s.Name] = " name=" + name
		}
		structs[name] = s.Name
	}
	return words
}

// free returns name with the first number that makes it none of those taken.
func free(taken map[string]string, name string) string {
	for n := 2; ; n++ {
		if numbered := fmt.Sprintf("%s%d", name, n); taken[numbered] == "" {
			return numbered
		}
	}
}

// isInternal reports whether a function is probably internal to the library:
// its name begins or ends with an underscore.
func isInternal(name string) bool {
	return strings.HasPrefix(name, "_") || strings.HasSuffix(name, "_")
}
