// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// leaf is a member of a struct, or of a struct that it holds by value.
type leaf struct {
	*api.Member
	owner string // tag of the innermost struct around it that has a tag
	path  string // path in C code, from the outermost struct
}

// walk calls visit for the members of a struct, at any depth, that are not
// structs or unions themselves.
func (g *generator) walk(name string, visit func(leaf)) {
	g.members(g.structs[name].Members, tag(name), "", visit)
}

func (g *generator) members(list []*api.Member, owner, prefix string, visit func(leaf)) {
	for _, m := range list {
		path := prefix + m.Name
		switch {
		case m.Type == nil && m.Name == "":
			g.members(m.Members, owner, prefix, visit)
		case m.Type == nil:
			g.members(m.Members, owner, path+".", visit)
		case m.Type.Kind == api.Named && g.structs[m.Type.Name] != nil:
			g.members(g.structs[m.Type.Name].Members, tag(m.Type.Name), path+".", visit)
		default:
			visit(leaf{m, owner, path})
		}
	}
}

// tag returns ibv_qp for struct ibv_qp.
func tag(name string) string {
	_, tag, _ := strings.Cut(name, " ")
	return tag
}

func isOperation(t *api.Type) bool { return t.Kind == api.Pointer && t.Elem.Kind == api.Func }

// label returns the name of a member with its struct, such as
// ibv_context_ops.post_send.
func (m leaf) label() string { return m.owner + "." + m.Name }

func identifier(label string) string { return "fake_" + strings.ReplaceAll(label, ".", "_") }

// optional lists the members that may be NULL when the headers' functions use
// them.
var optional = map[string]bool{"rdma_cm_id.srq": true, "ibv_mw_bind_info.mr": true}

// slot writes the line of a member that the harness must fill with meaningful
// data. It writes nothing for one that can have random bytes.
func (g *generator) slot(object string, m leaf) {
	kind, number, operation := "", 0, "NULL"
	_, isEnum := m.Type.Tag("enum")
	switch t := m.Type; {
	case m.label() == "verbs_context.sz":
		kind = "CONTEXT_SIZE"
	case m.label() == "ibv_context.abi_compat":
		kind = "CONTEXT_ABI"
	case isOperation(t):
		kind, operation = "OPERATION", "(void (*)(void))"+identifier(m.label())
	case t.Kind == api.Pointer && t.Elem.Name == context:
		kind, number = "CONTEXT", g.object(t)
	case g.object(t) >= 0:
		kind, number = "OBJECT", g.object(t)
	case t.Kind == api.Pointer:
		kind = "ADDRESS"
	case t.Name == "size_t":
		kind = "SIZE"
	case isEnum:
		kind = "ENUM"
	default:
		return
	}
	g.printf("\t{offsetof(%s, %s), %s, %d, %t, %s},\n", object, m.path, kind, number, optional[m.label()], operation)
}

// state writes the arena, which has the objects of all types, and the table of
// these types.
func (g *generator) state() {
	g.printf("static struct {\n")
	for _, name := range g.objects {
		if name != context {
			g.printf("\t%s %s[COPIES];\n", name, tag(name))
		}
	}
	g.printf("\tuint64_t scratch[18];\n} all;\n\nchar *const arena = (char *)&all;\n")
	g.printf("const size_t arena_size = sizeof(all), scratch_offset = offsetof(__typeof__(all), scratch);\n\n")
	for _, name := range g.objects {
		if name == context {
			continue
		}
		g.printf("static const struct slot slots_%s[] = {\n", tag(name))
		g.walk(name, func(m leaf) { g.slot(name, m) })
		g.printf("\t{0},\n};\n\n")
	}
	g.printf("const struct type types[] = {\n")
	for _, name := range g.objects {
		offset, holder, slots := "offsetof(__typeof__(all), "+tag(name)+")", name, "slots_"+tag(name)
		if name == context {
			holder, offset = contextHolder, "offsetof(__typeof__(all), verbs_context[0].context)"
			g.printf("\t{\"%s\", %s, sizeof(%s), sizeof(%s), 0, NULL},\n", tag(name), offset, holder, name)
			continue
		}
		g.printf("\t{\"%s\", %s, sizeof(%s), sizeof(%s), sizeof(%s) / sizeof(struct slot) - 1, %s},\n",
			tag(name), offset, holder, name, slots, slots)
	}
	g.printf("};\n\nconst size_t type_count = %d;\n\n", len(g.objects))
}
