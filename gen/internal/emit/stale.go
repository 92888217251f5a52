// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// stale returns an error for each line of the facts that is about something
// that the headers do not have, and for each that does not fit the snapshots.
func stale(in Input) error {
	var errs []error
	report := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("conventions: "+format+", which the headers of rdma-core "+in.API.Version+" do not have", args...))
	}
	for _, h := range in.Known.Headers {
		if h.Other == "" && !slices.ContainsFunc(in.API.Headers, func(have *api.Header) bool { return have.Name == h.Name }) {
			report("a line for the header %s", h.Name)
		}
	}
	functions := map[string]*api.Function{}
	for _, f := range in.API.Functions {
		functions[f.Name] = f
	}
	enums := map[string]*api.Enum{}
	for _, e := range in.API.Enums {
		enums[e.Key()] = e
	}
	for _, name := range slices.Sorted(maps.Keys(in.Known.Funcs)) {
		f := functions[name]
		if f == nil {
			report("a line for the function %s", name)
			continue
		}
		for _, param := range in.Known.Funcs[name].Named() {
			if !slices.Contains(f.ParamNames(), param) {
				report("the line for %s names a parameter %s", name, param)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in.Known.Enums)) {
		e, modifier := enums[key], in.Known.Enums[key].Modifier
		switch {
		case e == nil:
			report("a line for the enum %s", key)
		case modifier != "" && !has(e, modifier):
			report("the line for the enum %s names a modifier %s", key, modifier)
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(in.Known.Structs)) {
		if !slices.ContainsFunc(in.API.Structs, func(s *api.Struct) bool { return s.Name == "struct "+tag || s.Name == "union "+tag }) {
			report("a line for the struct %s", tag)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Known.Macros)) {
		if !slices.ContainsFunc(in.API.Unvalued, func(m *api.Unvalued) bool { return m.Name == name }) {
			report("a line for the macro %s", name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in.Strings)) {
		staleTexts(in.Strings[key], enums[key], report)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Manual)) {
		if functions[name] == nil {
			report("a manual page for the function %s", name)
		}
	}
	var others []*api.API
	if in.Base != nil {
		others = append(others, in.Base.API)
	}
	if err := in.Since.Check(in.Snapshots, others...); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func staleTexts(texts *conventions.Strings, e *api.Enum, report func(format string, args ...any)) {
	if e == nil {
		report("strings for the enum %s", texts.Enum)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(texts.Text)) {
		if !has(e, name) {
			report("a string for %s of enum %s", name, texts.Enum)
		}
	}
}

func has(e *api.Enum, name string) bool {
	return slices.ContainsFunc(e.Values, func(v api.Enumerator) bool { return v.Name == name })
}
