// SPDX-License-Identifier: Apache-2.0

// Package scan reads C headers into a snapshot. The result does not depend on
// the machine: small replacements (shims) stand in for libc's headers, and no C
// compiler runs.
//
// cc, the C front end, is made for headers without errors. So the package
// checks each file's text before cc reads it (files, text). It runs only the
// preprocessor, within limits (preprocess), and only the parser, up to the
// first syntax error (syntax). After that, cc checks the types (translate), and
// the other files of this package record the declarations.
package scan

import (
	"fmt"
	"maps"
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
	// More lists the folders of headers that are not in Headers.
	More []string
	// Shim, if set, is a folder with replacements for libc's headers, and
	// predefined.h. It comes before Libc.
	Shim string
	// Libc, if set, is a folder with Debian's packages musl-dev and
	// linux-libc-dev, whose headers are used for those that Shim lacks.
	Libc    string
	Source  string // umbrella file, which includes the headers to bind
	Version string
	// Known holds the conventions. Scan records the declarations of the
	// headers that they bind, and the structs and enums of other headers
	// that these need by value.
	Known *conventions.Table
	// Base, if not nil, is the snapshot of other headers that these headers
	// include. Scan does not record its declarations again.
	Base *api.API
	// Draft makes Scan succeed although Known lacks lines. Headers for
	// which Known has no line count as bound.
	Draft bool
	// Absent makes headers that are not found count as empty. The snapshot
	// lists them.
	Absent bool
	// Named limits a draft to the headers that Known binds. Without it, a
	// draft also binds the headers for which Known has no line.
	Named bool
	// Unfit, if set, is called with each function that cannot be
	// represented, and the reason. The snapshot does not have the function,
	// and Scan does not fail because of it.
	Unfit func(f *api.Function, why string)
	// Behind allows a macro to hide a function of the same name. The
	// bindings call the function, and not the macro.
	Behind bool
	// Machine, if set, lists the predefined macros of another architecture,
	// which replace those of amd64. It has no effect with Shim.
	Machine []string
	// Check, if set, returns further problems with the declarations.
	Check func(*api.API) []api.Finding
}

// Scan reads the headers. Its error lists everything that it cannot represent,
// each with file:line:column.
func Scan(opts Options) (*api.API, error) {
	include := IncludeDir(opts.Headers)
	if opts.Shim != "" {
		opts.Shim = filepath.Clean(opts.Shim) // the form that cc uses in positions
	}
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
		named:      opts.Named,
		unfit:      opts.Unfit,
		behind:     opts.Behind,
		base:       opts.Base,
		packs:      headers.packs,
		expansions: headers.expansions,
		macroNamed: headers.ast.Macros,
		texts:      headers.texts,
		api:        &api.API{Version: opts.Version},
		include:    include + string(filepath.Separator),
		more:       opts.More,
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
		return nil, report(append(s.problems, slices.Collect(maps.Values(headers.absent))...))
	}
	s.absent(headers.absent, opts.Source)
	if opts.Draft {
		s.api.Places = s.places()
	}
	return s.api, nil
}

// places says where the declarations are.
func (s *scanner) places() map[string]string {
	all := map[string]string{}
	names := s.api.Names()
	for _, m := range s.api.Unvalued {
		names = append(names, api.Name{Kind: "macro", Name: m.Name})
	}
	for _, name := range names {
		at := s.placeOf(api.Finding{Of: name})
		if header, _ := s.headerName(at.file); at.file != s.include {
			all[name.String()] = fmt.Sprintf("%s:%d", header, at.line)
		}
	}
	return all
}

type scanner struct {
	known      *conventions.Table
	draft      bool
	named      bool
	unfit      func(f *api.Function, why string)
	behind     bool
	base       *api.API
	api        *api.API
	include    string
	more       []string              // folders of other headers
	system     []string              // folders of libc's and the kernel's headers
	structs    map[string]*structure // by name, such as "struct ibv_qp"
	order      []*structure          // in the order of the headers
	unsized    map[*api.Type]bool    // types of arrays that are written with []
	typedefs   map[string]*renamed
	packs      *packs
	memberAt   map[*api.Member]cc.Node
	kinds      map[string]string  // struct, union or enum, by tag
	enums      map[string]cc.Node // enums, by tag
	otherEnums []*api.Enum        // enums of headers that are not bound
	ordinary   map[string]cc.Node // functions, variables, typedefs and enumerators of the bound headers
	bodiless   map[string]cc.Node // static functions whose body has not come yet
	defines    map[string]problem // positions of the bound headers' macros
	current    *cc.ExternalDeclaration
	macroNamed map[string]*cc.Macro
	expansions map[string][]string // expansions of object-like macros, by name
	texts      map[string]string   // texts of the files
	constants  *constants
	evaluated  map[string]constant // values of macros for which cc may have another value than C
	unread     cc.Node             // array of the current parameter whose length C does not need
	corrected  bool                // whether cc has another length than C for some array
	problems   []problem
}

func (s *scanner) reject(n cc.Node, format string, args ...any) {
	s.rejectAt(s.place(n), format, args...)
}

func (s *scanner) rejectAt(at problem, format string, args ...any) {
	at.text = fmt.Sprintf(format, args...)
	s.problems = append(s.problems, at)
}

// place returns the position of n. If n has none, it returns that of the
// current declaration.
func (s *scanner) place(n cc.Node) problem {
	at := n.Position()
	if at.Line == 0 { // n is implied by the text, as the type of f(x);
		at = s.current.Position()
	}
	return problem{file: at.Filename, line: at.Line, column: at.Column}
}

// placeOf returns the position of the declaration that a finding is about. A
// finding names an enum without a tag by its first enumerator.
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

// header returns the name of the header that contains n, as programs include
// it, and whether the header is bound.
func (s *scanner) header(n cc.Node) (string, bool) { return s.headerName(n.Position().Filename) }

func (s *scanner) headerName(file string) (string, bool) {
	file = filepath.Clean(file) // a header may be included as "../rdma/rdma_cma.h"
	name, ok := s.below(file)
	if !ok {
		for _, dir := range s.system {
			file = strings.TrimPrefix(file, dir+string(filepath.Separator))
		}
		return filepath.ToSlash(file), false
	}
	return name, s.isBound(name)
}

// below returns the name of a file below the folders of headers, without those
// of libc's. If one folder is inside another, the name is that below the inner
// one.
func (s *scanner) below(file string) (name string, ok bool) {
	for _, dir := range append([]string{s.include}, s.more...) {
		rest, in := strings.CutPrefix(file, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
		if in && (!ok || len(rest) < len(name)) {
			name, ok = rest, true
		}
	}
	return filepath.ToSlash(name), ok
}

// isBound reports whether a header, which is not one of libc or the kernel, is
// bound.
func (s *scanner) isBound(header string) bool {
	return s.known.Binds(header) || s.draft && !s.named && !s.isPart() && s.known.Header(header) == nil
}

// isPart reports whether the headers include others that are in the snapshot
// base.
func (s *scanner) isPart() bool { return len(s.base.Headers) > 0 }

// guess returns the class of most functions with a result of this type.
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
