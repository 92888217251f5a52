// SPDX-License-Identifier: Apache-2.0

package check

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// TestDifferences changes one thing in a snapshot and finds it reported, with
// what the compiler says, by compilers that word their messages differently.
func TestDifferences(t *testing.T) {
	inner := func(a *api.API) *api.Struct { return a.Structs[0] }
	outer := func(a *api.API) *api.Struct { return a.Structs[1] }
	parts := func(a *api.API) *api.Member { return outer(a).Members[2].Members[1] }
	retype := func(t *api.Type, text string) {
		if err := t.UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
	}
	tests := []struct {
		name   string
		change func(*api.API)
		want   []string
	}{
		{"nothing", func(*api.API) {}, nil},
		{
			"size", func(a *api.API) { inner(a).Size = 28 },
			[]string{"struct inner size: snapshot 28, compiler 24"},
		},
		{
			"alignment", func(a *api.API) { outer(a).Align = 16 },
			[]string{"struct outer alignment: snapshot 16, compiler 8"},
		},
		{
			"offset", func(a *api.API) { inner(a).Members[1].Offset = 12 },
			[]string{"struct inner.color offset: snapshot 12, compiler 16"},
		},
		{
			"offset in a nested struct", func(a *api.API) { parts(a).Members[1].Offset = 1 },
			[]string{"struct outer.parts.second offset: snapshot 33, compiler 34"},
		},
		{"offset of an anonymous union", func(a *api.API) { outer(a).Members[2].Offset = 40 }, []string{
			"struct outer.wide offset: snapshot 40, compiler 32",
			"struct outer.parts offset: snapshot 40, compiler 32",
			"struct outer.parts.first offset: snapshot 40, compiler 32",
			"struct outer.parts.second offset: snapshot 42, compiler 34",
		}},
		{"length of an array", func(a *api.API) { retype(inner(a).Members[0].Type, "[15]char") }, []string{
			"struct inner.text size: snapshot 15, compiler 16",
			"struct inner.text type: snapshot char [15], compiler char [16]",
		}},
		{
			"const", func(a *api.API) { retype(outer(a).Members[1].Type, "*char") },
			[]string{"struct outer.name type: snapshot char *, compiler const char *"},
		},
		{"wider type", func(a *api.API) { retype(parts(a).Members[0].Type, "uint64_t") }, []string{
			// The struct that this would be in is larger, too.
			"struct outer.parts size: snapshot 16, compiler 4",
			"struct outer.parts alignment: snapshot 8, compiler 2",
			"struct outer.parts.first size: snapshot 8, compiler 1",
			"struct outer.parts.first alignment: snapshot 8, compiler 1",
			"struct outer.parts.first type: snapshot uint64_t, compiler uint8_t",
		}},
		{
			"other type", func(a *api.API) { retype(outer(a).Members[2].Members[0].Type, "*void") },
			[]string{"struct outer.wide type: snapshot void *, compiler uint64_t"},
		},
		{
			"integer for enum", func(a *api.API) { retype(inner(a).Members[1].Type, "uint32_t") },
			[]string{"struct inner.color type: snapshot uint32_t, compiler enum color"},
		},
		{
			"enum for integer", func(a *api.API) { retype(inner(a).Members[2].Type, "enum color") },
			[]string{"struct inner.number type: snapshot enum color, compiler uint32_t"},
		},
		{
			"other enum", func(a *api.API) { retype(outer(a).Members[4].Type, "enum color") },
			[]string{"struct outer.level type: snapshot enum color, compiler enum level"},
		},
		{
			"function pointer", func(a *api.API) { retype(outer(a).Members[3].Type, "*func(*struct outer, unsigned int) int") },
			[]string{"struct outer.call type: snapshot int (*)(struct outer *, unsigned int), compiler int (*)(struct outer *, enum color)"},
		},
		{
			"signedness", func(a *api.API) { a.Enums[1].Signed = false },
			// Members of that type are then claimed to be of another one.
			[]string{"enum level type: snapshot unsigned int, compiler int"},
		},
		{
			"enumerator", func(a *api.API) { a.Enums[1].Values[0].Value = 1 },
			[]string{"LOW value: snapshot 1, compiler -1"},
		},
		{
			"anonymous enumerator", func(a *api.API) { a.Enums[2].Values[0].Value = 1 << 40 },
			[]string{"LOOSE value: snapshot 1099511627776, compiler 3"},
		},
		{
			"macro", func(a *api.API) { a.Macros[0].Value = 1 },
			[]string{"LIMIT value: snapshot 1, compiler -9223372036854775808"},
		},
		{
			"type of a macro", func(a *api.API) { a.Macros[2].Type = "unsigned int" },
			[]string{"VERT type: snapshot unsigned int, compiler int"},
		},
		{
			"macro that is no pointer", func(a *api.API) { a.Macros[2].Type = "pointer" },
			[]string{"VERT type: snapshot pointer, compiler int"},
		},
		{
			"macro that is a pointer", func(a *api.API) { a.Macros[1].Value, a.Macros[1].Type = 0, "int" },
			[]string{"NOTHING value: snapshot 0, compiler -1", "NOTHING type: snapshot int, compiler void *"},
		},
		{
			"alias", func(a *api.API) { a.Aliases[0].Target = "level" },
			[]string{"tint target: snapshot enum level, compiler enum color"},
		},
		{
			"result", func(a *api.API) { retype(a.Functions[3].Type, "func() unsigned int") },
			[]string{"count prototype: snapshot unsigned int (void), compiler int (void)"},
		},
		{
			"parameter", func(a *api.API) { retype(a.Functions[0].Type, "func(*struct outer, *enum color, int) int") },
			[]string{"paint prototype: snapshot int (struct outer *, enum color *, int), compiler int (struct outer *, const enum color *, int)"},
		},
		{
			"fewer parameters", func(a *api.API) { retype(a.Functions[0].Type, "func(*struct outer) int") },
			[]string{"paint prototype: snapshot int (struct outer *), compiler int (struct outer *, const enum color *, int)"},
		},
		{
			"not variadic", func(a *api.API) { retype(a.Functions[1].Type, "func(*const char) int") },
			[]string{"print prototype: snapshot int (const char *), compiler int (const char *, ...)"},
		},
		{"no prototype", func(a *api.API) {
			a.Functions[3].Name = "loose"
		}, []string{"loose prototype: snapshot int (void), compiler int ()"}},
		{
			"integer parameter for enum", func(a *api.API) { retype(a.Functions[2].Type, "func(unsigned int, unsigned int) enum color") },
			[]string{"mix prototype: snapshot enum color (unsigned int, unsigned int), compiler enum color (enum color, unsigned int)"},
		},
	}
	for _, cc := range natives(t) {
		for _, tt := range tests {
			t.Run(cc.String()+"/"+tt.name, func(t *testing.T) {
				a := small(t)
				tt.change(a)
				facts, err := Facts(a, cc.Arch)
				require.NoError(t, err)
				r, err := Compare(cc, facts, smallDeclarations())
				require.NoError(t, err)
				require.Equal(t, tt.want, r.Different)
			})
		}
	}
}

// TestOtherLayouts has a compiler for arm64 judge what is so on amd64.
func TestOtherLayouts(t *testing.T) {
	for _, cc := range compilers(t) {
		if cc.arch != "arm64" {
			continue
		}
		c := cc.find(t)
		facts, err := Facts(small(t), layout.AMD64)
		require.NoError(t, err)
		r, err := Compare(c, facts, smallDeclarations())
		require.NoError(t, err)
		require.Equal(t, []string{
			"struct outer.mutex size: snapshot 40, compiler 48",
			"struct outer size: snapshot 96, compiler 104",
		}, r.Different)
	}
}

// TestMissing shows that what is not declared at all is a difference like any
// other, in the compiler's own words.
func TestMissing(t *testing.T) {
	c := native(t)
	a := small(t)
	a.Functions[3].Name = "amount"
	a.Structs[0].Members[0].Name = "texts"
	a.Enums[0].Values[0].Name = "ROT"
	facts, err := Facts(a, c.Arch)
	require.NoError(t, err)
	r, err := Compare(c, facts, smallDeclarations())
	require.NoError(t, err)
	require.Len(t, r.Different, 6)
	for i, start := range []string{
		"struct inner.texts offset: snapshot 0, compiler ", "struct inner.texts size: ", "struct inner.texts alignment: ", "struct inner.texts type: ",
		"ROT value: snapshot 0, compiler ", "amount prototype: snapshot int (void), compiler ",
	} {
		require.Contains(t, r.Different[i], start)
	}
	require.Regexp(t, `compiler (no member named 'texts'|'struct inner' has no member named 'texts')`, r.Different[0])
	require.Regexp(t, `compiler ('ROT' undeclared|use of undeclared identifier 'ROT')`, r.Different[4])
}
