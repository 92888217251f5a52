// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

func load(t testing.TB, version string) *api.API {
	t.Helper()
	a, err := api.Load(filepath.Join(headertest.Top(t), "headers", "api", version+".json"))
	require.NoError(t, err)
	return a
}

// TestGolden has the output for the two versions that
// docs/proof/header-upgrade.md is about, and for the way back, which breaks
// nearly everything that can break.
func TestGolden(t *testing.T) {
	for _, pair := range [][2]string{{"44.0", "65.0"}, {"65.0", "44.0"}} {
		r := Compare(load(t, pair[0]), load(t, pair[1]))
		name := filepath.Join("testdata", pair[0]+"-"+pair[1])
		golden.Compare(t, name+".md", r.Markdown())
		text, err := r.JSON()
		require.NoError(t, err)
		golden.Compare(t, name+".json", string(text))
	}
}

// TestVersions proves that every version since 33 is a superset of the one
// before, in source and ABI.
func TestVersions(t *testing.T) {
	versions := headertest.Versions(t)
	for i, from := range versions {
		for _, to := range versions[i+1:] {
			r := Compare(load(t, from), load(t, to))
			require.Zero(t, r.Breaks+r.Sources, "%s -> %s: %s", from, to, r.Markdown())
			for _, c := range r.Changes {
				require.Equal(t, c.Undecided, c.Name == "struct ibv_port_attr", c) // which is safe: see docs/proof/header-upgrade.md
			}
		}
	}
}

// TestProperties compares every version with every other.
func TestProperties(t *testing.T) {
	versions := headertest.Versions(t)
	for _, from := range versions {
		for _, to := range versions {
			properties(t, load(t, from), load(t, to))
		}
	}
}

// opposites are the kinds that turn into each other when the snapshots are
// swapped.
var opposites = map[Kind]Kind{
	HeaderAdded: HeaderRemoved, FunctionAdded: FunctionRemoved, EnumAdded: EnumRemoved, EnumeratorAdded: EnumeratorRemoved, StructAdded: StructRemoved,
	MemberAdded: MemberRemoved, MacroAdded: MacroRemoved, AliasAdded: AliasRemoved, TypedefAdded: TypedefRemoved, VariableAdded: VariableRemoved,
	NowInline: NowExported, NowComplete: NowOpaque, NodeGained: NodeLost,
	PrototypeChanged: PrototypeChanged, ParametersRenamed: ParametersRenamed, InlineChanged: InlineChanged, BodyChanged: BodyChanged, NodeChanged: NodeChanged,
	EnumSignedness: EnumSignedness, EnumeratorChanged: EnumeratorChanged, EnumeratorMoved: EnumeratorMoved,
	AlignmentChanged: AlignmentChanged, MemberTypeChanged: MemberTypeChanged,
	MacroValueChanged: MacroValueChanged, MacroTypeChanged: MacroTypeChanged, MacroTextChanged: MacroTextChanged, AliasChanged: AliasChanged, HeaderChanged: HeaderChanged,
	MemberUnion: MemberUnion, EnumSize: EnumSize, TypedefChanged: TypedefChanged, VariableChanged: VariableChanged, RulesChanged: RulesChanged, SpellingChanged: SpellingChanged,
}

func properties(t *testing.T, a, b *api.API) {
	t.Helper()
	require.Empty(t, Compare(a, a).Changes)
	require.Equal(t, "The same", Compare(b, b).Verdict())

	there, back := Compare(a, b), Compare(b, a)
	for one, other := range opposites {
		require.ElementsMatch(t, names(there, one), names(back, other), "%s, and %s on the way back", one, other)
		require.ElementsMatch(t, names(there, other), names(back, one), "%s, and %s on the way back", other, one)
	}
	require.Equal(t, there, Compare(a, b), "the same every time")
	checkOutput(t, there)
}

func names(r *Report, k Kind) []string {
	var out []string
	for _, c := range r.Changes {
		if c.Kind == k {
			out = append(out, c.Name)
		}
	}
	return out
}

// checkOutput checks that both forms of output have every change.
func checkOutput(t *testing.T, r *Report) {
	t.Helper()
	text, err := r.JSON()
	require.NoError(t, err)
	again := new(Report)
	require.NoError(t, json.Unmarshal(text, again))
	require.Equal(t, len(r.Changes), len(again.Changes))
	markdown := r.Markdown()
	for _, c := range r.Changes {
		require.Contains(t, markdown, c.Name)
		require.False(t, c.Break && c.Source, c.Name)
	}
	require.Equal(t, strings.Contains(markdown, "\n## ABI breaks\n"), r.Breaks > 0)
	require.Equal(t, strings.Contains(markdown, "\n## Undecided: a break, or none\n"), r.Undecided > 0)
	require.Equal(t, strings.Contains(markdown, "\n## Source breaks\n"), r.Sources > 0)
}

// FuzzCompare checks that no pair of snapshots makes Compare panic, and that
// the properties hold for all.
func FuzzCompare(f *testing.F) {
	seeds := []string{
		`{"version": "1", "functions": [{"name": "f", "header": "h", "type": "func(*struct s) int", "params": ["s"], "inline": {"call": "s->f"}}]}`,
		`{"version": "2", "functions": [{"name": "f", "header": "h", "type": "func(struct s) int", "params": ["s"], "node": "N_1"}]}`,
		`{"enums": [{"name": "e", "values": [{"name": "A", "value": 1}]}, {"values": [{"name": "B", "value": 2}]}]}`,
		`{"enums": [{"name": "e", "signed": true, "values": [{"name": "B", "value": -1}, {"name": "B"}]}]}`,
		`{"structs": [{"name": "struct s", "size": 8, "align": 4, "members": [{"name": "a", "type": "int"}, {"aggregate": "union", "offset": 4, "members": [{"name": "b", "type": "int"}]}]}]}`,
		`{"structs": [{"name": "struct s", "size": 12, "align": 4, "members": [{"name": "z", "type": "int"}, {"name": "b", "offset": 4, "type": "int"}, {"name": "t", "offset": 8, "type": "struct t"}]}]}`,
		`{"structs": [{"name": "struct s"}, {"name": "struct s", "size": 4}], "macros": [{"name": "M", "type": "int", "value": 1}], "aliases": [{"name": "a", "target": "b"}]}`,
		`{"structs": [{"name": "struct s", "align": 2, "members": [{"name": "b", "type": "A"}]}]}`,
		`{"structs": [{"name": "struct s", "size": 2, "members": [{"name": "0", "type": "A"}, {"aggregate": "0", "offset": 1, "members": [{"name": "0", "type": "A"}]}]}]}`,
		`{"headers": [{"name": "a.h", "included": true}, {"name": "b.h"}], "undeclared": [{"name": "f", "node": "N_1"}]}`,
		`{"headers": [{"name": "b.h"}], "structs": [{"name": "struct t", "size": 16, "align": 8, "members": [{"name": "list", "type": "*struct s"}, {"name": "num_s", "offset": 8, "type": "int"}]}]}`,
		`{"macros": [{"name": "M", "type": "pointer", "value": -1, "enumerator": "A"}], "aliases": [{"name": "a", "target": "c"}], "unvalued": [{"name": "M"}, {"name": "N", "body": "00"}]}`,
		`{"functions": [{"name": "f", "header": "h", "type": "func() int", "inline": {"body": "00"}}], "unvalued": [{"name": "N", "body": "11"}, {"name": "N", "body": "00"}]}`,
		`{"typedefs": [{"name": "t", "type": "struct s"}], "variables": [{"name": "v", "type": "[2]struct s"}], "enums": [{"name": "e", "size": 8, "typedef": true, "values": [{"name": "A"}]}]}`,
		`{"typedefs": [{"name": "t", "type": "int"}], "variables": [{"name": "v", "type": "int"}], "structs": [{"name": "struct s", "size": 4, "pack": 1, "typedef": true, "members": [{"name": "a", "type": "int", "bits": {"at": 1, "width": 2}, "aligned": 8}]}]}`,
	}
	for _, a := range seeds {
		for _, b := range seeds {
			f.Add([]byte(a), []byte(b))
		}
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a, err := api.Parse(first)
		if err != nil {
			return
		}
		b, err := api.Parse(second)
		if err != nil {
			return
		}
		properties(t, a, b)
	})
}
