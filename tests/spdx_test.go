// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/golden"
)

const spdx = "SPDX-License-Identifier: Apache-2.0"

// licensed returns a source file with the line that says its licence, where it
// lacks that.
func licensed(text string) string {
	head, _, _ := strings.Cut(text, "\n\n")
	switch script := strings.HasPrefix(text, "#!"); {
	case strings.Contains(head, spdx):
		return text
	case script:
		first, rest, _ := strings.Cut(text, "\n")
		return first + "\n# " + spdx + "\n#\n" + rest
	}
	return "// " + spdx + "\n\n" + text
}

// Every source file says its licence, what gen writes included. -update adds
// the line.
func TestSPDX(t *testing.T) {
	require.Equal(t, "// "+spdx+"\n\npackage a\n", licensed("package a\n"))
	require.Equal(t, "#!/bin/sh\n# "+spdx+"\n#\n# a does it.\n", licensed("#!/bin/sh\n# a does it.\n"))
	if _, err := os.Stat("../.git"); err != nil {
		t.Skip("no repository: ", err)
	}
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z", "-co", "--exclude-standard").Output()
	require.NoError(t, err)
	files := 0
	for name := range strings.SplitSeq(string(list), "\x00") {
		// What tests read is anything, the C in gen is a part of what it
		// writes, and what the front end reads before any header has the places
		// that its errors name.
		if strings.Contains(name, "testdata/") || strings.HasPrefix(name, "gen/internal/emit/c/") || strings.HasPrefix(name, "headers/") {
			continue
		}
		path := filepath.Join("..", name)
		info, err := os.Stat(path)
		if err != nil || info.IsDir() { // deleted, or the cache
			continue
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		switch filepath.Ext(name) {
		case ".go", ".c", ".h":
		default:
			if !strings.HasPrefix(string(text), "#!") {
				continue
			}
		}
		files++
		want := licensed(string(text))
		if *golden.Update && want != string(text) {
			require.NoError(t, os.WriteFile(path, []byte(want), info.Mode().Perm()))
			continue
		}
		require.True(t, want == string(text), "%s does not say its licence: go test ./tests -run TestSPDX -update", name)
	}
	require.Greater(t, files, 1000)
}
