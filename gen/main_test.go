// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

func TestUsage(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{nil, usage},
		{[]string{"frob"}, `gen has no command "frob"; ` + usage},
		{[]string{"scan"}, "scan needs the flags -headers and -version"},
		{[]string{"scan", "-headers", "x"}, "scan needs the flags -headers and -version"},
		{[]string{"scan", "-headers", "x", "-version", "../1"}, `"../1" is not a version such as 65.0`},
		{[]string{"check"}, "check needs the flag -headers with a folder"},
		{[]string{"decide", "1.0"}, "decide needs two operands, each a version or a file with a snapshot"},
		{[]string{"diff", "1.0"}, "diff needs two operands, each a version or a file with a snapshot"},
		{[]string{"diff", "1.0", "2.0", "3.0"}, `diff does not take "3.0"`},
		{[]string{"emit", "rest"}, `emit does not take "rest"`},
		{[]string{"emit", "-facts", "testdata"}, "no snapshot such as 65.0.json in testdata/api: file does not exist"},
		{[]string{"coverage", "-facts", "testdata"}, "no snapshot such as 65.0.json in testdata/api: file does not exist"},
		{[]string{"scan", "-headers", "x", "-version", "1", "-facts", "testdata"}, "open testdata/conventions.txt: no such file or directory"},
	}
	for _, tt := range tests {
		require.EqualError(t, run(tt.args), tt.want)
	}
}

// TestCommands makes drafts, and emits into a folder of its own, and finds what
// is committed.
func TestCommands(t *testing.T) {
	newest, top := headertest.Newest(t), headertest.Top(t)
	headers := headertest.Dir(t, newest)
	facts := filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(top, "headers"))))
	snapshot := filepath.Join("api", newest+".json")

	// A draft needs no conventions but those of the headers.
	draft := filepath.Join(t.TempDir(), "draft.json")
	require.NoError(t, run([]string{"scan", "-facts", facts, "-headers", headers, "-version", newest, "-draft", draft}))
	var lines string
	for line := range strings.Lines(read(t, filepath.Join(facts, "conventions.txt"))) {
		if strings.HasPrefix(line, "header ") {
			lines += line
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(facts, "conventions.txt"), []byte(lines), 0o600))
	require.Error(t, run([]string{"scan", "-facts", facts, "-headers", headers, "-version", newest}))
	require.NoError(t, run([]string{"scan", "-facts", facts, "-headers", headers, "-version", newest, "-draft", draft}))
	drafted, err := api.Load(draft)
	require.NoError(t, err)
	require.NotEmpty(t, drafted.Places)
	drafted.Places = nil // which only drafts have
	text, err := drafted.Marshal()
	require.NoError(t, err)
	require.True(t, read(t, filepath.Join(top, "headers", snapshot)) == string(text), "the draft is not the snapshot")
	facts = filepath.Join(top, "headers")

	out, capi, libraries := t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, run([]string{"emit", "-facts", facts, "-out", out, "-skeleton", capi, "-libraries", libraries}))
	const stubs, skeleton = "librdmacm/stubs_cgo.go", "cm_skeleton.go"
	require.Equal(t, read(t, filepath.Join(top, "generated", stubs)), read(t, filepath.Join(out, stubs)))
	require.Equal(t, read(t, filepath.Join(top, "softroce", "internal", "capi", skeleton)), read(t, filepath.Join(capi, skeleton)))
	const library = "libibverbs.map"
	require.Equal(t, read(t, filepath.Join(top, "softroce", "internal", "clib", "c", library)), read(t, filepath.Join(libraries, library)))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
