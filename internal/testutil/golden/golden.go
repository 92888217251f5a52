// SPDX-License-Identifier: Apache-2.0

// Package golden compares facts about Go types with the facts about the C
// types, which are in tests/golden.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
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

// ComparePart is Compare for the part of a page between the line that begin is
// and the line that end is.
func ComparePart(t *testing.T, path, begin, end, text string) {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin+"\n")
	require.True(t, found, "%s has no line %s", path, begin)
	_, after, found := strings.Cut(rest, end+"\n")
	require.True(t, found, "%s has no line %s after it", path, end)
	Compare(t, path, before+begin+"\n"+text+end+"\n"+after)
}
