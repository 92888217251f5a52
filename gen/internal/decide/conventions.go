// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/bits"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// missing returns the lines that the conventions lack, in the order of the
// headers.
func missing(a *api.API, facts Facts) []string {
	known := facts.Known
	lines := map[string][]string{}
	var headers []string
	add := func(header, line string) {
		if lines[header] == nil {
			headers = append(headers, header)
		}
		lines[header] = append(lines[header], line)
	}
	for _, h := range a.Headers {
		if known.Header(h.Name) == nil {
			add(h.Name, headerLine(h, facts))
		}
	}
	for _, e := range a.Enums {
		if known.Enums[e.Key()] == nil {
			add(e.Header, enumLine(e)+placed(a, "enum", e.Key(), enumValues(e)))
		}
	}
	hasNodes := slices.ContainsFunc(a.Functions, func(f *api.Function) bool { return f.Node != "" })
	shadowed := map[string]bool{}
	for _, m := range a.Unvalued {
		shadowed[m.Name] = true
	}
	for _, f := range a.Functions {
		if known.Funcs[f.Name] == nil {
			line := fmt.Sprintf("func %s %s", f.Name, class(f))
			if ownLogic(f) || shadowed[f.Name] {
				line += " inline=own"
			}
			switch {
			case f.Private:
				line += ` skip="exported only with a private symbol version"`
			case f.Inline == nil && f.Node == "" && hasNodes:
				line += ` skip="declared, but not exported by the library"`
			}
			add(f.Header, line+placed(a, "func", f.Name, declaration(f)))
		}
	}
	for _, m := range a.Unvalued {
		if known.Macros[m.Name] == "" {
			add(m.Header, fmt.Sprintf(`macro %s skip="no value"`, m.Name)+placed(a, "macro", m.Name, ""))
		}
	}
	var out []string
	for _, h := range headers {
		out = append(out, "# "+h)
		out = append(out, lines[h]...)
	}
	return out
}

// headerLine returns the line to propose for a header. It guesses the library
// from the header's folder. For a header that no bound header includes, the
// line has skip=, or the words of a header that another folder of facts binds
// and that is named like it.
func headerLine(h *api.Header, facts Facts) string {
	switch like := relative(h.Name, facts); {
	case !h.Included && like != nil:
		word := fmt.Sprintf("other=%q", like.Other)
		if like.Other == "" {
			word = fmt.Sprintf("skip=%q", like.Skip)
		}
		folder := facts.Elsewhere[like.Name]
		return fmt.Sprintf("header %s %s # named like %s, which %s binds: to bind this there, too, add a line to its conventions.txt, and include the header in its umbrella.h",
			h.Name, word, like.Name, folder)
	case !h.Included:
		return fmt.Sprintf(`header %s skip="nothing that is bound includes it"`, h.Name)
	case strings.HasPrefix(h.Name, "rdma/"):
		return "header " + h.Name + " librdmacm"
	}
	return "header " + h.Name + " libibverbs"
}

// relative returns the line of a header that another folder of facts binds and
// whose name begins with the same word, or nil.
func relative(name string, facts Facts) *conventions.Header {
	word := func(name string) string {
		word, _, _ := strings.Cut(strings.TrimSuffix(path.Base(name), ".h"), "_")
		return path.Join(path.Dir(name), word)
	}
	i := slices.IndexFunc(facts.Known.Headers, func(h *conventions.Header) bool {
		return facts.Elsewhere[h.Name] != "" && word(h.Name) == word(name)
	})
	if i < 0 {
		return nil
	}
	return facts.Known.Headers[i]
}

func enumLine(e *api.Enum) string {
	kind := "values"
	if looksLikeFlags(e) {
		kind = "flags"
	}
	if e.Name == "" {
		kind += " name=-"
	}
	return fmt.Sprintf("enum %s %s", e.Key(), kind)
}

func enumValues(e *api.Enum) string {
	var values []string
	for _, v := range e.Values {
		values = append(values, fmt.Sprintf("%s=%d", v.Name, v.Value))
	}
	return strings.Join(values, " ")
}

// placed returns a comment for a line: where the declaration is, if the
// snapshot tells, and what it says.
func placed(a *api.API, kind, name, text string) string {
	var parts []string
	for _, part := range []string{a.Place(api.Name{Kind: kind, Name: name}, ""), text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " # " + strings.Join(parts, ": ")
}

var flagName = regexp.MustCompile(`(flags|mask|caps|bits)\d*$`)

// looksLikeFlags guesses whether an enum lists flags, from its name and, if it
// has more than two, from its values. Two values 1 and 2 may be flags or not.
func looksLikeFlags(e *api.Enum) bool {
	if flagName.MatchString(e.Name) {
		return true
	}
	for _, v := range e.Values {
		if v.Value <= 0 || bits.OnesCount64(uint64(v.Value)) != 1 {
			return false
		}
	}
	return len(e.Values) > 2
}

// class returns the class of errors that most functions with the same result
// type as f have.
func class(f *api.Function) conventions.Class {
	result := f.Type.Elem
	switch {
	case result.IsVoid():
		return conventions.Void
	case result.Kind == api.Pointer && result.Elem.Name == "char" && result.Elem.Const:
		return conventions.String
	case result.Kind == api.Pointer:
		return conventions.Pointer
	case result.Name == "ssize_t" || result.Name == "size_t" || result.Name == "off_t":
		return conventions.Count
	case result.Name != "int":
		return conventions.Value
	case strings.HasPrefix(f.Header, "rdma/"):
		return conventions.Status
	}
	return conventions.Code
}

// declaration returns the prototype with the parameters' names, which nil= and
// out= refer to.
func declaration(f *api.Function) string {
	var params []string
	for i, t := range f.Type.Params {
		name := ""
		if i < len(f.Params) {
			name = f.Params[i]
		}
		params = append(params, t.C(name))
	}
	if f.Type.Variadic {
		params = append(params, "...")
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return f.Type.Elem.C(f.Name + "(" + strings.Join(params, ", ") + ")")
}
