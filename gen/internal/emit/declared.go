// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// declared holds the names that the Go files of a generated package declare.
// The coverage report is made from these names, and so does not depend on what
// this package meant to write.
type declared struct {
	callable      map[string]bool // functions of programs that can call C
	other         map[string]bool // functions of programs that cannot call C
	consts, types map[string]bool
	members       map[string]bool // fields and methods, in the form Type.Field and Type.Method
}

func readDeclared(files map[string][]byte) (*declared, error) {
	d := &declared{
		callable: map[string]bool{}, other: map[string]bool{},
		consts: map[string]bool{}, types: map[string]bool{}, members: map[string]bool{},
	}
	for name, text := range files {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		functions := d.callable
		if name == "stubs_other.go" {
			functions = d.other
		}
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				d.function(functions, decl)
			case *ast.GenDecl:
				d.general(decl)
			}
		}
	}
	return d, nil
}

func (d *declared) function(functions map[string]bool, f *ast.FuncDecl) {
	if f.Recv == nil {
		functions[f.Name.Name] = true
		return
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if id, ok := receiver.(*ast.Ident); ok {
		d.members[id.Name+"."+f.Name.Name] = true
	}
}

func (d *declared) general(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				d.consts[name.Name] = g.Tok == token.CONST
			}
		case *ast.TypeSpec:
			d.types[spec.Name.Name] = true
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						d.members[spec.Name.Name+"."+name.Name] = true
					}
				}
			}
		}
	}
}

// hasStruct reports whether the type is declared and has a field or a method
// for each of its members, at any depth.
func (d *declared) hasStruct(name string, members []*api.Member) bool {
	return d.types[name] && d.hasMembers(name, members)
}

func (d *declared) hasMembers(name string, members []*api.Member) bool {
	for _, m := range members {
		switch {
		case m.Name == "": // its members are the enclosing type's
			if !d.hasMembers(name, m.Members) {
				return false
			}
		case !d.members[name+"."+goName(m.Name)]:
			return false
		case m.Type == nil && !d.hasStruct(name+goName(m.Name), m.Members):
			return false
		}
	}
	return true
}
