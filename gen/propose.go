// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
)

// runPropose prints the lines that the conventions of new headers lack. It does
// not guess how a function reports errors: the proposed class returns C's
// result as it is.
func runPropose(facts, headers, libc, version string, w, notes io.Writer) error {
	if headers == "" || version == "" {
		return errors.New("propose needs -headers and -version")
	}
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	a, err := makeSnapshot(facts, headers, libc, version, known, true, notes)
	if err != nil {
		return err
	}
	binds := func(header string) bool { return known.Binds(header) }
	names := proposedNames(a, known)
	for _, h := range a.Headers {
		if h.Included && known.Header(h.Name) == nil {
			fmt.Fprintf(w, "header %s skip=\"only for what bound headers need of it\"\n", h.Name)
		}
	}
	for _, e := range a.Enums {
		if binds(e.Header) && known.Enums[e.Key()] == nil {
			fmt.Fprintln(w, "enum", e.Key(), proposedEnum(e))
		}
	}
	for _, f := range a.Functions {
		if binds(f.Header) && known.Funcs[f.Name] == nil {
			fmt.Fprintln(w, "func", f.Name, proposedFunc(f, known)+names[f.Name])
		}
	}
	for _, s := range a.Structs {
		if names[s.Name] != "" {
			fmt.Fprintln(w, "struct", tagOf(s.Name)+names[s.Name])
		}
	}
	for _, m := range a.Unvalued {
		if binds(m.Header) && known.Macros[m.Name] == "" {
			fmt.Fprintf(w, "macro %s skip=\"it has no value\"\n", m.Name)
		}
	}
	return nil
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
	return string(class)
}

func tagOf(name string) string {
	_, tag, _ := strings.Cut(name, " ")
	return tag
}

// proposedNames returns a word such as " name=GoName" for each declaration
// whose Go name would be that of another one. These are structs with the name
// of a function, and functions with the same name.
func proposedNames(a *api.API, known *conventions.Table) map[string]string {
	words, functions := map[string]string{}, map[string]string{}
	for _, f := range a.Functions {
		if !known.Binds(f.Header) || f.Inline != nil && f.Inline.Call == "" || f.Type.Variadic {
			continue
		}
		name := emit.GoName(known, f.Name)
		if other := functions[name]; other != "" && strings.HasPrefix(f.Name, "_") {
			words[f.Name] = " name=" + name + "Internal"
		} else if other != "" && strings.HasPrefix(other, "_") {
			words[other] = " name=" + name + "Internal"
		}
		functions[name] = f.Name
	}
	for _, s := range a.Structs {
		if name := emit.GoName(known, tagOf(s.Name)); functions[name] != "" && known.Binds(s.Header) {
			words[s.Name] = " name=" + name + "Struct"
		}
	}
	return words
}
