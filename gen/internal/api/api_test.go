// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// snapshot returns the path of the newest.
func snapshot(t testing.TB) string {
	t.Helper()
	const dir = "../../../headers/api"
	versions, err := Versions(dir)
	require.NoError(t, err)
	return filepath.Join(dir, versions[len(versions)-1]+".json")
}

func load(t testing.TB) *API {
	t.Helper()
	a, err := Load(snapshot(t))
	require.NoError(t, err)
	return a
}

// TestMarshal proves that a snapshot comes back from its text, to the byte.
func TestMarshal(t *testing.T) {
	a := load(t)
	text, err := a.Marshal()
	require.NoError(t, err)
	want, err := os.ReadFile(snapshot(t))
	require.NoError(t, err)
	require.Equal(t, string(want), string(text))

	path := filepath.Join(t.TempDir(), "again.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	again, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, a, again)
}

func TestLoadErrors(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	path := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"functions": [{"name": "f", "type": "*"}]}`), 0o600))
	_, err = Load(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, `type "*"`)
}

// TestParseErrors has snapshots that lack what their readers rely on.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                              "unexpected end",
		`{"functions": [null]}`:          "function 1 has no name or no prototype",
		`{"functions": [{"name": "f"}]}`: "function 1 has no name or no prototype",
		`{"functions": [{"type": "func() int"}]}`:                                                   "function 1 has no name or no prototype",
		`{"functions": [{"name": "f", "type": "int"}]}`:                                             "function 1 has no name or no prototype",
		`{"enums": [{"name": "e"}]}`:                                                                "enum 1 has no values",
		`{"structs": [{}]}`:                                                                         "struct 1 has no name",
		`{"structs": [{"name": "struct s", "members": [null]}]}`:                                    "struct s: a member has neither",
		`{"structs": [{"name": "struct s", "members": [{"type": "int"}]}]}`:                         "struct s: a member has neither",
		`{"structs": [{"name": "struct s", "members": [{"name": "m"}]}]}`:                           "struct s: a member has neither",
		`{"structs": [{"name": "struct s", "members": [{"aggregate": "union", "members": [{}]}]}]}`: "struct s: a member has neither",

		`{"headers": [{}]}`:               "header 1 has no name",
		`{"undeclared": [{"name": "f"}]}`: "undeclared function 1 has no name or no node",
		`{"macros": [{}]}`:                "macro 1 has no name",
		`{"aliases": [{}]}`:               "alias 1 has no name",
		`{"unvalued": [{}]}`:              "macro 1 without a value has no name",
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// TestParamNames has parameters that the header leaves without a name.
func TestParamNames(t *testing.T) {
	prototype, err := ParseType("func(int, int, int) void")
	require.NoError(t, err)
	for _, tt := range []struct{ params, want []string }{
		{[]string{"a", "b", "c"}, []string{"a", "b", "c"}},
		{[]string{"a", "", "c"}, []string{"a", "arg2", "c"}},
		{[]string{"arg2", "", "arg2_"}, []string{"arg2", "arg2__", "arg2_"}},
		{[]string{"", "arg1", ""}, []string{"arg1_", "arg1", "arg3"}},
		{nil, []string{"arg1", "arg2", "arg3"}},
		{[]string{"a", "b", "c", "d"}, []string{"a", "b", "c"}},
	} {
		require.Equal(t, tt.want, (&Function{Type: prototype, Params: tt.params}).ParamNames())
	}
}

func TestKey(t *testing.T) {
	require.Equal(t, "ibv_mtu", (&Enum{Name: "ibv_mtu"}).Key())
	require.Equal(t, ":FIRST", (&Enum{Values: []Enumerator{{Name: "FIRST"}, {Name: "SECOND"}}}).Key())
}

// types returns every type that the snapshot has, with what they are made of.
func types(a *API) []*Type {
	var all []*Type
	var add func(t *Type)
	add = func(t *Type) {
		if t == nil {
			return
		}
		all = append(all, t)
		add(t.Elem)
		for _, p := range t.Params {
			add(p)
		}
	}
	var members func(list []*Member)
	members = func(list []*Member) {
		for _, m := range list {
			add(m.Type)
			members(m.Members)
		}
	}
	for _, f := range a.Functions {
		add(f.Type)
	}
	for _, s := range a.Structs {
		members(s.Members)
	}
	return all
}

func TestEveryTypeOfTheSnapshot(t *testing.T) {
	all := types(load(t))
	require.Greater(t, len(all), 2000)
	for _, typ := range all {
		again, err := ParseType(typ.String())
		require.NoError(t, err)
		require.Equal(t, typ, again)
		require.NotEmpty(t, typ.C("x"))
	}
}
