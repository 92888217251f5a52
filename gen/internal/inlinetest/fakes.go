// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// operations writes a fake for each operation of the objects in the arena, the
// memory with all objects of the program.
func (g *generator) operations() {
	done := map[string]bool{}
	for _, name := range g.objects {
		g.walk(name, func(m leaf) {
			if !isOperation(m.Type) || done[m.label()] {
				return
			}
			done[m.label()] = true
			g.fake("static", identifier(m.label()), m.label(), m.Type.Elem, nil)
			g.printf("_Static_assert(__builtin_types_compatible_p(__typeof__(((struct %s *)0)->%s), __typeof__(&%s)), \"%s\");\n\n",
				m.owner, m.Name, identifier(m.label()), m.label())
		})
	}
}

// exported writes a fake for each exported function that the stubs look up. The
// fake has the name of the function, so that the headers' inline functions are
// linked with it.
func (g *generator) exported(symbols map[string][]string) {
	for _, f := range g.API.Functions {
		if !slices.Contains(symbols["libibverbs"], f.Name) && !slices.Contains(symbols["librdmacm"], f.Name) {
			continue
		}
		known := g.Known.Funcs[f.Name]
		var followed []int
		for i, t := range f.Type.Params {
			if t.Kind == api.Pointer && !slices.Contains(known.Nil, f.Params[i]) {
				followed = append(followed, i)
			}
		}
		g.fake("", "("+f.Name+")", f.Name, f.Type, followed)
	}
}

// fake writes a C function that records its arguments, writes through its
// pointers, and returns a random result. followed has the indexes of the
// parameters that a library would follow: the fake crashes if one of them is
// NULL.
func (g *generator) fake(storage, name, label string, t *api.Type, followed []int) {
	params := []string{}
	for i, p := range t.Params {
		params = append(params, p.C(fmt.Sprintf("a%d", i)))
	}
	if t.Variadic {
		params = append(params, "...")
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	g.printf("%s\n{\n", strings.TrimLeft(storage+" "+t.Elem.C(name+"("+strings.Join(params, ", ")+")"), " "))
	for _, i := range followed {
		g.printf("\tnot_null(a%d);\n", i)
	}
	g.printf("\tcalled(%q, %t);\n", label, storage == "")
	for i, p := range t.Params {
		if p.Kind != api.Pointer {
			g.printf("\tnote((uint64_t)a%d);\n", i)
			continue
		}
		g.printf("\tnote_pointer(a%d);\n", i)
		switch p.Elem.Name {
		case "struct ibv_send_wr":
			g.printf("\tnote_send_wr(a%d);\n", i)
		case "struct ibv_recv_wr":
			g.printf("\tnote_recv_wr(a%d);\n", i)
		}
	}
	for i, p := range t.Params {
		g.output(i, p)
	}
	g.printf("\tset_errno();\n")
	switch {
	case g.object(t.Elem) >= 0:
		g.printf("\treturn result_object(%d);\n", g.object(t.Elem))
	case t.Elem.Kind == api.Pointer:
		g.printf("\treturn result_address();\n")
	case !t.Elem.IsVoid():
		g.printf("\treturn (%s)result_number();\n", t.Elem.C(""))
	}
	g.printf("}\n\n")
}

// output writes the statement with which a fake writes through a parameter, as
// a provider or library may. It writes none for objects and for memory whose
// size the type does not say.
func (g *generator) output(i int, t *api.Type) {
	if t.Kind != api.Pointer || t.Elem.Const || t.Elem.IsVoid() || t.Elem.Name == "char" {
		return
	}
	_, isStruct := t.Elem.Tag("struct")
	switch {
	case t.Elem.Kind == api.Pointer && t.Elem.Elem.IsVoid():
		g.printf("\toutput_object(a%d, %d);\n", i, g.eventContext())
	case g.object(t.Elem) >= 0:
		g.printf("\toutput_object(a%d, %d);\n", i, g.object(t.Elem))
	case t.Elem.Kind == api.Pointer:
	case isStruct && g.structs[t.Elem.Name] == nil: // the struct of an older library, which is smaller than the caller's
		g.printf("\toutput(a%d, 1);\n", i)
	case !g.lives(t.Elem.Name):
		g.printf("\toutput(a%d, sizeof(*a%d));\n", i, i)
	}
}

// eventContext returns the index in g.objects of struct rdma_cm_id, to which
// cq_context points in librdmacm's completion queues.
func (g *generator) eventContext() int { return slices.Index(g.objects, "struct rdma_cm_id") }

// lives reports whether a struct is an object of the library rather than a
// struct for arguments. An object has operations, or a pointer to a context.
func (g *generator) lives(name string) bool {
	found := false
	if g.structs[name] != nil {
		g.walk(name, func(m leaf) {
			found = found || isOperation(m.Type) || (m.Type.Kind == api.Pointer && m.Type.Elem.Name == context)
		})
	}
	return found
}
