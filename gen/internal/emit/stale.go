// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// stale returns an error for each line of the facts that is about something
// that the headers do not have, and for each that does not fit the snapshots.
func stale(in Input) error {
	var errs []error
	report := func(at, format string, args ...any) {
		errs = append(errs, fmt.Errorf(at+": "+format+", which "+in.described()+" do not have", args...))
	}
	kinds := kindsOf(in.API)
	words := map[string]string{"function": "func"}
	gone := func(kind, name string) {
		at := in.Known.At(cmp.Or(words[kind], kind), name)
		if now := kinds[name]; now != "" {
			errs = append(errs, fmt.Errorf("%s: a line for the %s %s, which is %s in %s: remove or change the line",
				at, kind, name, now, in.described()))
			return
		}
		errs = append(errs, fmt.Errorf("%s: a line for the %s %s, which %s do not have: remove the line", at, kind, name, in.described()))
	}
	for _, line := range in.unneeded() {
		if !slices.ContainsFunc(in.Snapshots, line.isNeeded) {
			gone(line.kind, line.name)
		}
	}
	functions := map[string]*api.Function{}
	for _, f := range in.API.Functions {
		functions[f.Name] = f
	}
	before := map[string]bool{} // functions that any of the snapshots has
	for _, a := range in.Snapshots {
		for _, f := range a.Functions {
			before[f.Name] = true
		}
	}
	enums := map[string]*api.Enum{}
	for _, e := range in.API.Enums {
		enums[e.Key()] = e
	}
	for _, name := range slices.Sorted(maps.Keys(in.Known.Funcs)) {
		f := functions[name]
		if f == nil && in.Path != "" && in.Known.Funcs[name].Skip != "" { // the scan has left out functions that cannot be represented
			continue
		}
		if f == nil {
			switch { // a scan of old headers still needs the line
			case before[name] && in.Known.Funcs[name].Skip == "":
				errs = append(errs, fmt.Errorf(`%s: a line for the function %s, which %s do not have: add skip="why" to it, as older headers have the function`,
					in.Known.At("func", name), name, in.described()))
			case !before[name]:
				gone("function", name)
			}
			continue
		}
		for _, param := range in.Known.Funcs[name].Named() {
			if !slices.Contains(f.ParamNames(), param) {
				report(in.Known.At("func", name), "the line for %s names a parameter %s", name, param)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in.Known.Enums)) {
		e, modifier := enums[key], in.Known.Enums[key].Modifier
		if e != nil && modifier != "" && !has(e, modifier) {
			report(in.Known.At("enum", key), "the line for the enum %s names a modifier %s", key, modifier)
		}
	}
	errs = append(errs, unfit(in)...)
	for _, key := range slices.Sorted(maps.Keys(in.Strings)) {
		in.staleTexts(in.Strings[key], enums[key], report)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Manual)) {
		if functions[name] == nil {
			report(in.at(manualFile, name), "a manual page for the function %s", name)
		}
	}
	var others []*api.API
	if in.Base != nil {
		others = append(others, in.Base.API)
	}
	if in.Path == "" {
		if err := in.Since.Check(in.Snapshots, others...); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// line is a line of the conventions about a header, enum, struct or macro.
type line struct{ kind, name string }

// isNeeded reports whether a scan of the headers of a needs the line.
func (l line) isNeeded(a *api.API) bool {
	switch l.kind {
	case "header":
		return slices.ContainsFunc(a.Headers, func(h *api.Header) bool { return h.Name == l.name })
	case "enum":
		return slices.ContainsFunc(a.Enums, func(e *api.Enum) bool { return e.Key() == l.name })
	case "struct":
		return slices.ContainsFunc(a.Structs, func(s *api.Struct) bool { return s.Name == "struct "+l.name || s.Name == "union "+l.name })
	}
	return slices.ContainsFunc(a.Unvalued, func(m *api.Unvalued) bool { return m.Name == l.name })
}

// unneeded returns the lines that the headers of the newest snapshot do not
// need.
func (in Input) unneeded() (all []line) {
	for _, h := range in.Known.Headers {
		if h.Other == "" {
			all = append(all, line{"header", h.Name})
		}
	}
	add := func(kind string, names []string) {
		for _, name := range names {
			all = append(all, line{kind, name})
		}
	}
	add("enum", slices.Sorted(maps.Keys(in.Known.Enums)))
	tags := slices.AppendSeq(slices.Collect(maps.Keys(in.Known.Structs)), maps.Keys(in.Known.Members))
	slices.Sort(tags)
	add("struct", slices.Compact(tags))
	add("macro", slices.Sorted(maps.Keys(in.Known.Macros)))
	return slices.DeleteFunc(all, func(l line) bool { return l.isNeeded(in.API) })
}

// Kept returns the lines of the conventions that the headers of the previous
// snapshot need and those of the newest one do not. They stay for scans of old
// headers.
func Kept(in Input) (all []string) {
	if len(in.Snapshots) < 2 {
		return nil
	}
	before := in.Snapshots[len(in.Snapshots)-2]
	for _, l := range in.unneeded() {
		if l.isNeeded(before) {
			all = append(all, fmt.Sprintf("%s: the line for the %s %s stays for scans of older headers: %s do not need it any more, those of %s do",
				in.Known.At(l.kind, l.name), l.kind, l.name, in.described(), before.Version))
		}
	}
	return all
}

// described returns a description of the headers for errors.
func (in Input) described() string {
	if in.Path != "" {
		return "the headers"
	}
	return "the headers of " + in.project() + " " + in.API.Version
}

// kindsOf maps each name in the headers to what it is, such as "a function".
func kindsOf(a *api.API) map[string]string {
	kinds := map[string]string{}
	for _, f := range a.Functions {
		kinds[f.Name] = "a function"
	}
	for _, e := range a.Enums {
		kinds[e.Key()] = "an enum"
		for _, v := range e.Values {
			kinds[v.Name] = "an enumerator"
		}
	}
	for _, s := range a.Structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		kinds[tag] = "a " + kind
	}
	for _, m := range a.Macros {
		kinds[m.Name] = "a macro with a value"
	}
	for _, m := range a.Aliases {
		kinds[m.Name] = "another name of " + m.Target
	}
	for _, m := range a.Unvalued {
		kinds[m.Name] = "a macro without a value"
	}
	for _, t := range a.Typedefs {
		kinds[t.Name] = "a typedef"
	}
	for _, v := range a.Variables {
		kinds[v.Name] = "a variable"
	}
	return kinds
}

func (in Input) staleTexts(texts *conventions.Strings, e *api.Enum, report func(at, format string, args ...any)) {
	if e == nil {
		report(in.at(stringsFile, texts.Enum), "strings for the enum %s", texts.Enum)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(texts.Text)) {
		if !has(e, name) {
			report(in.at(stringsFile, name), "a string for %s of enum %s", name, texts.Enum)
		}
	}
}

// at returns where a file speaks of a name.
func (in Input) at(file, name string) string { return cmp.Or(in.places[file+" "+name], file) }

func has(e *api.Enum, name string) bool {
	return slices.ContainsFunc(e.Values, func(v api.Enumerator) bool { return v.Name == name })
}
