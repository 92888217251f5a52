// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// generator makes declarations from a fuzzer's bytes, together with what the
// scanner must find in them.
type generator struct {
	rest    []byte
	text    strings.Builder
	names   int
	line    int
	structs []string // complete ones, with their keyword
	tags    []string // of enums
	want    api.API
	known   *conventions.Table
	bad     []int // lines with what cannot be represented
}

const generatedHeader = "infiniband/verbs.h"

// generate makes up to 30 declarations.
func generate(data []byte, unsupported bool) *generator {
	known, err := conventions.Parse("", nil)
	if err != nil {
		panic(err)
	}
	for _, name := range unvaluedMacros {
		known.Macros[name] = "of the test"
	}
	g := &generator{rest: data, line: 1, known: known}
	kinds := []func(){g.enum, g.aggregate, g.aggregate, g.function, g.dispatch, g.own, g.macro, g.noise}
	if unsupported {
		kinds = append(kinds, g.unsupported)
	}
	g.enum()
	g.aggregate()
	for n := 0; len(g.rest) > 0 && n < 30; n++ {
		kinds[g.pick(len(kinds))]()
	}
	return g
}

// pick returns a number below n.
func (g *generator) pick(n int) int {
	if len(g.rest) == 0 {
		return 0
	}
	b := g.rest[0]
	g.rest = g.rest[1:]
	return int(b) % n
}

func (g *generator) flip() bool { return g.pick(2) == 1 }

func (g *generator) name(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

func (g *generator) printf(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	g.line += strings.Count(s, "\n")
	g.text.WriteString(s)
}

var generatedScalars = []string{
	"int", "unsigned int", "char", "signed char", "unsigned char", "short", "unsigned short", "long", "unsigned long",
	"long long", "unsigned long long", "_Bool", "uint8_t", "int16_t", "uint32_t", "int64_t", "size_t", "__be16", "__be64", "__u32",
}

// value returns the type of something that is no array or function.
func (g *generator) value(depth int) *api.Type {
	kinds := 5
	if depth > 3 {
		kinds = 3
	}
	switch g.pick(kinds) {
	case 0:
		return &api.Type{Name: generatedScalars[g.pick(len(generatedScalars))]}
	case 1:
		return &api.Type{Name: "enum " + g.tags[g.pick(len(g.tags))]}
	case 2:
		return &api.Type{Kind: api.Pointer, Elem: &api.Type{Name: "struct opaque", Const: g.flip()}}
	case 3:
		elem := g.value(depth + 1)
		if g.flip() {
			elem = &api.Type{Name: "void"}
		}
		return &api.Type{Kind: api.Pointer, Elem: elem, Const: g.flip()}
	}
	return &api.Type{Kind: api.Pointer, Elem: g.signature(depth + 1)}
}

// signature returns the type of a function. Those without a name have no
// function pointers as results, which is more than the C parser takes.
func (g *generator) signature(depth int) *api.Type {
	t := &api.Type{Kind: api.Func, Elem: g.value(depth + 1)}
	if t.Elem.Const = false; g.flip() || depth > 0 && strings.Contains(t.Elem.String(), "func") {
		t.Elem = &api.Type{Name: "void"}
	}
	for range g.pick(4) {
		t.Params = append(t.Params, g.value(depth+1))
	}
	t.Variadic = len(t.Params) > 0 && g.pick(4) == 0
	return t
}

func (g *generator) enum() {
	e := &api.Enum{Header: generatedHeader}
	if len(g.tags) == 0 || g.flip() {
		e.Name = g.name("e")
		g.tags = append(g.tags, e.Name)
	}
	g.printf("enum %s {\n", e.Name)
	values := []int64{0, -1, 1, 255, -1 << 31, 1<<31 - 2, 7, 7}
	next := int64(0)
	for n := g.pick(6); n >= 0; n-- {
		v := api.Enumerator{Name: g.name("E"), Value: next}
		g.printf("\t%s", v.Name)
		if g.flip() {
			v.Value = values[g.pick(len(values))]
			g.printf(" = %d", v.Value)
		}
		if next = v.Value + 1; next > 1<<31-1 {
			next = 0
			n = 0
		}
		e.Signed = e.Signed || v.Value < 0
		e.Values = append(e.Values, v)
		g.printf(",\n")
	}
	g.printf("};\n")
	g.want.Enums = append(g.want.Enums, e)
	g.known.Enums[e.Key()] = &conventions.Enum{Key: e.Key()}
}

func (g *generator) aggregate() {
	keyword := []string{"struct", "union"}[g.pick(2)]
	s := &api.Struct{Name: keyword + " " + g.name("s"), Header: generatedHeader}
	g.printf("%s {\n", s.Name)
	s.Members = g.members(0)
	g.printf("};\n")
	g.want.Structs = append(g.want.Structs, s)
	g.structs = append(g.structs, s.Name)
}

func (g *generator) members(depth int) []*api.Member {
	var members []*api.Member
	for n := g.pick(5); n >= 0; n-- {
		members = append(members, g.member(depth))
	}
	return members
}

func (g *generator) member(depth int) *api.Member {
	m := &api.Member{Name: g.name("m")}
	switch kind := g.pick(7); {
	case kind == 0 && len(g.structs) > 0:
		m.Type = &api.Type{Name: g.structs[g.pick(len(g.structs))]}
	case kind == 1 || kind == 2 && depth == 0:
		m.Type = &api.Type{Kind: api.Array, Len: int64(1 + g.pick(9)), Elem: g.value(0)}
		if g.flip() {
			m.Type = &api.Type{Kind: api.Array, Len: int64(1 + g.pick(3)), Elem: m.Type}
		}
	case kind >= 4 && depth < 4:
		m.Aggregate = []string{"struct", "union"}[g.pick(2)]
		g.printf("%s {\n", m.Aggregate)
		m.Members = g.members(depth + 1)
		if kind == 4 {
			m.Name = "" // anonymous
		}
		g.printf("} %s;\n", m.Name)
		return m
	default:
		m.Type = g.value(0)
	}
	g.printf("%s;\n", m.Type.C(m.Name))
	return m
}
