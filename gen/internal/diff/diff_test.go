// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

func typ(text string) *api.Type {
	t, err := api.ParseType(text)
	if err != nil {
		panic(err)
	}
	return t
}

func fn(name, prototype string, params ...string) *api.Function {
	return &api.Function{Name: name, Header: "h.h", Type: typ(prototype), Params: params}
}

func inline(f *api.Function, call string) *api.Function {
	f.Inline = &api.Inline{Call: call}
	return f
}

func node(f *api.Function, node string) *api.Function {
	f.Node = node
	return f
}

func functions(list ...*api.Function) *api.API { return &api.API{Functions: list} }

// exporting adds a function that the library exports and the headers lack.
func exporting(a *api.API, name, node string) *api.API {
	a.Undeclared = append(a.Undeclared, &api.Export{Name: name, Node: node})
	return a
}

func enum(name string, values ...api.Enumerator) *api.Enum {
	return &api.Enum{Name: name, Header: "h.h", Values: values}
}

func enums(list ...*api.Enum) *api.API { return &api.API{Enums: list} }

func m(name, text string) *api.Member { return &api.Member{Name: name, Type: typ(text)} }

func union(name string, members ...*api.Member) *api.Member {
	return &api.Member{Name: name, Aggregate: "union", Members: members}
}

func st(name string, members ...*api.Member) *api.Struct {
	return &api.Struct{Name: name, Header: "h.h", Members: members}
}

// structs returns a snapshot of copies, with the layouts that C gives them.
func structs(list ...*api.Struct) *api.API {
	a := new(api.API)
	for _, s := range list {
		a.Structs = append(a.Structs, &api.Struct{Name: s.Name, Header: s.Header, Members: copied(s.Members)})
	}
	for _, s := range a.Structs {
		if err := layout.New(a, layout.AMD64).Apply(s); err != nil {
			panic(err)
		}
	}
	return a
}

func copied(members []*api.Member) []*api.Member {
	var out []*api.Member
	for _, m := range members {
		out = append(out, &api.Member{Name: m.Name, Type: m.Type, Aggregate: m.Aggregate, Rules: m.Rules, Bits: bitsOf(m, 0), Members: copied(m.Members)})
	}
	return out
}

func macros(list ...*api.Macro) *api.API { return &api.API{Macros: list} }

func aliases(list ...*api.Alias) *api.API { return &api.API{Aliases: list} }

// compare has what changed as kind, name and from -> to, with ! before an ABI
// break, ~ before what can be one and ? before a source break.
func compare(a, b *api.API) []string {
	out := []string{}
	for _, c := range Compare(a, b).Changes {
		mark := ""
		switch {
		case c.Break:
			mark = "!"
		case c.Undecided:
			mark = "~"
		case c.Source:
			mark = "?"
		}
		name := c.Name
		if c.Of != "" {
			name = c.Of + "." + name
		}
		out = append(out, mark+string(c.Kind)+": "+name+": "+c.From+" -> "+c.To)
	}
	return out
}

type table []struct {
	name string
	a, b *api.API
	want []string
}

func (tests table) run(t *testing.T) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, compare(tt.a, tt.b))
			require.Empty(t, compare(tt.a, tt.a))
			require.Empty(t, compare(tt.b, tt.b))
		})
	}
}

func TestHeaders(t *testing.T) {
	headers := func(names ...string) *api.API {
		a := new(api.API)
		for _, name := range names {
			a.Headers = append(a.Headers, &api.Header{Name: name})
		}
		return a
	}
	table{
		{"added", headers("a.h"), headers("a.h", "b.h"), []string{"header added: b.h:  -> "}},
		{"gone", headers("a.h", "b.h"), headers("a.h"), []string{"?header removed: b.h:  -> "}},
		{"not recorded before", headers(), headers("a.h"), []string{}},
		{"not recorded any more", headers("a.h"), headers(), []string{}},
	}.run(t)
}

// TestRemovedWhy has what is said of a function that the headers lack.
func TestRemovedWhy(t *testing.T) {
	why := func(a, b *api.API) string { return Compare(a, b).Changes[0].Why }
	f, g := node(fn("f", "func() int"), "N_1"), node(fn("g", "func() int"), "N_1")
	require.Equal(t, "programs that call it cannot be linked or started", why(functions(f, g), functions(g)))
	require.Equal(t, "the library exports it under another node, N_2", why(functions(f), exporting(functions(), "f", "N_2")))
	require.Equal(t, "the library still exports it, so compiled programs start", why(functions(f), exporting(functions(), "f", "N_1")))
	require.Equal(t, "the library did not export it, so no program was linked with it",
		why(functions(fn("f", "func() int"), g), functions(g)))
	require.Equal(t, "programs that call it cannot be compiled, nor started unless the library still exports it: the snapshot was made without it",
		why(functions(f), functions()))
}

func TestFunctions(t *testing.T) {
	table{
		{"added", functions(), functions(fn("f", "func(int) int", "a")), []string{"function added: f:  -> int f(int)"}},
		{"added with its node", functions(), functions(node(fn("f", "func() int"), "N_1")), []string{"function added: f:  -> int f(void), N_1"}},
		{
			"added inline", functions(), functions(inline(fn("f", "func() int"), "p->f")),
			[]string{"function added: f:  -> int f(void), inline, calls p->f"},
		},
		{"removed", functions(fn("f", "func() int")), functions(), []string{"!function removed: f: int f(void) -> "}},
		{
			"removed from the headers, still exported", functions(node(fn("f", "func() int"), "N_1")), exporting(functions(), "f", "N_1"),
			[]string{"?function removed: f: int f(void), N_1 -> "},
		},
		{
			"removed from the headers, exported in another way", functions(node(fn("f", "func() int"), "N_1")), exporting(functions(), "f", "N_2"),
			[]string{"!function removed: f: int f(void), N_1 -> "},
		},
		{
			"removed, never exported", functions(fn("f", "func() int"), node(fn("g", "func() int"), "N_1")), functions(node(fn("g", "func() int"), "N_1")),
			[]string{"?function removed: f: int f(void) -> "},
		},
		{
			"exported to inline, exported in another way", functions(node(fn("f", "func() int"), "N_1")),
			exporting(functions(inline(fn("f", "func() int"), "p->f")), "f", "N_2"),
			[]string{"!function now inline: f: exported -> inline, calls p->f"},
		},
		{
			"removed inline", functions(inline(fn("f", "func() int"), "")), functions(),
			[]string{"?function removed: f: int f(void), inline with logic of its own -> "},
		},
		{
			"one more parameter", functions(fn("f", "func(int) int", "a")), functions(fn("f", "func(int, int) int", "a", "b")),
			[]string{"!prototype changed: f: int f(int) -> int f(int, int)"},
		},
		{
			"variadic", functions(fn("f", "func(int) int", "a")), functions(fn("f", "func(int, ...) int", "a")),
			[]string{"!prototype changed: f: int f(int) -> int f(int, ...)"},
		},
		{
			"wider parameter", functions(fn("f", "func(uint8_t) int", "a")), functions(fn("f", "func(uint32_t) int", "a")),
			[]string{"!prototype changed: f: int f(uint8_t) -> int f(uint32_t)"},
		},
		{
			"another struct", functions(fn("f", "func(*struct a) int", "a")), functions(fn("f", "func(*struct b) int", "a")),
			[]string{"!prototype changed: f: int f(struct a *) -> int f(struct b *)"},
		},
		{
			"a result", functions(fn("f", "func() void")), functions(fn("f", "func() int")),
			[]string{"!prototype changed: f: void f(void) -> int f(void)"},
		},
		{
			"const", functions(fn("f", "func(*char) int", "a")), functions(fn("f", "func(*const char) int", "a")),
			[]string{"?prototype changed: f: int f(char *) -> int f(const char *)"},
		},
		{
			"parameter renamed", functions(fn("f", "func(int) int", "a")), functions(fn("f", "func(int) int", "b")),
			[]string{"parameters renamed: f: a -> b"},
		},
		{
			"exported to inline", functions(fn("f", "func() int")), functions(inline(fn("f", "func() int"), "p->f")),
			[]string{"!function now inline: f: exported -> inline, calls p->f"},
		},
		{
			"exported to inline, still exported", functions(node(fn("f", "func() int"), "N_1")),
			exporting(functions(inline(fn("f", "func() int"), "p->f")), "f", "N_1"),
			[]string{"function now inline: f: exported -> inline, calls p->f"},
		},
		{
			"inline to exported", functions(inline(fn("f", "func() int"), "")), functions(fn("f", "func() int")),
			[]string{"function now exported: f: inline with logic of its own -> exported"},
		},
		{
			"inline body",
			functions(inline(fn("f", "func() int"), "p->f")),
			functions(&api.Function{Name: "f", Header: "h.h", Type: typ("func() int"), Inline: &api.Inline{Call: "vctx->f", Guard: "p->context"}}),
			[]string{"inline body changed: f: inline, calls p->f -> inline, calls vctx->f of p->context"},
		},
		{
			"words of an inline body", functions(worded("0a")), functions(worded("0b")),
			[]string{"body changed: f:  -> "},
		},
		{"words of an inline body, of which one snapshot knows nothing", functions(worded("")), functions(worded("0b")), []string{}},
		{"the same words", functions(worded("0a")), functions(worded("0a")), []string{}},
		{
			"node changed", functions(node(fn("f", "func() int"), "N_1")), functions(node(fn("f", "func() int"), "N_2")),
			[]string{"!node changed: f: N_1 -> N_2"},
		},
		{
			"node lost and gained",
			functions(node(fn("f", "func() int"), "N_1"), fn("g", "func() int")),
			functions(fn("f", "func() int"), node(fn("g", "func() int"), "N_2")),
			[]string{"!node lost: f: N_1 -> ", "node gained: g:  -> N_2"},
		},
		{
			"no nodes in one snapshot", functions(node(fn("f", "func() int"), "N_1")), functions(fn("f", "func() int")),
			[]string{},
		},
		{
			"another header", functions(fn("f", "func() int")), functions(&api.Function{Name: "f", Header: "new.h", Type: typ("func() int")}),
			[]string{"?header changed: f: h.h -> new.h"},
		},
		{"another order", functions(fn("f", "func() int"), fn("g", "func() int")), functions(fn("g", "func() int"), fn("f", "func() int")), []string{}},
	}.run(t)
}

func TestEnums(t *testing.T) {
	one, two, negative := api.Enumerator{Name: "ONE", Value: 1}, api.Enumerator{Name: "TWO", Value: 2}, api.Enumerator{Name: "NEG", Value: -1}
	signed := enum("e", one, negative)
	signed.Signed = true
	table{
		{"added", enums(), enums(enum("e", one)), []string{"enum added: enum e:  -> h.h", "enumerator added: enum e.ONE:  -> 1"}},
		{"removed", enums(enum("e", one)), enums(), []string{"?enum removed: enum e: h.h -> ", "?enumerator removed: enum e.ONE: 1 -> "}},
		{"one more", enums(enum("e", one)), enums(enum("e", two, one)), []string{"enumerator added: enum e.TWO:  -> 2"}},
		{"one less", enums(enum("e", one, two)), enums(enum("e", two)), []string{"?enumerator removed: enum e.ONE: 1 -> "}},
		{
			"another value", enums(enum("e", one)), enums(enum("e", api.Enumerator{Name: "ONE", Value: 10})),
			[]string{"!enumerator value changed: enum e.ONE: 1 -> 10"},
		},
		{
			"signed", enums(enum("e", one)), enums(signed),
			[]string{"?enum signedness changed: enum e: unsigned -> signed", "enumerator added: enum e.NEG:  -> -1"},
		},
		{
			"moved", enums(enum("e", one), enum("f", two)), enums(enum("e", one, two)),
			[]string{"?enum removed: enum f: h.h -> ", "?enumerator moved: enum e.TWO: enum f -> enum e"},
		},
		{"anonymous, another first", enums(enum("", one)), enums(enum("", two, one)), []string{"enumerator added: enum.TWO:  -> 2"}},
		{
			"another header", enums(enum("e", one)), enums(&api.Enum{Name: "e", Header: "new.h", Values: []api.Enumerator{one}}),
			[]string{"?header changed: enum e: h.h -> new.h"},
		},
	}.run(t)
}

// TestEnumForms has enums that take another size, or another spelling.
func TestEnumForms(t *testing.T) {
	one := api.Enumerator{Name: "ONE", Value: 1}
	wide, bare := enum("e", one), enum("e", one)
	wide.Size, bare.Bare = 8, true
	table{
		{"wider", enums(enum("e", one)), enums(wide), []string{"!enum size changed: enum e: 4 bytes -> 8 bytes"}},
		{"narrower", enums(wide), enums(enum("e", one)), []string{"!enum size changed: enum e: 8 bytes -> 4 bytes"}},
		{"without its tag", enums(enum("e", one)), enums(bare), []string{"?spelling changed: enum e: enum e -> e"}},
		{"with a tag", enums(bare), enums(enum("e", one)), []string{"?spelling changed: enum e: e -> enum e"}},
	}.run(t)
}

// worded is an inline function whose body has a digest.
func worded(digest string) *api.Function {
	f := inline(fn("f", "func() int"), "")
	f.Inline.Body = digest
	return f
}

func TestMacros(t *testing.T) {
	x := &api.Macro{Name: "X", Header: "h.h", Type: "int", Value: 1}
	unvalued := &api.API{Unvalued: []*api.Unvalued{{Name: "X", Header: "h.h"}}}
	text := func(digest string) *api.API {
		return &api.API{Unvalued: []*api.Unvalued{{Name: "X", Header: "h.h", Body: digest}}}
	}
	table{
		{"another text", text("0a"), text("0b"), []string{"macro text changed: X:  -> "}},
		{"the same text", text("0a"), text("0a"), []string{}},
		{"a text, of which one snapshot knows nothing", text("0a"), unvalued, []string{}},
		{"added", macros(), macros(x), []string{"macro added: X:  -> 1, int"}},
		{"added, without a value", macros(), unvalued, []string{"macro added: X:  -> no value"}},
		{"removed, without a value", unvalued, macros(), []string{"?macro removed: X: no value -> "}},
		{"lost its value", macros(x), unvalued, []string{"?macro type changed: X: int -> no value"}},
		{"got a value", unvalued, macros(x), []string{"?macro type changed: X: no value -> int"}},
		{"removed", macros(x), macros(), []string{"?macro removed: X: 1, int -> "}},
		{
			"another value", macros(x), macros(&api.Macro{Name: "X", Header: "h.h", Type: "int", Value: 2}),
			[]string{"!macro value changed: X: 1 -> 2"},
		},
		{
			"another type", macros(x), macros(&api.Macro{Name: "X", Header: "h.h", Type: "unsigned long long", Value: 1}),
			[]string{"?macro type changed: X: int -> unsigned long long"},
		},
		{
			"now an enumerator's name", macros(x), macros(&api.Macro{Name: "X", Header: "h.h", Type: "int", Value: 1, Enumerator: "ONE"}),
			[]string{"?macro type changed: X: int -> another name of ONE"},
		},
		{
			"another header", macros(x), macros(&api.Macro{Name: "X", Header: "new.h", Type: "int", Value: 1}),
			[]string{"?header changed: X: h.h -> new.h"},
		},
		{
			"another string", macros(quoted("one")), macros(quoted("two")), []string{`!macro value changed: X: "one" -> "two"`},
		},
		{"a string added", macros(), macros(quoted("one")), []string{`macro added: X:  -> "one", char *`}},
		{
			"address", macros(), macros(&api.Macro{Name: "X", Header: "h.h", Type: "pointer", Value: -1}),
			[]string{"macro added: X:  -> 0xffffffffffffffff, pointer"},
		},
	}.run(t)
}

// quoted is a macro that stands for a string.
func quoted(text string) *api.Macro {
	return &api.Macro{Name: "X", Header: "h.h", Type: "char *", Text: strconv.Quote(text)}
}

func TestAliases(t *testing.T) {
	x := &api.Alias{Name: "x", Header: "h.h", Target: "y"}
	table{
		{"added", aliases(), aliases(x), []string{"alias added: x:  -> y"}},
		{"removed", aliases(x), aliases(), []string{"?alias removed: x: y -> "}},
		{"another target", aliases(x), aliases(&api.Alias{Name: "x", Header: "h.h", Target: "z"}), []string{"?alias target changed: x: y -> z"}},
		{"another header", aliases(x), aliases(&api.Alias{Name: "x", Header: "new.h", Target: "y"}), []string{"?header changed: x: h.h -> new.h"}},
	}.run(t)
}

func TestTypedefs(t *testing.T) {
	typedefs := func(header string, types ...string) *api.API {
		a := new(api.API)
		for i, text := range types {
			a.Typedefs = append(a.Typedefs, &api.Typedef{Name: string(rune('x' + i)), Header: header, Type: typ(text)})
		}
		return a
	}
	table{
		{"added", typedefs("h.h", "int"), typedefs("h.h", "int", "*struct s"), []string{"typedef added: y:  -> struct s *"}},
		{"removed", typedefs("h.h", "int", "*struct s"), typedefs("h.h", "int"), []string{"?typedef removed: y: struct s * -> "}},
		{"of another form", typedefs("h.h", "int"), typedefs("h.h", "uint64_t"), []string{"!typedef changed: x: int -> uint64_t"}},
		{"of another sign", typedefs("h.h", "int8_t"), typedefs("h.h", "uint8_t"), []string{"!typedef changed: x: int8_t -> uint8_t"}},
		{"of the same form", typedefs("h.h", "int"), typedefs("h.h", "uint32_t"), []string{"?typedef changed: x: int -> uint32_t"}},
		{"of a function", typedefs("h.h", "func(int) int"), typedefs("h.h", "func(int, int) int"), []string{"!typedef changed: x: int (int) -> int (int, int)"}},
		{"in another header", typedefs("h.h", "int"), typedefs("new.h", "int"), []string{"?header changed: x: h.h -> new.h"}},
	}.run(t)
}

func TestVariables(t *testing.T) {
	variables := func(header string, types ...string) *api.API {
		a := new(api.API)
		for i, text := range types {
			a.Variables = append(a.Variables, &api.Variable{Name: string(rune('x' + i)), Header: header, Type: typ(text)})
		}
		return a
	}
	table{
		{"added", variables("h.h"), variables("h.h", "[4]int"), []string{"variable added: x:  -> int x[4]"}},
		{"removed", variables("h.h", "int"), variables("h.h"), []string{"!variable removed: x: int x -> "}},
		{"longer", variables("h.h", "[4]int"), variables("h.h", "[5]int"), []string{"!variable type changed: x: int x[4] -> int x[5]"}},
		{"now const", variables("h.h", "int"), variables("h.h", "const int"), []string{"?variable type changed: x: int x -> const int x"}},
		{"in another header", variables("h.h", "int"), variables("new.h", "int"), []string{"?header changed: x: h.h -> new.h"}},
	}.run(t)
}
