// Package scan reads C headers into a snapshot. It is hermetic: the headers'
// own includes of libc are served by small shims, and no C compiler is asked.
package scan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// Options says what to read.
type Options struct {
	Headers string // folder with the headers, or one that has them in usr/include
	Shim    string // folder with our libc headers and predefined.h
	Source  string // the file that includes what is to be bound
	Version string
	// Known is what a person has said about the declarations. Without it, none
	// of them is missed.
	Known *conventions.Table
}

// Headers names the headers whose declarations are bound. What these use of
// other headers, by value, is recorded too.
var Headers = []string{
	"infiniband/verbs.h", "infiniband/verbs_api.h", "infiniband/ib_user_ioctl_verbs.h",
	"infiniband/sa.h", "infiniband/tm_types.h", "infiniband/ib.h",
	"rdma/ib_user_ioctl_verbs.h",
	"rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h",
}

// Scan reads the headers. The error joins everything that it could not
// represent, each with file:line:column.
func Scan(opts Options) (*api.API, error) {
	include := IncludeDir(opts.Headers)
	opts.Shim = filepath.Clean(opts.Shim) // as cc spells it in positions
	ast, err := translate(opts, include)
	if err != nil {
		return nil, err
	}
	s := &scanner{
		known:   opts.Known,
		api:     &api.API{Version: opts.Version},
		include: include + string(filepath.Separator),
		shim:    opts.Shim + string(filepath.Separator),
		structs: map[string]*structure{},
	}
	for u := ast.TranslationUnit; u != nil; u = u.TranslationUnit {
		s.external(u.ExternalDeclaration)
	}
	s.macros(ast)
	s.closure()
	s.checkLayouts()
	if len(s.errs) > 0 {
		return nil, errors.Join(s.errs...)
	}
	if len(s.api.Functions)+len(s.api.Enums)+len(s.api.Structs) == 0 {
		return nil, fmt.Errorf("%s: nothing is declared in the headers that are bound", include)
	}
	return s.api, nil
}

type scanner struct {
	known         *conventions.Table
	api           *api.API
	include, shim string
	structs       map[string]*structure // by name with keyword
	order         []*structure          // as the headers have them
	errs          []error
}

func (s *scanner) reject(n cc.Node, format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf("%v: %s", n.Position(), fmt.Sprintf(format, args...)))
}

// header returns the name by which a program includes the file that n stands
// in, and whether it is one that is bound.
func (s *scanner) header(n cc.Node) (string, bool) {
	file := n.Position().Filename
	name, ok := strings.CutPrefix(file, s.include)
	if !ok {
		name = strings.TrimPrefix(file, s.shim)
	}
	name = filepath.ToSlash(name)
	return name, slices.Contains(Headers, name)
}

func (s *scanner) external(e *cc.ExternalDeclaration) {
	switch e.Case {
	case cc.ExternalDeclarationFuncDef:
		f := e.FunctionDefinition
		header, bound := s.header(f.Declarator)
		if !bound {
			return
		}
		sp := s.declarationSpecifiers(f.DeclarationSpecifiers)
		t, names := s.declared(f.Declarator, sp.base)
		s.addFunction(f.Declarator, &api.Function{
			Name: f.Declarator.Name(), Header: header, Type: t, Params: names, Inline: inline(f, names),
		})
	case cc.ExternalDeclarationDecl:
		s.declaration(e.Declaration)
	}
}

func (s *scanner) declaration(d *cc.Declaration) {
	if d.DeclarationSpecifiers == nil || strings.HasPrefix(d.Position().Filename, "<") {
		return
	}
	header, bound := s.header(d)
	sp := s.declarationSpecifiers(d.DeclarationSpecifiers)
	if sp.aggregate != nil {
		s.aggregate(header, sp.aggregate)
	}
	if sp.enum != nil && bound {
		s.enum(header, sp.enum)
	}
	for l := d.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
		decl := l.InitDeclarator.Declarator
		if !bound || decl.IsTypename() {
			continue
		}
		if decl.Type().Kind() != cc.Function {
			s.reject(decl, "the variable %s cannot be represented", decl.Name())
			continue
		}
		t, names := s.declared(decl, sp.base)
		s.addFunction(decl, &api.Function{Name: decl.Name(), Header: header, Type: t, Params: names})
	}
}

// addFunction records f once: a function may be declared more than once, and
// declared before it is defined.
func (s *scanner) addFunction(n cc.Node, f *api.Function) {
	if s.known != nil && !s.convention(n, f) {
		return
	}
	s.passable(n, f.Name, f.Type)
	for i, old := range s.api.Functions {
		if old.Name == f.Name {
			if f.Inline != nil {
				s.api.Functions[i] = f
			}
			return
		}
	}
	s.api.Functions = append(s.api.Functions, f)
}

// convention rejects a function that has no convention, or one that does not
// fit; it reports whether there is one.
func (s *scanner) convention(n cc.Node, f *api.Function) bool {
	known := s.known.Funcs[f.Name]
	if known == nil {
		s.reject(n, "no convention for %s; add to the conventions a line such as: func %s %s", f.Name, f.Name, guess(f.Type.Elem))
		return false
	}
	for _, name := range known.Named() {
		if !slices.Contains(f.Params, name) {
			s.reject(n, "the conventions name a parameter %s of %s, which has none such", name, f.Name)
		}
	}
	return true
}

// passable rejects a function that takes or gives, behind any number of
// pointers, what is neither an integer nor a struct, union or enum.
func (s *scanner) passable(n cc.Node, name string, t *api.Type) {
	if t.Kind != api.Named {
		for _, part := range append([]*api.Type{t.Elem}, t.Params...) {
			s.passable(n, name, part)
		}
		return
	}
	if t.IsVoid() || layout.IsScalar(t.Name) || t.Name == "fd_set" {
		return
	}
	if kind, _, _ := strings.Cut(t.Name, " "); !slices.Contains([]string{"struct", "union", "enum"}, kind) {
		s.reject(n, "the type %s of %s cannot be represented", t.Name, name)
	}
}

func (s *scanner) enum(header string, e *cc.EnumSpecifier) {
	t := e.Type()
	if t.Size() != 4 {
		s.reject(e, "an enum of %d bytes cannot be represented", t.Size())
		return
	}
	out := &api.Enum{Name: enumTag(e), Header: header}
	for l := e.EnumeratorList; l != nil; l = l.EnumeratorList {
		v := api.Enumerator{Name: l.Enumerator.Token.SrcStr(), Value: number(l.Enumerator.Value())}
		out.Signed = out.Signed || v.Value < 0
		out.Values = append(out.Values, v)
	}
	if s.known != nil && s.known.Enums[out.Key()] == nil {
		name := ""
		if out.Name == "" {
			name = " name=GoName"
		}
		s.reject(e, "no kind for enum %s; add to the conventions a line such as: enum %s values%s", out.Key(), out.Key(), name)
	}
	s.api.Enums = append(s.api.Enums, out)
}

// guess returns the class that most functions with such a result have.
func guess(result *api.Type) conventions.Class {
	switch {
	case result.IsVoid():
		return conventions.Void
	case result.Kind == api.Pointer:
		return conventions.Pointer
	}
	return conventions.Code
}

func number(v cc.Value) int64 {
	switch v := v.(type) {
	case cc.Int64Value:
		return int64(v)
	case cc.UInt64Value:
		return int64(v)
	}
	return 0
}

// IncludeDir returns the include folder of a folder with headers, which may be
// the root of an unpacked package.
func IncludeDir(headers string) string {
	dir := filepath.Join(headers, "usr", "include")
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	return filepath.Clean(headers)
}
