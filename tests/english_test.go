// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// banned matches the words for a person. The subject of a sentence is a thread,
// a goroutine, a caller, a peer or a device.
var banned = regexp.MustCompile(`(?i)\b(somebody|nobody|whoever|who)\b`)

// maxComment limits the columns of a comment. A tab counts as one.
const maxComment = 80

// An exception permits banned words in the texts of a file that contain text.
type exception struct{ file, text, reason string }

var exceptions = []exception{
	{"docs/testing.md", "the user nobody", "the name of a user"},
	{"tests/matrix/cases_test.go", "the user nobody", "the name of a user"},
	{"tests/matrix/udp_test.go", "the user nobody", "the name of a user"},
	{"tests/english_test.go", "", "the words themselves"},
}

// trackedFiles returns the repository's files with one of the endings, by their
// paths from the repository's root. It leaves out the inputs of tests.
func trackedFiles(t *testing.T, endings ...string) (files []string) {
	t.Helper()
	if _, err := os.Stat("../.git"); err != nil {
		t.Skip("no repository: ", err)
	}
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z", "-co", "--exclude-standard").Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(string(list), "\x00") {
		if !slices.Contains(endings, filepath.Ext(name)) || strings.Contains(name, "testdata/") {
			continue
		}
		if info, err := os.Stat(filepath.Join("..", name)); err != nil || info.IsDir() { // deleted, or the cache
			continue
		}
		files = append(files, name)
	}
	return files
}

// goTexts calls visit with each comment group and each string of a Go file, and
// with its line.
func goTexts(fset *token.FileSet, f *ast.File, visit func(line int, text string)) {
	for _, group := range f.Comments {
		visit(fset.PositionFor(group.Pos(), false).Line, group.Text())
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				visit(fset.PositionFor(lit.Pos(), false).Line, text)
			}
		}
		return true
	})
}

// newestSection returns a changelog without its older sections.
func newestSection(text string) string {
	sections := strings.SplitN(text, "\n## ", 3)
	return strings.Join(sections[:min(2, len(sections))], "\n## ")
}

// bannedWords returns a finding for each text of a file with a banned word.
func bannedWords(name, source string, permits func(text string) bool) (findings []string) {
	find := func(line int, text string) {
		if word := banned.FindString(text); word != "" && !permits(text) {
			findings = append(findings, fmt.Sprintf("%s:%d: %q; name the thread, the caller, the peer, the device", name, line, word))
		}
	}
	if filepath.Ext(name) != ".go" {
		for i, line := range strings.Split(source, "\n") {
			find(i+1, line)
		}
		return findings
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	goTexts(fset, f, find)
	return findings
}

// wideComments returns a finding for each comment line of a hand-written Go
// file that is too wide. Directives, code, C, the output of examples and words
// that cannot be broken are as wide as they need.
func wideComments(name, source string) (findings []string) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	if ast.IsGenerated(f) {
		return nil
	}
	lines := strings.Split(source, "\n")
	for _, group := range f.Comments {
		if text := strings.ToLower(group.Text()); strings.HasPrefix(text, "output:") || strings.HasPrefix(text, "unordered output:") || isC(f, group) {
			continue
		}
		for _, comment := range group.List {
			n := fset.PositionFor(comment.Pos(), false).Line
			line := lines[n-1]
			words, isText := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
			if isText && strings.Contains(words, " ") && utf8.RuneCountInString(line) > maxComment {
				findings = append(findings, fmt.Sprintf("%s:%d: a comment of %d columns, more than %d", name, n, utf8.RuneCountInString(line), maxComment))
			}
		}
	}
	return findings
}

// isC reports whether a comment is the C code of an import.
func isC(f *ast.File, group *ast.CommentGroup) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return ok && g.Doc == group && g.Tok == token.IMPORT && g.Specs[0].(*ast.ImportSpec).Path.Value == `"C"`
	})
}

// Comments, messages and documents name the subjects of their sentences.
func TestEnglish(t *testing.T) {
	never := func(string) bool { return false }
	require.Equal(t, []string{
		`a.go:3: "Whoever"; name the thread, the caller, the peer, the device`,
		`a.go:5: "nobody"; name the thread, the caller, the peer, the device`,
		`a.go:6: "who"; name the thread, the caller, the peer, the device`,
	}, bannedWords("a.go", "package a\n\n// Whoever calls A\nfunc A() {\n\tprintln(\"nobody\", whom)\n\tprintln(`b is called by who`) // whole, whom\n}\n", never))
	require.Equal(t, []string{`a.md:2: "Nobody"; name the thread, the caller, the peer, the device`}, bannedWords("a.md", "It is for the\nuser. Nobody else.\n", never))
	require.Equal(t, "# Changelog\n\n## 2\n\n- b\n", newestSection("# Changelog\n\n## 2\n\n- b\n\n## 1\n\n- who\n"))

	used := map[exception]bool{}
	var findings []string
	files := trackedFiles(t, ".go", ".md")
	for _, name := range files {
		source, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		text := string(source)
		if name == "CHANGELOG.md" {
			text = newestSection(text)
		}
		if !banned.MatchString(text) {
			continue
		}
		findings = append(findings, bannedWords(name, text, func(text string) bool {
			i := slices.IndexFunc(exceptions, func(e exception) bool { return e.file == name && strings.Contains(text, e.text) })
			if i >= 0 {
				used[exceptions[i]] = true
			}
			return i >= 0
		})...)
	}
	require.Greater(t, len(files), 500, "the test looks at few files")
	require.Empty(t, strings.Join(findings, "\n"))
	for _, e := range exceptions {
		require.True(t, used[e], "the exception for %q in %s (%s) is not needed any more", e.text, e.file, e.reason)
	}
}

// Comments of hand-written Go fit into 80 columns.
func TestWidthOfComments(t *testing.T) {
	long := strings.Repeat("x ", 40) + "y"
	require.Equal(t, []string{"a.go:3: a comment of 84 columns, more than 80"}, wideComments("a.go", "package a\n\n// "+long+"\nvar a int // "+long+"\n\n//go:generate "+long+"\n"))
	require.Equal(t, []string{"a.go:4: a comment of 84 columns, more than 80"}, wideComments("a.go", "package a\n\nfunc a() {\n\t// "+long[2:]+"z\n}\n"))
	require.Empty(t, wideComments("a.go", "package a\n\n//\t"+long+"\n// https://"+strings.ReplaceAll(long, " ", "/")+"\nvar a int\n"))
	require.Empty(t, wideComments("a.go", "package a\n\n// int f(int "+long+");\nimport \"C\"\n"))
	require.Empty(t, wideComments("a.go", "package a\n\nfunc ExampleA() {\n\t// Output:\n\t// "+long+"\n}\n"))
	require.Empty(t, wideComments("a.go", "// Code generated by a. DO NOT EDIT.\n\npackage a\n\n// "+long+"\nvar a int\n"))

	var findings []string
	for _, name := range trackedFiles(t, ".go") {
		source, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		findings = append(findings, wideComments(name, string(source))...)
	}
	require.Empty(t, strings.Join(findings, "\n"))
}
