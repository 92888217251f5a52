// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
)

func member(t *testing.T, name, text string) *api.Member {
	t.Helper()
	typ, err := api.ParseType(text)
	require.NoError(t, err)
	return &api.Member{Name: name, Type: typ}
}

func TestOf(t *testing.T) {
	e := New(&api.API{}, AMD64)
	tests := []struct {
		text        string
		size, align int64
	}{
		{"char", 1, 1},
		{"short", 2, 2},
		{"int", 4, 4},
		{"long", 8, 8},
		{"__be64", 8, 8},
		{"size_t", 8, 8},
		{"enum ibv_mtu", 4, 4},
		{"*void", 8, 8},
		{"*func() int", 8, 8},
		{"*struct unknown", 8, 8},
		{"[3]short", 6, 2},
		{"[2][3]int", 24, 4},
		{"[4]*char", 32, 8},
		{"pthread_mutex_t", 40, 8},
		{"pthread_cond_t", 48, 8},
	}
	for _, tt := range tests {
		size, err := e.Of(member(t, "", tt.text).Type)
		require.NoError(t, err, tt.text)
		require.Equal(t, Size{tt.size, tt.align}, size, tt.text)
	}
	for text, want := range map[string]string{
		"func() int":     "a function has no size",
		"struct unknown": "the size of struct unknown is not known",
		"[2]long double": "the size of long double is not known",
		"void":           "the size of void is not known",
	} {
		_, err := e.Of(member(t, "", text).Type)
		require.EqualError(t, err, want)
	}
}

func TestArches(t *testing.T) {
	mutexes := map[string]int64{}
	for _, arch := range Arches {
		size, err := New(&api.API{}, arch).Of(&api.Type{Name: "pthread_mutex_t"})
		require.NoError(t, err)
		require.EqualValues(t, 8, size.Align)
		mutexes[arch.Name] = size.Size
	}
	require.Equal(t, map[string]int64{
		"amd64": 40, "arm64": 48, "loong64": 40, "ppc64le": 40, "riscv64": 40, "s390x": 40,
	}, mutexes)
}

func TestApply(t *testing.T) {
	inner := &api.Struct{Name: "union inner", Members: []*api.Member{member(t, "a", "[3]char"), member(t, "b", "short")}}
	outer := &api.Struct{Name: "struct outer", Members: []*api.Member{
		member(t, "c", "char"),
		member(t, "u", "union inner"),
		{Name: "here", Aggregate: "struct", Members: []*api.Member{member(t, "x", "char"), member(t, "y", "long")}},
		{Aggregate: "union", Members: []*api.Member{member(t, "p", "*void"), member(t, "q", "int")}},
		member(t, "last", "char"),
	}}
	opaque := &api.Struct{Name: "struct opaque"}
	e := New(&api.API{Structs: []*api.Struct{inner, outer, opaque}}, AMD64)
	require.NoError(t, e.Apply(outer))
	require.Equal(t, []int64{40, 8}, []int64{outer.Size, outer.Align})
	var offsets []int64
	for _, m := range outer.Members {
		offsets = append(offsets, m.Offset)
	}
	require.Equal(t, []int64{0, 2, 8, 24, 32}, offsets[:5])
	require.EqualValues(t, 8, outer.Members[2].Members[1].Offset)
	require.EqualValues(t, 0, outer.Members[3].Members[1].Offset)

	require.NoError(t, e.Apply(inner))
	require.Equal(t, []int64{4, 2}, []int64{inner.Size, inner.Align})
	require.NoError(t, e.Apply(opaque))
	require.Zero(t, opaque.Size)
}

func TestContainsItself(t *testing.T) {
	a := &api.Struct{Name: "struct a", Members: []*api.Member{member(t, "b", "[2]struct b")}}
	b := &api.Struct{Name: "struct b", Members: []*api.Member{member(t, "a", "struct a")}}
	e := New(&api.API{Structs: []*api.Struct{a, b}}, AMD64)
	require.EqualError(t, e.Apply(a), `struct a: member "b": struct b: member "a": struct a contains itself`)
}
