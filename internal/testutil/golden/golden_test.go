// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only the part of a page between its two lines is compared, and written.
func TestComparePart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	page := func(part string) string { return "before\n<begin>\n" + part + "<end>\nafter\n<end>\n" }
	require.NoError(t, os.WriteFile(path, []byte(page("old\n")), 0o600))
	ComparePart(t, path, "<begin>", "<end>", "old\n")

	defer func(before bool) { *Update = before }(*Update)
	*Update = true
	ComparePart(t, path, "<begin>", "<end>", "new\nlines\n")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, page("new\nlines\n"), string(text))
}
