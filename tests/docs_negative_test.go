// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/golden"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// packageFuncs are the functions of packages, by folder, each with the names
// that it uses.
type packageFuncs map[string]map[string][]string

// findsDevice reports whether a function looks for a device to test with, by
// way of others too.
func (p packageFuncs) findsDevice(folder, function string, seen map[string]bool) bool {
	if folder == testdeviceFolder {
		return function == "Require" || function == "RequireSoftware" || function == "Needs"
	}
	if seen[function] {
		return false
	}
	seen[function] = true
	return slices.ContainsFunc(p[folder][function], func(used string) bool {
		pkg, name, qualified := strings.Cut(used, ".")
		if !qualified {
			return p.findsDevice(folder, used, seen)
		}
		return p.findsDevice(testutil+pkg, name, map[string]bool{})
	})
}

const (
	testutil         = "internal/testutil/"
	testdeviceFolder = testutil + "testdevice"
)

// funcsOfTests returns the functions of tests and of what only tests import.
func funcsOfTests(t *testing.T) packageFuncs {
	t.Helper()
	packages := packageFuncs{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		folder := strings.TrimPrefix(filepath.Dir(path), "../")
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") ||
			!strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(folder, testutil) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if packages[folder] == nil {
			packages[folder] = map[string][]string{}
		}
		for _, decl := range file.Decls {
			for _, name := range declared(decl) {
				packages[folder][name] = append(packages[folder][name], usedBy(decl)...)
			}
		}
		return nil
	}))
	return packages
}

// declared returns the names of a function, or of variables, which may be
// functions.
func declared(decl ast.Decl) []string {
	if f, ok := decl.(*ast.FuncDecl); ok {
		return []string{f.Name.Name}
	}
	var names []string
	for _, spec := range decl.(*ast.GenDecl).Specs {
		if v, ok := spec.(*ast.ValueSpec); ok {
			for _, name := range v.Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

// usedBy returns the names in a declaration, those of other packages and of
// methods both with what is before the dot and without.
func usedBy(decl ast.Decl) []string {
	var names []string
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				names = append(names, x.Name+"."+n.Sel.Name)
			}
		case *ast.Ident:
			names = append(names, n.Name)
		}
		return true
	})
	return names
}

// onSoftDevice returns what the page says of a row whose tests have these
// names: nothing if none of them uses a device, and which of them skip on the
// device in user space.
func onSoftDevice(tests []string, packages packageFuncs, skips map[string]string) string {
	said := ""
	var skipped []string
	for folder := range packages {
		for _, name := range tests {
			if !packages.findsDevice(folder, name, map[string]bool{}) {
				continue
			}
			said = "as expected"
			if _, skips := skips[folder+"."+name]; skips {
				skipped = append(skipped, name)
			}
		}
	}
	if len(skipped) > 0 {
		slices.Sort(skipped)
		return "not run: " + strings.Join(skipped, ", ")
	}
	return said
}

// The page's fourth column says on which rows the device in user space is
// tested. Its tests pass only with the specification's column.
func TestNegativeCasesOnSoftDevice(t *testing.T) {
	const columns = 5
	page, err := os.ReadFile("../docs/proof/negative-cases.md")
	require.NoError(t, err)
	packages, skips := funcsOfTests(t), testdevice.SoftSkips()
	var want []string
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) == columns+2 && testName.MatchString(cells[columns]) {
			rows++
			cells[columns-1] = " " + onSoftDevice(testName.FindAllString(cells[columns], -1), packages, skips) + " "
			if cells[columns-1] == "  " {
				cells[columns-1] = " "
			}
			line = strings.Join(cells, "|") + "\n"
		}
		want = append(want, line)
	}
	require.Greater(t, rows, 100)
	if *golden.Update {
		require.NoError(t, os.WriteFile("../docs/proof/negative-cases.md", []byte(strings.Join(want, "")), 0o644))
	}
	require.Equal(t, strings.Join(want, ""), string(page), "-update writes the page")
}

// Every test that is said to skip on the device in user space is there, and
// uses a device.
func TestSoftSkips(t *testing.T) {
	packages := funcsOfTests(t)
	for name := range testdevice.SoftSkips() {
		dot := strings.LastIndex(name, ".")
		funcs := packages[name[:dot]]
		require.Contains(t, funcs, name[dot+1:], "there is no %s", name)
	}
}
