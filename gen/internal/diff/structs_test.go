// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

func TestStructs(t *testing.T) {
	s := func(members ...*api.Member) *api.Struct { return st("struct s", members...) }
	table{
		{"added", structs(), structs(s(m("a", "int"))), []string{"struct added: struct s:  -> 4 bytes, align 4"}},
		{"removed", structs(s(m("a", "int"))), structs(), []string{"?struct removed: struct s: 4 bytes, align 4 -> "}},
		{"opaque added", structs(), structs(s()), []string{"struct added: struct s:  -> opaque"}},
		{"still opaque", structs(s()), structs(s()), []string{}},
		{"now complete", structs(s()), structs(s(m("a", "int"))), []string{"struct now complete: struct s: opaque -> 4 bytes, align 4"}},
		{"now opaque", structs(s(m("a", "int"))), structs(s()), []string{"!struct now opaque: struct s: 4 bytes, align 4 -> opaque"}},
		{
			"grown at its end", structs(s(m("a", "int"))), structs(s(m("a", "int"), m("b", "int"))),
			[]string{"~struct grown: struct s: 4 bytes -> 8 bytes", "member added: struct s.b:  -> int at offset 4"},
		},
		{
			"member in the padding", structs(s(m("a", "uint64_t"), m("b", "int"))), structs(s(m("a", "uint64_t"), m("b", "int"), m("c", "int"))),
			[]string{"member added: struct s.c:  -> int at offset 12"},
		},
		{
			"member in the middle", structs(s(m("a", "int"), m("c", "int"))), structs(s(m("a", "int"), m("b", "int"), m("c", "int"))),
			[]string{"~struct grown: struct s: 8 bytes -> 12 bytes", "member added: struct s.b:  -> int at offset 4", "!member moved: struct s.c: offset 4 -> offset 8"},
		},
		{
			"shrunk", structs(s(m("a", "int"), m("b", "int"))), structs(s(m("a", "int"))),
			[]string{"!struct shrunk: struct s: 8 bytes -> 4 bytes", "!member removed: struct s.b: int at offset 4 -> "},
		},
		{
			"aligned to more", structs(s(m("a", "int"), m("b", "int"))), structs(s(m("a", "int"), m("b", "int"), m("c", "uint64_t"))),
			[]string{
				"~struct grown: struct s: 8 bytes -> 16 bytes", "!alignment changed: struct s: 4 bytes -> 8 bytes",
				"member added: struct s.c:  -> uint64_t at offset 8",
			},
		},
		{
			"renamed", structs(s(m("a", "int"))), structs(s(m("b", "int"))),
			[]string{"?member renamed: struct s.a: a -> b"},
		},
		{
			"two renamed in one place", structs(s(union("", m("a", "int"), m("b", "int")))), structs(s(union("", m("c", "int"), m("b", "int"), m("d", "int")))),
			[]string{"member added: struct s.c:  -> int at offset 0", "member added: struct s.d:  -> int at offset 0", "!member removed: struct s.a: int at offset 0 -> "},
		},
		{
			"const only", structs(s(m("a", "*char"))), structs(s(m("a", "*const char"))),
			[]string{"?member type changed: struct s.a: char * -> const char *"},
		},
		{
			"another type of one size", structs(s(m("a", "int"))), structs(s(m("a", "__be32"))),
			[]string{"?member type changed: struct s.a: int -> __be32"},
		},
		{
			"a narrow array of another sign", structs(s(m("a", "[4]int8_t"))), structs(s(m("a", "[4]uint8_t"))),
			[]string{"?member type changed: struct s.a: int8_t [4] -> uint8_t [4]"},
		},
		{
			"another form", structs(s(m("a", "uint64_t"))), structs(s(m("a", "*void"))),
			[]string{"!member type changed: struct s.a: uint64_t -> void *"},
		},
		{
			"function pointer", structs(s(m("f", "*func(uint8_t) int"))), structs(s(m("f", "*func(uint16_t) int"))),
			[]string{"!member type changed: struct s.f: int (*)(uint8_t) -> int (*)(uint16_t)"},
		},
		{
			"reserved space used", structs(s(m("a", "int"), m("reserved", "[4]uint8_t"))), structs(s(m("a", "int"), m("reserved", "[2]uint8_t"), m("b", "uint16_t"))),
			[]string{"member added: struct s.b:  -> uint16_t at offset 6", "member type changed: struct s.reserved: uint8_t [4] -> uint8_t [2]"},
		},
		{
			"reserved space moved", structs(s(m("a", "uint16_t"), m("reserved", "uint16_t"))), structs(s(m("a", "uint16_t"), m("b", "uint8_t"), m("reserved", "uint8_t"))),
			[]string{
				"member added: struct s.b:  -> uint8_t at offset 2", "member moved: struct s.reserved: offset 2 -> offset 3",
				"member type changed: struct s.reserved: uint16_t -> uint8_t",
			},
		},
		{
			"reserved space gone", structs(s(m("a", "int"), m("reserved", "[4]uint8_t"))), structs(s(m("a", "int"), m("b", "int"))),
			[]string{"member added: struct s.b:  -> int at offset 4", "?member removed: struct s.reserved: uint8_t [4] at offset 4 -> "},
		},
		{
			"an array that is not reserved shrinks", structs(s(m("a", "[4]uint8_t"))), structs(s(m("a", "[2]uint8_t"), m("b", "uint16_t"))),
			[]string{
				"!alignment changed: struct s: 1 byte -> 2 bytes", "member added: struct s.b:  -> uint16_t at offset 2",
				"!member type changed: struct s.a: uint8_t [4] -> uint8_t [2]",
			},
		},
		{
			"into an anonymous union", structs(s(m("a", "int"))), structs(s(union("", m("a", "int"), m("b", "uint32_t")))),
			[]string{"member added: struct s.b:  -> uint32_t at offset 0", "?member union changed: struct s.a: alone -> in a union"},
		},
		{
			"out of an anonymous union", structs(s(union("", m("a", "int"), m("b", "int")))), structs(s(m("a", "int"))),
			[]string{"!member removed: struct s.b: int at offset 0 -> ", "?member union changed: struct s.a: in a union -> alone"},
		},
		{
			"into a named union", structs(s(m("a", "int"))), structs(s(union("u", m("a", "int")))),
			[]string{
				"member added: struct s.u:  -> union at offset 0", "?member renamed: struct s.a: a -> u.a",
			},
		},
		{
			"deep", structs(s(union("u", m("a", "int")))), structs(s(union("u", m("a", "uint64_t")))),
			[]string{
				"~struct grown: struct s: 4 bytes -> 8 bytes", "!alignment changed: struct s: 4 bytes -> 8 bytes",
				"!member type changed: struct s.u.a: int -> uint64_t",
			},
		},
		{
			"another header", structs(s(m("a", "int"))), structs(&api.Struct{Name: "struct s", Header: "new.h", Members: []*api.Member{m("a", "int")}}),
			[]string{"?header changed: struct s: h.h -> new.h"},
		},
	}.run(t)
}

// TestGrowth has structs that grow while something else holds them.
func TestGrowth(t *testing.T) {
	s, grown := st("struct s", m("a", "int")), st("struct s", m("a", "int"), m("b", "int"))
	with := func(s *api.Struct, members ...*api.Member) *api.API {
		return structs(s, st("struct outer", members...))
	}
	passing := func(s *api.Struct, prototype string) *api.API {
		a := structs(s)
		a.Functions = []*api.Function{fn("f", prototype, "x")}
		return a
	}
	const isGrown, hasB = "struct grown: struct s: 4 bytes -> 8 bytes", "member added: struct s.b:  -> int at offset 4"
	table{
		{
			"in the middle of another", with(s, m("s", "struct s"), m("z", "int")), with(grown, m("s", "struct s"), m("z", "int")),
			[]string{"~" + isGrown, "~struct grown: struct outer: 8 bytes -> 12 bytes", hasB, "!member moved: struct outer.z: offset 4 -> offset 8"},
		},
		{
			"at the end of another", with(s, m("z", "int"), m("s", "struct s")), with(grown, m("z", "int"), m("s", "struct s")),
			[]string{"~" + isGrown, "~struct grown: struct outer: 8 bytes -> 12 bytes", hasB},
		},
		{
			"behind a pointer", with(s, m("s", "*struct s"), m("z", "int")), with(grown, m("s", "*struct s"), m("z", "int")),
			[]string{"~" + isGrown, hasB},
		},
		{
			"in an array", with(s, m("s", "[2]struct s")), with(grown, m("s", "[2]struct s")),
			[]string{"!" + isGrown, "~struct grown: struct outer: 8 bytes -> 16 bytes", hasB},
		},
		{"passed by value", passing(s, "func(struct s) void"), passing(grown, "func(struct s) void"), []string{"!" + isGrown, hasB}},
		{"returned by value", passing(s, "func(int) struct s"), passing(grown, "func(int) struct s"), []string{"!" + isGrown, hasB}},
		{
			"in an array beside its length", with(s, m("list", "*struct s"), m("num_s", "int")), with(grown, m("list", "*struct s"), m("num_s", "int")),
			[]string{"!" + isGrown, hasB},
		},
		{
			"beside another number", with(s, m("s", "*struct s"), m("port_num", "int")), with(grown, m("s", "*struct s"), m("port_num", "int")),
			[]string{"~" + isGrown, hasB},
		},
		{"passed by pointer", passing(s, "func(*struct s) void"), passing(grown, "func(*struct s) void"), []string{"~" + isGrown, hasB}},
	}.run(t)
}

// TestGrowthInArrays has functions that take a pointer to a struct that grows.
func TestGrowthInArrays(t *testing.T) {
	s, grown := st("struct s", m("a", "int")), st("struct s", m("a", "int"), m("b", "int"))
	tests := []struct {
		name string
		f    []*api.Function
		why  string
	}{
		{"with a number", []*api.Function{fn("f", "func(int, *struct s) int", "num_s", "list")}, "f takes an array of it, list with num_s"},
		{"through a table", []*api.Function{inline(fn("f", "func(*const struct s, int) int", "list", "nsge"), "p->f")}, "f takes an array of it, list with nsge"},
		{"in the program's own code", []*api.Function{inline(fn("f", "func(*struct s, int) int", "list", "num_s"), "")}, ""},
		{"told the size", []*api.Function{fn("f", "func(*struct s, int, size_t) int", "list", "num_s", "entry_size")}, ""},
		{"not a number of them", []*api.Function{fn("f", "func(*struct s, int) int", "s", "flags")}, ""},
		{"an object of the library", []*api.Function{
			fn("f", "func(*struct s, int) int", "s", "num_entries"), fn("make", "func() *struct s"),
		}, ""},
		{"several pointers", []*api.Function{fn("f", "func(**struct s, *int) int", "list", "num_s")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := structs(s), structs(grown)
			a.Functions, b.Functions = tt.f, tt.f
			got := Compare(a, b).Changes[0]
			require.Equal(t, StructGrown, got.Kind)
			require.Equal(t, tt.why != "", got.Break)
			require.Equal(t, tt.why == "", got.Undecided)
			if tt.why != "" {
				require.Equal(t, tt.why, got.Why)
			}
		})
	}
}

// TestOurArrays has structs of the real headers that grow.
func TestOurArrays(t *testing.T) {
	want := map[string]string{
		"struct ibv_sge":         "ibv_wr_set_sge_list takes an array of it, sg_list with num_sge",
		"struct ibv_data_buf":    "ibv_wr_set_inline_data_list takes an array of it, buf_list with num_buf",
		"struct ibv_wc":          "ibv_poll_cq takes an array of it, wc with num_entries",
		"struct ibv_sa_path_rec": "struct rdma_route has an array of it, path_rec with num_paths",
	}
	got := map[string]string{}
	a := load(t, headertest.Newest(t))
	for _, s := range a.Structs {
		c := &comparer{from: a, to: a}
		if why := c.counted(s.Name); why != "" {
			got[s.Name] = why
		}
	}
	require.Equal(t, want, got)
}

func TestGrowthTellsTheGuard(t *testing.T) {
	why := func(members ...*api.Member) string {
		return Compare(structs(st("struct s", members...)), structs(st("struct s", append(members, m("z", "int"))...))).Changes[0].Why
	}
	require.Equal(t, "it has a comp_mask", why(m("comp_mask", "uint32_t")))
	require.Equal(t, "it has no comp_mask: safe only if the library allocates it or is told its size", why(m("mask", "uint32_t")))
}

// TestGrownAtFront has structs such as verbs_context.
func TestGrownAtFront(t *testing.T) {
	base := st("struct base", m("x", "int"))
	snapshot := func(f *api.Function, members ...*api.Member) *api.API {
		a := structs(base, st("struct s", members...))
		if f != nil {
			a.Functions = append(a.Functions, f)
		}
		return a
	}
	b, ctx := m("b", "*void"), m("ctx", "struct base")
	getter, user := inline(fn("get", "func(*struct base) *struct s", "ctx"), ""), fn("use", "func(**struct s) void", "s")
	const grown, added = "struct grown at the front: struct s: 16 bytes -> 24 bytes", "member added: struct s.a:  -> void * at offset 0"
	table{
		{"found from its end", snapshot(nil, b, ctx), snapshot(nil, m("a", "*void"), b, ctx), []string{grown, added}},
		{"by an inline function", snapshot(getter, b, ctx), snapshot(getter, m("a", "*void"), b, ctx), []string{grown, added}},
		{"an exported function has it", snapshot(user, b, ctx), snapshot(user, m("a", "*void"), b, ctx), []string{"!" + grown, added}},
		{
			"a new function has it", snapshot(nil, b, ctx), snapshot(user, m("a", "*void"), b, ctx),
			[]string{"function added: use:  -> void use(struct s **)", "!" + grown, added},
		},
		{
			"a member points to it",
			structs(base, st("struct s", b, ctx), st("struct t", m("s", "*struct s"))),
			structs(base, st("struct s", m("a", "*void"), b, ctx), st("struct t", m("s", "*struct s"))),
			[]string{"!" + grown, added},
		},
		{
			"the last member is no struct", snapshot(nil, b, m("z", "uint64_t")), snapshot(nil, m("a", "*void"), b, m("z", "uint64_t")),
			[]string{
				"~struct grown: struct s: 16 bytes -> 24 bytes", added,
				"!member moved: struct s.b: offset 0 -> offset 8", "!member moved: struct s.z: offset 8 -> offset 16",
			},
		},
		{
			"at the end too", snapshot(nil, b, ctx), snapshot(nil, m("a", "*void"), b, ctx, m("z", "uint64_t")),
			[]string{
				"~struct grown: struct s: 16 bytes -> 32 bytes", added, "member added: struct s.z:  -> uint64_t at offset 24",
				"!member moved: struct s.b: offset 0 -> offset 8", "!member moved: struct s.ctx: offset 8 -> offset 16",
			},
		},
	}.run(t)
}

// bits is a bit-field.
func bits(name, text string, width int64) *api.Member {
	return &api.Member{Name: name, Type: typ(text), Bits: &api.Bits{Width: width}}
}

func TestBitFields(t *testing.T) {
	s := func(members ...*api.Member) *api.API { return structs(st("struct s", members...)) }
	table{
		{"added", s(bits("a", "unsigned int", 3)), s(bits("a", "unsigned int", 3), bits("b", "unsigned int", 4)), []string{"member added: struct s.b:  -> unsigned int : 4 at bit 3"}},
		{"removed", s(bits("a", "unsigned int", 3), bits("b", "unsigned int", 4)), s(bits("a", "unsigned int", 3)), []string{"!member removed: struct s.b: unsigned int : 4 at bit 3 -> "}},
		{
			"wider", s(bits("a", "unsigned int", 3), bits("b", "unsigned int", 4)), s(bits("a", "unsigned int", 5), bits("b", "unsigned int", 4)),
			[]string{"!member moved: struct s.b: bit 3 -> bit 5", "!member type changed: struct s.a: unsigned int : 3 -> unsigned int : 5"},
		},
		{"renamed", s(bits("a", "unsigned int", 3)), s(bits("b", "unsigned int", 3)), []string{"?member renamed: struct s.a: a -> b"}},
		{"another sign", s(bits("a", "unsigned int", 3)), s(bits("a", "int", 3)), []string{"?member type changed: struct s.a: unsigned int : 3 -> int : 3"}},
		{"not one any more", s(bits("a", "unsigned int", 3)), s(m("a", "unsigned int")), []string{
			"!member moved: struct s.a: bit 0 -> offset 0", "!member type changed: struct s.a: unsigned int : 3 -> unsigned int",
		}},
		{
			"in a union that moves", s(m("z", "int"), union("u", bits("a", "unsigned int", 3))), s(m("z", "uint64_t"), union("u", bits("a", "unsigned int", 3))),
			[]string{
				"~struct grown: struct s: 8 bytes -> 16 bytes", "!alignment changed: struct s: 4 bytes -> 8 bytes", "!member moved: struct s.u: offset 4 -> offset 8",
				"!member moved: struct s.u.a: bit 32 -> bit 64", "!member type changed: struct s.z: int -> uint64_t",
			},
		},
	}.run(t)
}

// TestRules has structs that are packed, or aligned, in another way.
func TestRules(t *testing.T) {
	s := func(rules api.Rules, members ...*api.Member) *api.API {
		a := new(api.API)
		a.Structs = []*api.Struct{{Name: "struct s", Header: "h.h", Rules: rules, Members: copied(members)}}
		require.NoError(t, layout.New(a, layout.AMD64).Apply(a.Structs[0]))
		return a
	}
	aligned := func(n int64) *api.Member {
		return &api.Member{Name: "b", Type: typ("int"), Rules: api.Rules{Aligned: n}}
	}
	none, packed, pragma := api.Rules{}, api.Rules{Pack: 1}, api.Rules{Pack: 1, Pragma: true}
	table{
		{
			"now packed", s(none, m("a", "uint8_t"), m("b", "int")), s(packed, m("a", "uint8_t"), m("b", "int")),
			[]string{
				"!struct shrunk: struct s: 8 bytes -> 5 bytes", "!alignment changed: struct s: 4 bytes -> 1 byte", "!member moved: struct s.b: offset 4 -> offset 1",
				"layout rules changed: struct s: none -> packed",
			},
		},
		{"packed, and nothing moves", s(none, m("a", "uint8_t")), s(packed, m("a", "uint8_t")), []string{"layout rules changed: struct s: none -> packed"}},
		{"by a pragma", s(packed, m("a", "uint8_t")), s(pragma, m("a", "uint8_t")), []string{}},
		{
			"packed to less, and aligned", s(packed, m("a", "uint8_t"), m("b", "uint8_t")), s(api.Rules{Pack: 2, Aligned: 2}, m("a", "uint8_t"), m("b", "uint8_t")),
			[]string{"!alignment changed: struct s: 1 byte -> 2 bytes", "layout rules changed: struct s: packed -> pack(2), aligned(2)"},
		},
		{
			"a member", s(none, m("a", "int"), m("b", "int")), s(none, m("a", "int"), aligned(8)),
			[]string{
				"~struct grown: struct s: 8 bytes -> 16 bytes", "!alignment changed: struct s: 4 bytes -> 8 bytes",
				"!member moved: struct s.b: offset 4 -> offset 8", "layout rules changed: struct s.b: none -> aligned(8)",
			},
		},
	}.run(t)
}

// TestSpelling has a struct that is called by a typedef's name now.
func TestSpelling(t *testing.T) {
	bare := structs(st("struct s", m("a", "int")))
	bare.Structs[0].Bare = true
	tagged := structs(st("struct s", m("a", "int")))
	table{
		{"without its tag", tagged, bare, []string{"?spelling changed: struct s: struct s -> s"}},
		{"with a tag", bare, tagged, []string{"?spelling changed: struct s: s -> struct s"}},
	}.run(t)
}

// TestGrowthOfVariables has a struct of which the library has variables.
func TestGrowthOfVariables(t *testing.T) {
	snapshot := func(variable string, members ...*api.Member) *api.API {
		a := structs(st("struct s", members...))
		a.Variables = []*api.Variable{{Name: "v", Header: "h.h", Type: typ(variable)}}
		return a
	}
	const grown, added = "struct grown: struct s: 4 bytes -> 8 bytes", "member added: struct s.b:  -> int at offset 4"
	a, b := m("a", "int"), m("b", "int")
	table{
		{"one", snapshot("struct s", a), snapshot("struct s", a, b), []string{"!" + grown, added}},
		{"an array", snapshot("[2]struct s", a), snapshot("[2]struct s", a, b), []string{"!" + grown, added}},
		{"a pointer", snapshot("*struct s", a), snapshot("*struct s", a, b), []string{"~" + grown, added}},
	}.run(t)
}
