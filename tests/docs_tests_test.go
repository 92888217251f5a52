// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents returns the text of every page for readers, by its path in docs.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	require.NoError(t, filepath.WalkDir("../docs", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		pages[strings.TrimPrefix(path, "../docs/")] = string(text)
		return err
	}))
	require.NotEmpty(t, pages)
	return pages
}

// testNames returns the names of the module's tests, examples, fuzz targets
// and benchmarks.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				names[f.Name.Name] = true
			}
		}
		return nil
	}))
	return names
}

var testName = regexp.MustCompile(`\b(?:(?:Test|Fuzz|Benchmark)[A-Z]\w*|Example(?:[A-Z]\w*)?)\b`)

// Every test that a page names is there, but for those of a program that it
// shows.
func TestDocsNameTests(t *testing.T) {
	names := testNames(t)
	require.True(t, names["TestDocsNameTests"])
	for page, text := range documents(t) {
		for _, name := range testName.FindAllString(fenced.ReplaceAllString(text, ""), -1) {
			require.True(t, names[name], "%s: there is no %s", page, name)
		}
	}
}
