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
	Known   *conventions.Table
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
	ast, err := translate(opts, include)
	if err != nil {
		return nil, err
	}
	s := &scanner{
		known:   opts.Known,
		api:     &api.API{Version: opts.Version},
		include: include + string(filepath.Separator),
		shim:    opts.Shim + string(filepath.Separator),
		structs: map[string]*api.Struct{},
		sizes:   map[string]cc.Type{},

		rejected: map[string][]error{},
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
	return s.api, nil
}

func translate(opts Options, include string) (*cc.AST, error) {
	abi, err := cc.NewABI("linux", "amd64")
	if err != nil {
		return nil, err
	}
	predefined, err := os.ReadFile(filepath.Join(opts.Shim, "predefined.h"))
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(opts.Source)
	if err != nil {
		return nil, err
	}
	cfg := &cc.Config{
		ABI: abi, UnsignedEnums: true, EvalAllMacros: true,
		SysIncludePaths: []string{opts.Shim, include},
	}
	return cc.Translate(cfg, []cc.Source{
		{Name: "<predefined>", Value: string(predefined)}, // the name is special to cc
		{Name: "<builtin>", Value: cc.Builtin},
		{Name: opts.Source, Value: string(source)},
	})
}

type scanner struct {
	known         *conventions.Table
	api           *api.API
	include, shim string
	structs       map[string]*api.Struct // by name with keyword
	order         []string               // of structs
	sizes         map[string]cc.Type     // what cc makes of each struct
	rejected      map[string][]error     // what is wrong with each struct
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
		if !bound || decl.IsTypename() || decl.Type().Kind() != cc.Function {
			continue
		}
		t, names := s.declared(decl, sp.base)
		s.addFunction(decl, &api.Function{Name: decl.Name(), Header: header, Type: t, Params: names})
	}
}

// addFunction records f once: a function may be declared more than once, and
// declared before it is defined.
func (s *scanner) addFunction(n cc.Node, f *api.Function) {
	known := s.known.Funcs[f.Name]
	if known == nil {
		s.reject(n, "no convention for %s; add to the conventions a line such as: func %s %s", f.Name, f.Name, guess(f.Type.Elem))
		return
	}
	for _, name := range slices.Concat(known.Nil, known.Keeps, known.Out) {
		if !slices.Contains(f.Params, name) {
			s.reject(n, "the conventions name a parameter %s of %s, which has none such", name, f.Name)
		}
	}
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
	if s.known.Enums[out.Key()] == nil {
		s.reject(e, "no kind for enum %s; add to the conventions a line such as: enum %s values", out.Key(), out.Key())
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

// aggregate records a struct or union, or that it is declared only.
func (s *scanner) aggregate(header string, u *cc.StructOrUnionSpecifier) {
	tag := tagOf(u)
	if tag == "" {
		return // of a typedef; libc's only
	}
	name := keyword(u) + " " + tag
	if s.structs[name] != nil {
		return
	}
	out := &api.Struct{Name: name, Header: header}
	s.structs[name] = out
	s.sizes[name] = u.Type()
	before := s.errs
	s.errs = nil
	out.Members = s.members(header, u)
	s.rejected[name], s.errs = s.errs, before // an error only if it is needed
	s.order = append(s.order, name)
}

func (s *scanner) members(header string, u *cc.StructOrUnionSpecifier) []*api.Member {
	var out []*api.Member
	for l := u.StructDeclarationList; l != nil; l = l.StructDeclarationList {
		d := l.StructDeclaration
		if d.Case == cc.StructDeclarationAssert {
			continue
		}
		s.attributes(d, d.AttributeSpecifierList, "(8)")
		sp := s.memberSpecifiers(d.SpecifierQualifierList)
		if sp.enum != nil {
			s.enum(header, sp.enum)
		}
		if sp.aggregate != nil && sp.base != nil {
			s.aggregate(header, sp.aggregate)
		}
		if d.StructDeclaratorList == nil && sp.aggregate != nil {
			out = append(out, s.inPlace("", header, sp))
			continue
		}
		for l := d.StructDeclaratorList; l != nil; l = l.StructDeclaratorList {
			sd := l.StructDeclarator
			if sd.Case == cc.StructDeclaratorBitField {
				s.reject(sd, "a bit-field cannot be represented")
				continue
			}
			if sp.base == nil {
				if sd.Declarator.Pointer != nil || sd.Declarator.DirectDeclarator.Case != cc.DirectDeclaratorIdent {
					s.reject(sd, "a pointer to, or array of, an unnamed struct cannot be represented")
				}
				out = append(out, s.inPlace(sd.Declarator.Name(), header, sp))
				continue
			}
			t, _ := s.declared(sd.Declarator, sp.base)
			out = append(out, &api.Member{Name: sd.Declarator.Name(), Type: t})
		}
	}
	return out
}

func (s *scanner) inPlace(name, header string, sp *specifiers) *api.Member {
	return &api.Member{
		Name: name, Aggregate: keyword(sp.aggregate), Members: s.members(header, sp.aggregate),
	}
}

// attributes rejects what changes a layout. aligned(8) on a member of eight
// bytes, as the kernel's __aligned_u64 has, changes none on a 64-bit machine;
// the comparison with cc's own layout would show if it did.
func (s *scanner) attributes(n cc.Node, list *cc.AttributeSpecifierList, allowed string) {
	for ; list != nil; list = list.AttributeSpecifierList {
		values := list.AttributeSpecifier.AttributeValueList
		for ; values != nil; values = values.AttributeValueList {
			text := strings.ReplaceAll(cc.NodeSource(values.AttributeValue), " ", "")
			name := strings.Trim(text, "_")
			if allowed != "" && (name == "aligned"+allowed || text == "__aligned__"+allowed) {
				continue
			}
			if strings.Contains(name, "packed") || strings.Contains(name, "aligned") {
				s.reject(n, "the attribute %s cannot be represented", text)
			}
		}
	}
}

// closure keeps the structs of the bound headers, and what those hold by
// value of other headers.
func (s *scanner) closure() {
	keep := map[string]bool{}
	var add func(name string)
	var visit func(members []*api.Member)
	visit = func(members []*api.Member) {
		for _, m := range members {
			visit(m.Members)
			t := m.Type
			for t != nil && t.Kind == api.Array {
				t = t.Elem
			}
			if t != nil && t.Kind == api.Named {
				add(t.Name)
			}
		}
	}
	add = func(name string) {
		if st := s.structs[name]; st != nil && !keep[name] {
			keep[name] = true
			s.errs = append(s.errs, s.rejected[name]...)
			visit(st.Members)
		}
	}
	for _, name := range s.order {
		if slices.Contains(Headers, s.structs[name].Header) {
			add(name)
		}
	}
	for _, name := range s.order {
		if keep[name] {
			s.api.Structs = append(s.api.Structs, s.structs[name])
		}
	}
}

// checkLayouts computes every layout and compares it with what cc computed.
func (s *scanner) checkLayouts() {
	if len(s.errs) > 0 {
		return
	}
	engine := layout.New(s.api, layout.AMD64)
	for _, st := range s.api.Structs {
		if err := engine.Apply(st); err != nil {
			s.errs = append(s.errs, err)
			continue
		}
		t := s.sizes[st.Name]
		if len(st.Members) > 0 && (t.Size() != st.Size || int64(t.Align()) != st.Align) {
			s.errs = append(s.errs, fmt.Errorf("%s: %s: size %d align %d by our rules, %d and %d by cc's",
				st.Header, st.Name, st.Size, st.Align, t.Size(), t.Align()))
		}
	}
}

// IncludeDir returns the include folder of a folder with headers, which may be
// the root of an unpacked package.
func IncludeDir(headers string) string {
	dir := filepath.Join(headers, "usr", "include")
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	return headers
}
