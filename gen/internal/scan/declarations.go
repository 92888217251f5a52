// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

func (s *scanner) external(e *cc.ExternalDeclaration) {
	s.current = e
	before := len(s.problems)
	s.recordExternal(e)
	if len(s.problems) > before && s.leaveOut(e) {
		s.problems = s.problems[:before]
	}
}

// leaveOut removes the functions and variables that e declares from the
// snapshot, and reports whether it did. It does so only if the conventions
// skip all of them.
func (s *scanner) leaveOut(e *cc.ExternalDeclaration) bool {
	names := map[string]cc.Node{}
	switch e.Case {
	case cc.ExternalDeclarationFuncDef:
		d := e.FunctionDefinition.Declarator
		names[d.Name()] = d
	case cc.ExternalDeclarationDecl:
		for l := e.Declaration.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
			d := l.InitDeclarator.Declarator
			if d.IsTypename() {
				return false
			}
			names[d.Name()] = d
		}
	}
	for name := range names {
		if !s.skips(name) {
			return false
		}
	}
	for name, n := range names {
		s.ordinary[name] = n // everything must not report it
		delete(s.bodiless, name)
		s.remove(name)
	}
	return len(names) > 0
}

// skips reports whether the conventions skip a function or variable.
func (s *scanner) skips(name string) bool {
	known := s.known.Funcs[name]
	return known != nil && known.Skip != ""
}

// remove removes a function or variable from the snapshot.
func (s *scanner) remove(name string) {
	s.api.Functions = slices.DeleteFunc(s.api.Functions, func(f *api.Function) bool { return f.Name == name })
	s.api.Variables = slices.DeleteFunc(s.api.Variables, func(v *api.Variable) bool { return v.Name == name })
}

func (s *scanner) recordExternal(e *cc.ExternalDeclaration) {
	switch e.Case {
	case cc.ExternalDeclarationFuncDef:
		s.definition(e.FunctionDefinition)
	case cc.ExternalDeclarationDecl:
		s.declaration(e.Declaration)
	default:
		if _, bound := s.header(e); bound {
			s.reject(e, "an asm statement cannot be represented")
		}
	}
}

// definition records a static inline function.
func (s *scanner) definition(f *cc.FunctionDefinition) {
	header, bound := s.header(f.Declarator)
	if !bound {
		return
	}
	sp := s.declarationSpecifiers(f.DeclarationSpecifiers)
	s.whole(f.DeclarationSpecifiers, f.Declarator)
	s.defined(header, "", sp)
	name := f.Declarator.Name()
	if _, ok := s.bodiless[name]; !ok && !sp.static {
		s.reject(f.Declarator, "the function %s has a body and is not static", name)
	}
	delete(s.bodiless, name)
	t, names := s.declared(f.Declarator, sp.base)
	if t.Kind != api.Func || sp.typedef {
		s.reject(f.Declarator, "%s has a body and is no function", name)
		return
	}
	s.addFunction(f.Declarator, &api.Function{Name: name, Header: header, Type: t, Params: names, Inline: inline(f, names)})
}

func (s *scanner) declaration(d *cc.Declaration) {
	if d.Case == cc.DeclarationAssert {
		s.asserted(d)
		return
	}
	if strings.HasPrefix(d.Position().Filename, "<") {
		return
	}
	header, bound := s.header(d)
	if bound {
		s.whole(d)
		s.attributes(d.AttributeSpecifierList)
	}
	if d.DeclarationSpecifiers == nil {
		if bound && (d.InitDeclaratorList != nil || d.Declarator != nil) {
			s.reject(d, "a declaration without a type cannot be represented")
		}
		for l := d.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
			s.ordinary[l.InitDeclarator.Declarator.Name()] = d
		}
		return
	}
	before := s.problems
	sp := s.declarationSpecifiers(d.DeclarationSpecifiers)
	bare := s.bare(d.InitDeclaratorList, sp)
	if !bound {
		s.problems = before // only those of declarations that are used count
	}
	s.defined(header, bare, sp)
	if bound && d.InitDeclaratorList == nil {
		s.declaresSomething(d, sp)
	}
	for l := d.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
		s.declarator(l, header, bound, sp)
	}
}

// defined records the struct, union or enum that specifiers define. If it has
// no tag, bare is the name of the typedef for it.
func (s *scanner) defined(header, bare string, sp *specifiers) {
	if sp.aggregate != nil {
		s.aggregate(header, bare, sp.aggregate)
	}
	if sp.enum != nil {
		s.enum(header, bare, sp.enum)
	}
}

// declaresSomething rejects declarations such as int; and struct { int x; };
// and typedef struct s;
func (s *scanner) declaresSomething(d *cc.Declaration, sp *specifiers) {
	if sp.typedef || sp.enum == nil && !sp.tagged {
		s.reject(d, "this declares nothing")
	}
}

func (s *scanner) declarator(l *cc.InitDeclaratorList, header string, bound bool, sp *specifiers) {
	decl := l.InitDeclarator.Declarator
	name := decl.Name()
	switch {
	case decl.IsTypename():
		before := s.problems
		s.typedef(l, header, bound, sp)
		if !bound && !isLibcs(name) {
			s.problems = before
		}
		return
	case !bound:
		return
	case decl.Type().Kind() != cc.Function:
		s.variable(l, header, sp)
		return
	case l.InitDeclarator.Asm != nil:
		s.reject(l.InitDeclarator.Asm, "the asm label of %s cannot be represented", name)
	}
	s.attributes(l.AttributeSpecifierList)
	s.attributes(l.InitDeclarator.AttributeSpecifierList)
	t, names := s.declared(decl, sp.base)
	if t == sp.renamed {
		names = sp.params
	}
	if t.Kind != api.Func { // only typeof can declare a function so
		s.reject(decl, "a function of type %s cannot be represented", t)
		return
	}
	s.addFunction(decl, &api.Function{Name: name, Header: header, Type: t, Params: names})
	if f := s.recorded(name); sp.static && (f == nil || f.Inline == nil) {
		s.bodiless[name] = decl
	}
}

// addFunction records f, unless it is recorded already: C allows several
// declarations of a function. A definition replaces a declaration.
func (s *scanner) addFunction(n cc.Node, f *api.Function) {
	before := len(s.problems)
	s.passable(n, f.Name, f.Type)
	if len(s.problems) > before && s.unfit != nil {
		why := s.problems[before].text
		s.problems = s.problems[:before]
		s.ordinary[f.Name] = n // everything must not report it
		s.unfit(f, why)
		return
	}
	old := s.recorded(f.Name)
	switch {
	case old == nil:
		s.declare(n, f.Name)
		if !s.draft {
			s.convention(n, f)
		}
		s.api.Functions = append(s.api.Functions, f)
	case f.Inline != nil:
		*old = *f
	}
}

// convention rejects a function for which the conventions have no line. A line
// for a macro of the same name is enough: a later version has turned the
// function into a macro.
func (s *scanner) convention(n cc.Node, f *api.Function) {
	known := s.known.Funcs[f.Name]
	if known == nil && s.known.Macros[f.Name] != "" {
		return
	}
	if known == nil {
		s.reject(n, "the conventions have no line for the function %s; add a line such as: func %s %s", f.Name, f.Name, guess(f.Type.Elem))
		return
	}
	for _, name := range known.Named() {
		if !slices.Contains(f.ParamNames(), name) {
			s.reject(n, "the conventions name a parameter %s of %s, which has no such parameter", name, f.Name)
		}
	}
}

// recorded returns the function of that name, or nil if none has been recorded
// yet.
func (s *scanner) recorded(name string) *api.Function {
	for _, f := range s.api.Functions {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// passable rejects a function with a parameter or result that the bindings
// cannot pass.
func (s *scanner) passable(n cc.Node, name string, f *api.Type) {
	for _, t := range append([]*api.Type{f.Elem}, f.Params...) {
		if t.Kind == api.Named && isLibcs(t.Name) && !layout.IsScalar(t.Name) {
			s.reject(n, "%s of %s by value cannot be represented", t, name)
		}
	}
	s.representable(n, name, f)
}
