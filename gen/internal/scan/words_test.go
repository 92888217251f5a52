// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// wordPattern says what wordsIn does.
var wordPattern = regexp.MustCompile(
	`/\*(?s:.*?)(?:\*/|\z)|//(?:\\\r?\n|[^\n])*` + // comments
		`|"(?:\\(?s:.)|[^"\\\n])*"?|'(?:\\(?s:.)|[^'\\\n])*'?` +
		`|\\\r?\n|[ \t\r\f\v]+|[A-Za-z_$][\w$]*|\.?[0-9][\w.]*|(?s:.)`)

// oddWords has texts that begin a word and do not end it, among others.
var oddWords = []string{
	"", "/", "/*", "/*/", "/**/x", "/***/", "/* a\n*/ b", "//", "// a \\", "// a \\\nb\nc", "// a \\\r\nb\nc", "//\\\\\n", "/", `"`, `"\`, `"\"`,
	"\"a\\\nb\"c", "\"a\nb\"", `'a'b`, `'`, `'\'`, "'\\é'", "é", "\xff", "\"\\\xff\"", "\\", "\\\n", "\\\r\n", "\\\r", "a$b", "$", "1e+2", ".5", ".", "..5", "...", "0x1f.p",
	" \t\r\v\f\n\n", "a1 b", "#define\\\na", "\x00",
}

func TestWords(t *testing.T) {
	for _, text := range oddWords {
		require.Equal(t, wordPattern.FindAllString(text, -1), wordsIn(text), "%q", text)
	}
	dir := filepath.Join(headertest.Dir(t, headertest.Newest(t)), "usr", "include")
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.h"))
	require.NoError(t, err)
	require.Greater(t, len(files), 10)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, wordPattern.FindAllString(string(text), -1), wordsIn(string(text)), file)
	}
}

// FuzzWords shows that every text splits into its words.
func FuzzWords(f *testing.F) {
	for _, text := range oddWords {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := wordsIn(text)
		require.Equal(t, text, strings.Join(got, ""))
		require.Equal(t, wordPattern.FindAllString(text, -1), got)
	})
}
