// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each command has a page with what -h says, which man formats without a
// warning where it is installed.
func TestMan(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	status, stdout, stderr := tested.Run("man " + folder)
	require.Zero(t, status, stderr)
	files := strings.Fields(stdout)
	require.Len(t, files, len(nodes(commands())))
	all, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, all, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Regexp(t, `^\.TH VERBENA\S* 1\n\.SH NAME\nverbena\S* \\- .*\n`, string(text))
		require.Contains(t, string(text), ".SH EXAMPLES\n", file)
		if _, err := exec.LookPath("groff"); err != nil {
			continue
		}
		out, err := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out), file)
		shown, err := exec.Command("groff", "-man", "-Tascii", "-P-cbou", file).CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(shown), "SEE ALSO", file)
	}
	page, err := os.ReadFile(filepath.Join(folder, "verbena-ping.1"))
	require.NoError(t, err)
	require.Contains(t, string(page), ".TP\n\\fB\\-W\\fR, \\fB\\-\\-timeout\\fR \\fIseconds\\fR\nSeconds to wait for an answer or a connection (default 5).\n")
	require.Contains(t, string(page), ".SH EXIT STATUS\n")
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{".TH": `\&.TH`, "a-b": `a\-b`, `C:\n`: `C:\en`, "'tis": `\(aqtis`, "~/x": `\(ti/x`} {
		require.Equal(t, want, roff(text))
	}
}
