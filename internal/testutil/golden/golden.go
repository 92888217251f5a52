// SPDX-License-Identifier: Apache-2.0

// Package golden compares facts about Go types with the facts about the C
// types, which are in tests/golden.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update is the flag -update, with which tests rewrite golden files instead of
// comparing them.
var Update = flag.Bool("update", false, "rewrite the golden files")

// Compare requires that text is the content of the golden file at path. With
// -update, it writes the file instead.
func Compare(t *testing.T, path, text string) {
	t.Helper()
	if *Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s differs; -update rewrites it", path)
}
