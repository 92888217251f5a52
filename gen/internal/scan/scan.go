// SPDX-License-Identifier: Apache-2.0

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
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// Options says what to read.
type Options struct {
	Headers string // folder with the headers, or one that has them in usr/include
	Shim    string // folder with our libc headers and predefined.h
	// Libc is a folder with Debian's packages musl-dev and linux-libc-dev. If it
	// is set, their headers stand in for libc's and the kernel's, and Shim is
	// not needed.
	Libc    string
	Source  string // the file that includes what is to be bound
	Version string
	// Known is what a person has said about the headers and declarations. The
	// declarations of the headers that it names as bound are recorded, and what
	// these use of other headers by value.
	Known *conventions.Table
	// Base is what the headers stand on, if that is a snapshot of its own: what it
	// declares is not recorded again.
	Base *api.API
	// Draft is whether nothing that Known lacks is asked for. A header that it
	// does not know counts as bound then.
	Draft bool
	// Check, if set, finds what else is wrong with the declarations.
	Check func(*api.API) []api.Finding
}

// Scan reads the headers. The error joins everything that it could not
// represent, each with file:line:column.
func Scan(opts Options) (*api.API, error) {
	include := IncludeDir(opts.Headers)
	opts.Shim = filepath.Clean(opts.Shim) // as cc spells it in positions
	headers, err := translate(opts, include)
	if err != nil {
		return nil, err
	}
	if opts.Base == nil {
		opts.Base = new(api.API)
	}
	s := &scanner{
		known:      opts.Known,
		draft:      opts.Draft,
		base:       opts.Base,
		packs:      headers.packs,
		expansions: headers.expansions,
		macroNamed: headers.ast.Macros,
		texts:      headers.texts,
		api:        &api.API{Version: opts.Version},
		include:    include + string(filepath.Separator),
		system:     systemDirs(opts),
		structs:    map[string]*structure{},
		memberAt:   map[*api.Member]cc.Node{},
		unsized:    map[*api.Type]bool{},
		typedefs:   map[string]*renamed{},
		kinds:      map[string]string{},
		enums:      map[string]cc.Node{},
		ordinary:   map[string]cc.Node{},
		bodiless:   map[string]cc.Node{},
		defines:    map[string]problem{},

		constants: newConstants(headers.ast), evaluated: map[string]constant{},
	}
	if err := s.headers(headers.opened, opts.Source); err != nil {
		return nil, err
	}
	for u := headers.ast.TranslationUnit; u != nil; u = u.TranslationUnit {
		s.external(u.ExternalDeclaration)
	}
	s.macros(headers.ast, headers.unusable)
	s.closure()
	s.everything(headers.ast)
	s.checkLayouts()
	if len(s.problems) == 0 && opts.Check != nil {
		for _, f := range opts.Check(s.api) {
			s.rejectAt(s.placeOf(f), "%s: %s", f.Of, f.Text)
		}
	}
	if len(s.problems) == 0 && len(s.api.Functions)+len(s.api.Enums)+len(s.api.Structs) == 0 {
		s.problems = append(s.problems, problem{opts.Source, 1, 1, "nothing is declared in the headers that are bound"})
	}
	if len(s.problems) > 0 {
		return nil, report(s.problems)
	}
	return s.api, nil
}

type scanner struct {
	known      *conventions.Table
	draft      bool
	base       *api.API
	api        *api.API
	include    string
	system     []string              // folders of libc's and the kernel's headers
	structs    map[string]*structure // by name with keyword
	order      []*structure          // as the headers have them
	unsized    map[*api.Type]bool    // arrays that are written with []
	typedefs   map[string]*renamed
	packs      *packs
	memberAt   map[*api.Member]cc.Node
	kinds      map[string]string  // of tags: struct, union or enum
	enums      map[string]cc.Node // by tag
	otherEnums []*api.Enum        // of headers that are not bound
	ordinary   map[string]cc.Node // functions, variables, typedefs and enumerators of the bound headers
	bodiless   map[string]cc.Node // static functions without a body so far
	defines    map[string]problem // where the macros of the bound headers are
	current    *cc.ExternalDeclaration
	macroNamed map[string]*cc.Macro
	expansions map[string][]string // of the macros that are object-like
	texts      map[string]string   // of the files
	constants  *constants
	evaluated  map[string]constant // macros of which cc may have another value than C
	corrected  bool                // whether the length of an array is not what cc takes it for
	problems   []problem
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

// placeOf returns where the declaration stands that a finding is about. An enum
// may have no name; its first enumerator then has.
func (s *scanner) placeOf(f api.Finding) problem {
	name := strings.TrimPrefix(f.Of.Name, ":")
	var n cc.Node
	switch f.Of.Kind {
	case "struct", "union":
		if st := s.structs[f.Of.String()]; st != nil {
			n = st.node
		}
	case "enum":
		if e := s.enums[name]; e != nil {
			n = e
		} else {
			n = s.ordinary[name]
		}
	case "member":
		n = s.memberNode(name)
	case "macro", "alias":
		return s.defines[name]
	default:
		n = s.ordinary[name]
	}
	if n == nil {
		return problem{file: s.include + f.Header, line: 1, column: 1}
	}
	return s.place(n)
}

// header returns the name by which a program includes the file that n stands
// in, and whether it is one that is bound.
func (s *scanner) header(n cc.Node) (string, bool) { return s.headerName(n.Position().Filename) }

func (s *scanner) headerName(file string) (string, bool) {
	file = filepath.Clean(file) // of "../rdma/rdma_cma.h", for example
	name, ok := strings.CutPrefix(file, s.include)
	if !ok {
		for _, dir := range s.system {
			file = strings.TrimPrefix(file, dir+string(filepath.Separator))
		}
		return filepath.ToSlash(file), false
	}
	name = filepath.ToSlash(name)
	return name, s.isBound(name)
}

// isBound is about a header that the shims do not have.
func (s *scanner) isBound(header string) bool {
	return s.known.Binds(header) || s.draft && !s.isPart() && s.known.Header(header) == nil
}

// isPart reports whether the headers stand on others that have a snapshot of
// their own.
func (s *scanner) isPart() bool { return len(s.base.Headers) > 0 }

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
