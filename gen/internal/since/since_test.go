// SPDX-License-Identifier: Apache-2.0

package since

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

func TestParse(t *testing.T) {
	table, err := Parse("s.txt", []byte(`
# A comment.
59 func ibv_reg_mr_ex # another
60.1	member  rdma_cm_event.param.arg

64 struct ibv_buf
64 func ibv_buf
`))
	require.NoError(t, err)
	for name, want := range map[api.Name]string{
		{Kind: "func", Name: "ibv_reg_mr_ex"}:             "59",
		{Kind: "member", Name: "rdma_cm_event.param.arg"}: "60.1",
		{Kind: "struct", Name: "ibv_buf"}:                 "64",
		{Kind: "func", Name: "ibv_buf"}:                   "64",
		{Kind: "enum", Name: "ibv_reg_mr_ex"}:             "",
		{Kind: "func", Name: "ibv_reg_mr"}:                "",
	} {
		require.Equal(t, want, table.Release(name.Kind, name.Name), name)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ line, want string }{
		{"59", `expected a release, a kind and a name, found "59"`},
		{"59 func", `expected a release, a kind and a name, found "59 func"`},
		{"59 func # ibv_x", `expected a release, a kind and a name, found "59 func"`},
		{"59 func ibv_x ibv_y", `expected a release, a kind and a name, found "59 func ibv_x ibv_y"`},
		{"v59 func ibv_x", `"v59" is not a version such as 65.0`},
		{"59. func ibv_x", `"59." is not a version such as 65.0`},
		{"059 func ibv_x", `"059" is not a version such as 65.0`},
		{"-1 func ibv_x", `"-1" is not a version such as 65.0`},
		{"59 function ibv_x", `unknown kind "function": expected one of func, enum, enumerator, struct, union, member, macro, alias, typedef, variable`},
		{"60 func ibv_twice", "func ibv_twice has a second line, after line 2"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			_, err := Parse("s.txt", []byte("\n59 func ibv_twice\n"+tt.line))
			require.EqualError(t, err, "s.txt:3: "+tt.want)
		})
	}
}

// three are snapshots with functions that came at different times.
func three(names ...[]string) []*api.API {
	var all []*api.API
	for i, version := range []string{"33.2", "44.0", "45.0"} {
		a := &api.API{Version: version}
		for _, name := range names[i] {
			a.Functions = append(a.Functions, &api.Function{Name: name})
		}
		all = append(all, a)
	}
	return all
}

func TestCheck(t *testing.T) {
	all := three([]string{"old", "gone"}, []string{"old", "mid", "between"}, []string{"old", "mid", "new", "gone"})
	const right = "44 func mid\n44.0 func between\n45 func new\n"
	tests := []struct{ name, text, want string }{
		{"right", right, ""},
		{"not the last of the interval", "34 func mid\n33.3 func between\n44.1 func new\n", ""},
		{
			"missing", "44 func between\n45 func new\n",
			"s.txt: no line for func mid, which was added after 33.2, in 44.0 at the latest; add a line with the first release that has it, such as: 44 func mid",
		},
		{
			"two missing", "44 func mid\n",
			"s.txt: no line for func between, which was added after 33.2, in 44.0 at the latest; add a line with the first release that has it, such as: 44 func between\n" +
				"s.txt: no line for func new, which was added after 44.0, in 45.0 at the latest; add a line with the first release that has it, such as: 45 func new",
		},
		{
			"too old", "33 func mid\n44 func between\n45 func new\n",
			"s.txt:1: func mid was added after 33.2, in 44.0 at the latest, but the line says 33; name the first release that has it, such as: 44 func mid",
		},
		{
			"of the snapshot before", "44 func mid\n44 func between\n44 func new\n",
			"s.txt:3: func new was added after 44.0, in 45.0 at the latest, but the line says 44; name the first release that has it, such as: 45 func new",
		},
		{
			"too new", "45 func mid\n44 func between\n45 func new\n",
			"s.txt:1: func mid was added after 33.2, in 44.0 at the latest, but the line says 45; name the first release that has it, such as: 44 func mid",
		},
		{"of nothing", right + "45 func ibv_x\n", "s.txt:4: func ibv_x is in no snapshot: remove the line"},
		{
			"of another kind", right + "45 macro new\n",
			"s.txt:4: macro new is in no snapshot: remove the line",
		},
		{
			"always there", right + "44 func old\n",
			"s.txt:4: func old is in the oldest snapshot, of 33.2, already: remove the line",
		},
		{
			"away for a while", right + "45 func gone\n",
			"s.txt:4: func gone is in the oldest snapshot, of 33.2, already: remove the line",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			table, err := Parse("s.txt", []byte(tt.text))
			require.NoError(t, err)
			err = table.Check(all)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tt.want)
		})
	}
}

// TestProposal adds the lines that a check asks for.
func TestProposal(t *testing.T) {
	all := three([]string{"a"}, []string{"a", "b"}, []string{"c", "b", "d"})
	all[2].Version = "44.1"
	empty, err := Parse("s.txt", nil)
	require.NoError(t, err)
	var lines strings.Builder
	for line := range strings.Lines(empty.Check(all).Error()) {
		lines.WriteString(line[strings.LastIndex(line, ": ")+2:])
	}
	require.Equal(t, "44 func b\n44.1 func c\n44.1 func d", lines.String())
	names, missing, err := empty.Missing(all)
	require.NoError(t, err)
	require.Equal(t, lines.String(), strings.Join(missing, "\n"))
	require.Equal(t, []api.Name{{Kind: "func", Name: "b"}, {Kind: "func", Name: "c"}, {Kind: "func", Name: "d"}}, names)
	full, err := Parse("s.txt", []byte(lines.String()))
	require.NoError(t, err)
	require.NoError(t, full.Check(all))
	names, missing, err = full.Missing(all)
	require.NoError(t, err)
	require.Empty(t, names)
	require.Empty(t, missing)
}

func TestCheckVersion(t *testing.T) {
	table, err := Parse("s.txt", nil)
	require.NoError(t, err)
	require.EqualError(t, table.Check([]*api.API{{Version: "new"}}), `"new" is not a version such as 65.0`)
	_, _, err = table.Missing([]*api.API{{Version: "new"}})
	require.EqualError(t, err, `"new" is not a version such as 65.0`)
}

// TestOurs reads the file that the bindings are made from.
func TestOurs(t *testing.T) {
	facts := filepath.Join(headertest.Top(t), "headers")
	table, err := Load(filepath.Join(facts, "since.txt"))
	require.NoError(t, err)
	all, err := api.LoadAll(filepath.Join(facts, "api"))
	require.NoError(t, err)
	require.NoError(t, table.Check(all))
	require.Equal(t, "59", table.Release("func", "ibv_reg_mr_ex"))

	_, err = Load(filepath.Join(t.TempDir(), "none.txt"))
	require.ErrorContains(t, err, "none.txt")
}

// FuzzParse checks that no text makes the parser or the check panic, and that
// each name has one release.
func FuzzParse(f *testing.F) {
	f.Add([]byte("59 func ibv_reg_mr_ex # comment\n60.1 member a.b.c\n"))
	f.Add([]byte("44 func mid\n45 func new\n33 func old"))
	all := three([]string{"old"}, []string{"old", "mid"}, []string{"old", "mid", "new"})
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := Parse("s.txt", text)
		if err != nil {
			require.ErrorContains(t, err, "s.txt:")
			return
		}
		require.Len(t, table.lines, len(table.order))
		for _, name := range table.order {
			require.Contains(t, api.Kinds, name.Kind)
			require.NotEmpty(t, table.Release(name.Kind, name.Name))
		}
		if table.Check(all) == nil {
			require.Len(t, table.order, 2)
		}
	})
}
