// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/verbena-go/verbena/"

// folders are where the packages are whose names pages mention.
var folders = map[string]string{
	"fabric": "fabric", "ibverbs": "ibverbs", "flow": "ibverbs/flow", "caps": "ibverbs/caps", "link": "ibverbs/link", "devmem": "ibverbs/devmem", "share": "ibverbs/share",
	"counter": "ibverbs/counter", "tag": "ibverbs/tag", "stat": "ibverbs/stat", "rdmacm": "rdmacm", "endpoint": "rdmacm/endpoint", "handled": "rdmacm/handled",
	"efa": "ibverbs/efa", "mlx5": "ibverbs/mlx5", "libefa": "generated/libefa", "libmlx5": "generated/libmlx5", "libibverbs": "generated/libibverbs", "librdmacm": "generated/librdmacm",
}

// packageNames are what a package declares, on any platform.
type packageNames struct {
	top     map[string]bool
	members map[string]map[string]bool // fields and methods, by type
	others  map[string][]reference     // types that a type is an alias of or embeds
}

// reference is a type of some package of the module.
type reference struct{ folder, name string }

// loader reads packages, each once.
type loader struct {
	t      *testing.T
	loaded map[string]*packageNames
}

func (l *loader) load(folder string) *packageNames {
	l.t.Helper()
	if p := l.loaded[folder]; p != nil {
		return p
	}
	p := &packageNames{map[string]bool{}, map[string]map[string]bool{}, map[string][]reference{}}
	l.loaded[folder] = p
	files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	require.NoError(l.t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(l.t, err)
		for _, decl := range file.Decls {
			p.add(decl, folder, imports(file))
		}
	}
	require.NotEmpty(l.t, p.top, folder)
	return p
}

// imports returns the folders of the module's packages, by the names that the
// file has for them.
func imports(file *ast.File) map[string]string {
	folders := map[string]string{}
	for _, spec := range file.Imports {
		folder, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
		name := filepath.Base(folder)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if ours {
			folders[name] = folder
		}
	}
	return folders
}

func (p *packageNames) add(decl ast.Decl, folder string, imports map[string]string) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			p.top[decl.Name.Name] = true
		} else if of := typeOf(decl.Recv.List[0].Type, folder, imports); of.name != "" {
			p.member(of.name, decl.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					p.top[name.Name] = true
				}
			case *ast.TypeSpec:
				p.addType(spec, folder, imports)
			}
		}
	}
}

func (p *packageNames) addType(spec *ast.TypeSpec, folder string, imports map[string]string) {
	name := spec.Name.Name
	p.top[name] = true
	if spec.Assign.IsValid() {
		p.others[name] = append(p.others[name], typeOf(spec.Type, folder, imports))
	}
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range fields.Fields.List {
		for _, n := range field.Names {
			p.member(name, n.Name)
		}
		if embedded := typeOf(field.Type, folder, imports); field.Names == nil {
			p.member(name, embedded.name)
			p.others[name] = append(p.others[name], embedded)
		}
	}
}

func (p *packageNames) member(of, name string) {
	if p.members[of] == nil {
		p.members[of] = map[string]bool{}
	}
	p.members[of][name] = true
}

// typeOf returns the named type that an expression stands for, or points to.
func typeOf(e ast.Expr, folder string, imports map[string]string) reference {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeOf(e.X, folder, imports)
	case *ast.IndexExpr:
		return typeOf(e.X, folder, imports)
	case *ast.Ident:
		return reference{folder, e.Name}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return reference{imports[x.Name], e.Sel.Name}
		}
	}
	return reference{}
}

// has reports whether a type has a field or method, its own or another's.
func (l *loader) has(of reference, member string) bool {
	l.t.Helper()
	if of.folder == "" { // not of the module
		return false
	}
	p := l.load(of.folder)
	if p.members[of.name][member] {
		return true
	}
	for _, other := range p.others[of.name] {
		if l.has(other, member) {
			return true
		}
	}
	return false
}

var goName = regexp.MustCompile(`\b(` + strings.Join(slices.Collect(maps.Keys(folders)), "|") + `)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)

// Every function, type, constant, field and method that a page names is there.
func TestDocsNameWhatThereIs(t *testing.T) {
	l := &loader{t, map[string]*packageNames{}}
	require.True(t, l.has(reference{"ibverbs", "PortInfo"}, "State"), "embedded")
	require.True(t, l.has(reference{"ibverbs", "QPType"}, "String"), "alias")
	require.False(t, l.has(reference{"ibverbs", "QP"}, "Nothing"))
	for page, text := range documents(t) {
		for _, m := range goName.FindAllStringSubmatch(text, -1) {
			folder, name, member := folders[m[1]], m[2], m[3]
			require.True(t, l.load(folder).top[name], "%s: there is no %s", page, m[0])
			require.True(t, member == "" || l.has(reference{folder, name}, member), "%s: there is no %s", page, m[0])
		}
	}
}
