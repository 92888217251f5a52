// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// withoutErrno lists the classes of functions that do not report an errno.
var withoutErrno = []conventions.Class{conventions.Void, conventions.Value, conventions.Interior}

// real returns the file that is compiled with the real headers.
func (g *generator) real(umbrella string, symbols map[string][]string) string {
	g.printf("#include %q\n\n#include <errno.h>\n\n#include \"harness.h\"\n#include \"macros.h\"\n\n", umbrella)
	g.exported(symbols)
	g.operations()
	g.state()
	for _, f := range Tested(g.Input) {
		g.callReal(f)
	}
	g.table()
	return g.flush()
}

// callReal writes the C function through which the harness calls the header's
// function.
func (g *generator) callReal(f *api.Function) {
	var args []string
	for i, t := range f.Type.Params {
		if p := pointee(t); p != nil { // pointee has the type that a macro of the same name takes
			t = &api.Type{Kind: api.Pointer, Elem: p}
		}
		args = append(args, fmt.Sprintf("(%s)a[%d]", t.C(""), i))
	}
	call := f.Name + "(" + strings.Join(args, ", ") + ")"
	if f.Inline == nil {
		call = "macro_" + call
	}
	if !f.Type.Elem.IsVoid() {
		call = "r.value = (int64_t)" + call
	}
	g.printf("static struct result real_%s(const uint64_t *a)\n{\n\tstruct result r = {0};\n\n\terrno = 0;\n\t%s;\n", f.Name, call)
	if !slices.Contains(withoutErrno, g.Known.Funcs[f.Name].Class) {
		g.printf("\tr.error = errno;\n")
	}
	g.printf("\treturn r;\n}\n\n")
}

// table writes the list of functions for the harness.
func (g *generator) table() {
	for _, f := range Tested(g.Input) {
		g.printf("call_fn ours_%s;\n", f.Name)
	}
	g.printf("\nconst struct function functions[] = {\n")
	for _, f := range Tested(g.Input) {
		datagram := slices.ContainsFunc(f.Type.Params, func(t *api.Type) bool { return t.String() == "*struct ibv_ah" })
		g.printf("\t{%q, %s, %t, %s, %d, {", f.Name, class(g.Known.Funcs[f.Name]), datagram, g.operation(f), len(f.Params))
		for i, t := range f.Type.Params {
			kind, number := g.param(t)
			g.printf("{%s, %d, %t}, ", kind, number, slices.Contains(g.Known.Funcs[f.Name].Nil, f.Params[i]))
		}
		g.printf("}, real_%s, ours_%s},\n", f.Name, f.Name)
	}
	g.printf("};\n\nconst size_t function_count = %d;\n", len(Tested(g.Input)))
}

// operation returns the C expression for the offset, in a verbs_context, of the
// operation that a function calls, or -1. If the snapshot does not name the
// operation, it has the function's name.
func (g *generator) operation(f *api.Function) string {
	name := strings.TrimPrefix(f.Name, "ibv_")
	if f.Inline != nil && f.Inline.Guard != "" {
		name = strings.TrimPrefix(f.Inline.Call, "vctx->")
	}
	for _, m := range g.structs[contextHolder].Members {
		if m.Name == name {
			return fmt.Sprintf("offsetof(%s, %s)", contextHolder, name)
		}
	}
	return "-1"
}

// param returns the kind of argument that the harness passes for a parameter
// and, for an object, its number.
func (g *generator) param(t *api.Type) (kind string, number int) {
	_, isEnum := t.Tag("enum")
	switch {
	case g.object(t) >= 0:
		return "OBJECT", g.object(t)
	case t.Kind == api.Pointer && t.Elem.IsVoid():
		return "ADDRESS", 0
	case t.Kind == api.Pointer:
		return "SCRATCH", 0
	case isEnum:
		return "ENUM", 0
	case t.Name == "size_t":
		return "SIZE", 0
	}
	return "NUMBER", 0
}

// ours returns the file that includes the stubs of the package in dir. table
// has the functions that these stubs look up.
func (g *generator) ours(name, dir string, table []string) string {
	g.printf("#include %q\n\n#include \"harness.h\"\n\n", filepath.Join(dir, "stubs.c"))
	g.printf("void %s_table(bool present)\n{\n", name)
	for i, symbol := range table {
		g.printf("\tverbena_%s_set(%d, present ? (void *)%s : NULL);\n", name, i, symbol)
	}
	g.printf("}\n\n")
	for _, f := range Tested(g.Input) {
		if g.Home(f.Header) != name {
			continue
		}
		var pointers, memory, numbers []string // a stub's parameters are in this order
		for i, t := range f.Type.Params {
			switch arg := fmt.Sprintf("a[%d]", i); {
			case t.Kind != api.Pointer:
				numbers = append(numbers, arg)
			case t.Elem.IsVoid():
				memory = append(memory, "(void *)"+arg)
			default:
				pointers = append(pointers, "(void *)"+arg)
			}
		}
		args := slices.Concat(pointers, memory, numbers)
		g.printf("call_fn ours_%s;\n\nstruct result ours_%s(const uint64_t *a)\n{\n", f.Name, f.Name)
		g.printf("\t__auto_type r = stub_%s(%s);\n\n", f.Name, strings.Join(args, ", "))
		g.printf("\treturn (struct result){(int64_t)r.value, r.error};\n}\n\n")
	}
	return g.flush()
}
