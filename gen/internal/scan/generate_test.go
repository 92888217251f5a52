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
	second  []*api.Typedef
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
	kinds := []func(){g.enum, g.aggregate, g.aggregate, g.function, g.dispatch, g.own, g.macro, g.noise, g.typedef, g.variable, g.wideEnum}
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
	"long long", "unsigned long long", "_Bool", "uint8_t", "int16_t", "uint32_t", "int64_t", "size_t", "__be16", "__be64", "__u32", "float", "double",
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
		if len(g.structs) > 0 && g.pick(5) == 0 {
			t.Params = append(t.Params, &api.Type{Name: g.structs[g.pick(len(g.structs))]})
			continue
		}
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
	attributes := ""
	switch g.pick(8) {
	case 0:
		s.Pack, attributes = 1, " __attribute__((packed))"
	case 1:
		s.Pack, s.Aligned, attributes = 1, 8, " __attribute__((__packed__, aligned(8)))"
	case 2:
		s.Aligned, attributes = 32, " __attribute__((aligned(32)))"
	}
	g.printf("%s {\n", s.Name)
	s.Members = g.members(0)
	g.printf("}%s;\n", attributes)
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
	switch kind := g.pick(9); {
	case kind == 7:
		m.Type, m.Bits = &api.Type{Name: []string{"int", "uint8_t", "unsigned long", "short"}[g.pick(4)]}, &api.Bits{Width: int64(1 + g.pick(8))}
		g.printf("%s : %d;\n", m.Type.C(m.Name), m.Bits.Width)
		return m
	case kind == 8 && len(g.second) > 0:
		t := g.second[g.pick(len(g.second))]
		m.Type = t.Type
		g.printf("%s %s;\n", t.Name, m.Name)
		return m
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

// typedef makes a second name of a type.
func (g *generator) typedef() {
	t := &api.Typedef{Name: g.name("t"), Header: generatedHeader, Type: g.value(0)}
	if t.Type.Const = false; g.flip() {
		t.Type = &api.Type{Kind: api.Array, Len: int64(1 + g.pick(4)), Elem: t.Type}
	}
	g.printf("typedef %s;\n", t.Type.C(t.Name))
	g.want.Typedefs = append(g.want.Typedefs, t)
	g.second = append(g.second, t)
}

// variable makes one that a library exports.
func (g *generator) variable() {
	v := &api.Variable{Name: g.name("v"), Header: generatedHeader, Type: g.value(0)}
	g.printf("extern %s;\n", v.Type.C(v.Name))
	g.want.Variables = append(g.want.Variables, v)
}

// wideEnum makes an enum of 64 bits.
func (g *generator) wideEnum() {
	e := &api.Enum{Name: g.name("w"), Header: generatedHeader, Size: 8, Signed: g.flip()}
	low, high := g.name("W"), g.name("W")
	value := int64(g.pick(256))
	if e.Signed {
		value = -value - 1
	}
	e.Values = []api.Enumerator{{Name: low, Value: value}, {Name: high, Value: 1 << 40}}
	g.printf("enum %s { %s = %d, %s = 1ULL << 40 };\n", e.Name, low, value, high)
	g.want.Enums = append(g.want.Enums, e)
	g.known.Enums[e.Name] = &conventions.Enum{Key: e.Name}
}
