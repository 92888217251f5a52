// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// literals returns what the sources that print errors have between quotes, with
// what is added up in one piece.
func literals(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range []string{"fabric", "ibverbs", "rdmacm", "rsocket", "softroce", "internal/cerr", "internal/dl", "internal/mem", "internal/object", "internal/netpoll"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		}))
	}
	return regexp.MustCompile(`" \+\s*"`).ReplaceAllString(all.String(), "")
}

// The texts in the guide to trouble are those of errors: each is in the
// sources, but for its dots and the errnos' own texts.
func TestTroubleshootingQuotesErrors(t *testing.T) {
	sources := literals(t)
	errnos := map[string]bool{
		"connection timed out": true, "operation not supported": true,
		"file already closed":                 true,
		"no such GID: the GID table is empty": true, // put together from ErrNoGID
	}
	texts := 0
	for line := range strings.Lines(documents(t)["guide/troubleshooting.md"]) {
		cell, isRow := strings.CutPrefix(line, "| `")
		if !isRow {
			continue
		}
		text, rest, _ := strings.Cut(cell, "`")
		if !strings.Contains(text, " ") && !strings.HasPrefix(rest, " (E") || errnos[text] { // a name
			continue
		}
		texts++
		for _, part := range strings.Split(text, "...") {
			require.True(t, strings.Contains(sources, strings.TrimSpace(part)), "no error says %q", text)
		}
	}
	require.Greater(t, texts, 35)
}
