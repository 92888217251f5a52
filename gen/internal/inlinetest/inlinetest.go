// SPDX-License-Identifier: Apache-2.0

// Package inlinetest writes a C program that compares the stubs with the
// headers' inline functions. For each inline function, the program calls the
// function and its stub with the same objects, and compares what they do. Fake
// functions stand in for the provider and the libraries. The part of the
// program that is not generated, the harness, is in testdata.
package inlinetest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
)

// Sources returns the program's generated source files by name. real.c includes
// the real headers by way of the file umbrella. Each other file includes the
// stubs of one package; generated is the folder with the packages.
func Sources(in emit.Input, umbrella, generated string) (map[string]string, error) {
	symbols, err := emit.Symbols(in)
	if err != nil {
		return nil, err
	}
	g := newGenerator(in)
	files := map[string]string{"real.c": g.real(umbrella, symbols)}
	for name, table := range symbols {
		files[name+".c"] = g.ours(name, filepath.Join(generated, name), table)
	}
	return files, nil
}

// Tested returns the functions that are compared: the bound ones that are
// inline, or hidden by a macro that calls an inline function.
func Tested(in emit.Input) []*api.Function {
	var out []*api.Function
	for _, f := range in.API.Functions {
		known := in.Known.Funcs[f.Name]
		if (f.Inline != nil || known.Own) && known.Skip == "" {
			out = append(out, f)
		}
	}
	return out
}

type generator struct {
	emit.Input
	structs map[string]*api.Struct
	objects []string // types of the objects in the arena
	out     strings.Builder
}

// contextHolder is the struct that contains an ibv_context. Some functions
// compute its address from that of the ibv_context.
const (
	context       = "struct ibv_context"
	contextHolder = "struct verbs_context"
)

func newGenerator(in emit.Input) *generator {
	g := &generator{Input: in, structs: map[string]*api.Struct{}}
	for _, s := range in.API.Structs {
		if len(s.Members) > 0 {
			g.structs[s.Name] = s
		}
	}
	g.reach(&api.Type{Name: contextHolder})
	for _, f := range Tested(in) {
		for _, t := range f.Type.Params {
			g.reach(pointee(t))
		}
		g.reach(pointee(f.Type.Elem))
	}
	return g
}

// pointee returns the type to which t points, or nil if t is not a pointer. For
// the special struct in the prototype of ibv_query_port, which catches callers
// that bypass the macro, it returns the struct that the macro takes.
func pointee(t *api.Type) *api.Type {
	if t.Kind != api.Pointer {
		return nil
	}
	if t.Elem.Name == "struct _compat_ibv_port_attr" {
		return &api.Type{Name: "struct ibv_port_attr"}
	}
	return t.Elem
}

// reach adds t to the types of the arena's objects, if it is a struct, and all
// structs to which its members point, directly or not.
func (g *generator) reach(t *api.Type) {
	if t == nil || g.structs[t.Name] == nil || slices.Contains(g.objects, t.Name) {
		return
	}
	g.objects = append(g.objects, t.Name)
	g.walk(t.Name, func(m leaf) { g.reach(pointee(m.Type)) })
}

// object returns the index in g.objects of the type to which t points, or -1.
func (g *generator) object(t *api.Type) int {
	p := pointee(t)
	if p == nil {
		return -1
	}
	return slices.Index(g.objects, p.Name)
}

func (g *generator) printf(format string, args ...any) { fmt.Fprintf(&g.out, format, args...) }

// flush returns the text that was printed since the last call.
func (g *generator) flush() string {
	defer g.out.Reset()
	return g.out.String()
}

// class returns the harness's name for the class of a function, which says how
// it reports errors.
func class(f *conventions.Func) string { return "CLASS_" + strings.ToUpper(string(f.Class)) }
