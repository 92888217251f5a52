// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/propose"
)

// machine is the snapshot of the headers as compilers for another architecture
// read them.
type machine struct {
	arch string
	api  *api.API
}

// differing compares the snapshot a with those for other architectures. It
// returns lines that leave out the declarations which differ, and errors for
// those that no line can leave out.
func differing(a *api.API, others []machine, known *conventions.Table) (lines []propose.Line, errs []error) {
	add := func(kind, name, text string) {
		lines = append(lines, propose.Line{Kind: kind, Text: kind + " " + name + " " + text})
	}
	for _, s := range a.Structs {
		_, tag, _ := strings.Cut(s.Name, " ")
		if known.Structs[tag] != "" {
			continue
		}
		if arch := differs(s, others, func(a *api.API) []*api.Struct { return a.Structs }, func(s *api.Struct) string { return s.Name }); arch != "" {
			add("struct", tag, fmt.Sprintf(`opaque="%s has another struct"`, arch))
		}
	}
	for _, m := range a.Macros {
		if !known.Binds(m.Header) || known.Macros[m.Name] != "" {
			continue
		}
		if arch := differs(m, others, func(a *api.API) []*api.Macro { return a.Macros }, func(m *api.Macro) string { return m.Name }); arch != "" {
			add("macro", m.Name, fmt.Sprintf(`skip="%s has another value"`, arch))
		}
	}
	for _, f := range a.Functions {
		line := known.Funcs[f.Name]
		if !known.Binds(f.Header) || f.Inline != nil || line != nil && line.Skip != "" {
			continue
		}
		arch := differs(f, others, func(a *api.API) []*api.Function { return a.Functions }, func(f *api.Function) string { return f.Name })
		switch {
		case arch == "":
		case line == nil:
			add("func", f.Name, fmt.Sprintf(`value skip="%s has another prototype"`, arch))
			lines[len(lines)-1].C = emit.Prototype(f)
		default:
			errs = append(errs, fmt.Errorf(`%s: %s has another prototype of %s: add skip="why" to the function's line`, f.Header, arch, f.Name))
		}
	}
	for _, e := range a.Enums {
		arch := differs(e, others, func(a *api.API) []*api.Enum { return a.Enums }, (*api.Enum).Key)
		if arch != "" && known.Binds(e.Header) {
			errs = append(errs, fmt.Errorf("%s: on %s, the enum %s is another one, which cannot be represented in Go", e.Header, arch, e.Key()))
		}
	}
	return lines, errs
}

// differs returns the first architecture whose snapshot has another declaration
// of the item's name, or none. It returns "" if all have the same.
func differs[T any](item T, others []machine, all func(*api.API) []T, name func(T) string) (arch string) {
	text := marshal(item)
	for _, other := range others {
		found := false
		for _, its := range all(other.api) {
			found = found || name(its) == name(item) && marshal(its) == text
		}
		if !found {
			return other.arch
		}
	}
	return ""
}

func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail: a snapshot is written as JSON, too
	}
	return string(text)
}
