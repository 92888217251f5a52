// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDiff names snapshots by version and by path, and has each ending.
func TestDiff(t *testing.T) {
	facts := t.TempDir()
	write := func(version, functions string) string {
		path := filepath.Join(facts, "api", version+".json")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(`{"version": "`+version+`", "functions": [`+functions+`]}`), 0o600))
		return path
	}
	one := `{"name": "f", "header": "h", "type": "func() int"}`
	newer := write("2.0", one+`, {"name": "g", "header": "h", "type": "func() int"}`)
	older := write("1.0", one)

	var b bytes.Buffer
	require.NoError(t, runDiff(facts, "1.0", "2.0", false, &b))
	require.Equal(t, "# rdma-core 1.0 -> 2.0\n\n**Compatible**: 0 ABI breaks, 0 undecided, 0 source breaks; 1 function added.\n\n"+
		"## Functions added\n\n- `int g(void)`\n", b.String())

	b.Reset()
	require.NoError(t, runDiff(facts, older, older, false, &b))
	require.Equal(t, "# rdma-core 1.0 -> 1.0\n\n**The same**: no change.\n", b.String())

	b.Reset()
	err := runDiff(facts, newer, "1.0", true, &b)
	require.ErrorIs(t, err, errBreak)
	require.EqualError(t, err, "2.0 -> 1.0: ABI break")
	var report map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &report))
	require.Equal(t, map[string]any{
		"from": "2.0", "to": "1.0", "breaks": 1.0, "undecided": 0.0, "sources": 0.0,
		"changes": []any{map[string]any{
			"kind": "function removed", "name": "g", "of": "", "from": "int g(void)", "to": "", "break": true, "undecided": false, "source": false,
			"why": "programs that call it cannot be compiled, nor started unless the library still exports it: the snapshot was made without it",
		}},
	}, report)

	require.EqualError(t, runDiff(facts, "1.0", "", false, &b), "diff needs two operands, each a version or a file with a snapshot")
	require.ErrorIs(t, runDiff(facts, "1.0", "3.0", false, &b), os.ErrNotExist)
	require.ErrorIs(t, runDiff(facts, "3.0", "1.0", false, &b), os.ErrNotExist)
	write("bad", "null")
	require.ErrorContains(t, runDiff(facts, "bad", "1.0", false, &b), "bad.json: function 1 has no name or no prototype")
}
