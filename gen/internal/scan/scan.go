// Package scan reads C headers into a snapshot. It is hermetic: the headers'
// own includes of libc are served by small shims, and no C compiler is asked.
//
// cc, the C front end, is made for headers that are right. So each file's text
// is checked before cc sees it (files, text), the preprocessor runs alone and
// within limits (preprocess), and the parser alone for the first syntax error
// (syntax), before the types are checked (translate) and taken down (the rest).
package scan

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
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
	ast, unusable, err := translate(opts, include)
	if err != nil {
		return nil, err
	}
	s := &scanner{
		known:    opts.Known,
		api:      &api.API{Version: opts.Version},
		include:  include + string(filepath.Separator),
		shim:     opts.Shim + string(filepath.Separator),
		structs:  map[string]*structure{},
		kinds:    map[string]string{},
		enums:    map[string]cc.Node{},
		ordinary: map[string]cc.Node{},
		bodiless: map[string]cc.Node{},
	}
	for u := ast.TranslationUnit; u != nil; u = u.TranslationUnit {
		s.external(u.ExternalDeclaration)
	}
	s.macros(ast, unusable)
	s.closure()
	s.everything(ast)
	s.checkLayouts()
	if len(s.problems) == 0 && len(s.api.Functions)+len(s.api.Enums)+len(s.api.Structs) == 0 {
		s.problems = append(s.problems, problem{opts.Source, 1, 1, "nothing is declared in the headers that are bound"})
	}
	if len(s.problems) > 0 {
		return nil, report(s.problems)
	}
	return s.api, nil
}

type scanner struct {
	known         *conventions.Table
	api           *api.API
	include, shim string
	structs       map[string]*structure // by name with keyword
	order         []*structure          // as the headers have them
	kinds         map[string]string     // of tags: struct, union or enum
	enums         map[string]cc.Node    // of the bound headers, by tag
	ordinary      map[string]cc.Node    // functions and enumerators of the bound headers
	bodiless      map[string]cc.Node    // static functions without a body so far
	current       *cc.ExternalDeclaration
	problems      []problem
}

func (s *scanner) reject(n cc.Node, format string, args ...any) {
	s.rejectAt(s.place(n), format, args...)
}

func (s *scanner) rejectAt(at problem, format string, args ...any) {
	at.text = fmt.Sprintf(format, args...)
	s.problems = append(s.problems, at)
}

// place returns where n stands, or the declaration around it.
func (s *scanner) place(n cc.Node) problem {
	at := n.Position()
	if at.Line == 0 { // nothing is written there, as the type in f(x);
		at = s.current.Position()
	}
	return problem{file: at.Filename, line: at.Line, column: at.Column}
}

// header returns the name by which a program includes the file that n stands
// in, and whether it is one that is bound.
func (s *scanner) header(n cc.Node) (string, bool) { return s.headerName(n.Position().Filename) }

func (s *scanner) headerName(file string) (string, bool) {
	name, ok := strings.CutPrefix(file, s.include)
	if !ok {
		name = strings.TrimPrefix(file, s.shim)
	}
	name = filepath.ToSlash(name)
	return name, isBound(name)
}

func isBound(header string) bool { return slices.Contains(Headers, header) }

func (s *scanner) isShim(n cc.Node) bool { return strings.HasPrefix(n.Position().Filename, s.shim) }

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

// IncludeDir returns the include folder of a folder with headers, which may be
// the root of an unpacked package.
func IncludeDir(headers string) string {
	dir := filepath.Join(headers, "usr", "include")
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	return filepath.Clean(headers)
}
