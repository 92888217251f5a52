// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// whole rejects a declaration if cc has dropped some of its words. cc drops
// attributes in some places.
func (s *scanner) whole(nodes ...cc.Node) {
	tokens := tokensOf(nodes...)
	for i := 1; i < len(tokens); i++ {
		if tokens[i].Seq() > tokens[i-1].Seq()+1 && !areHarmless(s.droppedWords(tokens[i-1], tokens[i])) {
			s.reject(tokens[i-1], "what follows here is beyond the C parser")
			return
		}
	}
}

// everything rejects the declarations of the bound headers that the scanner has
// not met, such as a struct that is defined inside an expression.
func (s *scanner) everything(ast *cc.AST) {
	for _, name := range slices.Sorted(maps.Keys(ast.Scope.Nodes)) {
		for _, n := range ast.Scope.Nodes[name] {
			if _, bound := s.header(n); bound && !s.cameAcross(name, n) {
				s.reject(n, "%s cannot be declared here", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.bodiless)) {
		if s.skips(name) {
			s.remove(name)
			continue
		}
		s.reject(s.bodiless[name], "the static function %s has no body", name)
	}
	for _, f := range s.api.Functions {
		s.knownEnums(s.ordinary[f.Name], f.Type)
	}
	for _, v := range s.api.Variables {
		s.knownEnums(s.ordinary[v.Name], v.Type)
	}
	for _, st := range s.api.Structs {
		s.memberEnums(s.structs[st.Name].node, st.Members)
	}
}

func (s *scanner) memberEnums(n cc.Node, members []*api.Member) {
	for _, m := range members {
		s.knownEnums(n, m.Type)
		s.memberEnums(n, m.Members)
	}
}

// knownEnums rejects a type that is made of an enum which is not recorded.
func (s *scanner) knownEnums(n cc.Node, t *api.Type) {
	if t == nil {
		return
	}
	if tag, ok := t.Tag("enum"); ok && !s.recordsEnum(tag) && !slices.ContainsFunc(s.base.Enums, func(e *api.Enum) bool { return e.Name == tag }) {
		s.reject(n, "%s is not defined in the headers that are bound", t.Name)
	}
	for _, part := range append([]*api.Type{t.Elem}, t.Params...) {
		s.knownEnums(n, part)
	}
}

// recordsEnum reports whether the snapshot has an enum. If the enum is in a
// header that is not bound, recordsEnum adds it, because a bound declaration
// uses it.
func (s *scanner) recordsEnum(tag string) bool {
	named := func(e *api.Enum) bool { return e.Name == tag }
	if slices.ContainsFunc(s.api.Enums, named) {
		return true
	}
	i := slices.IndexFunc(s.otherEnums, named)
	if i < 0 || tag == "" || slices.ContainsFunc(s.base.Enums, named) {
		return false
	}
	s.api.Enums = append(s.api.Enums, s.otherEnums[i])
	return true
}

func (s *scanner) cameAcross(name string, n cc.Node) bool {
	switch n := n.(type) {
	case *cc.Enumerator:
		return s.ordinary[name] != nil
	case *cc.EnumSpecifier:
		return n.Case != cc.EnumSpecifierDef || s.enums[name] != nil
	case *cc.StructOrUnionSpecifier:
		return n.Case != cc.StructOrUnionSpecifierDef || s.structs[keyword(n)+" "+name] != nil
	case *cc.Declarator:
		return n.Type().Kind() != cc.Function || s.ordinary[name] != nil || s.typedefs[name] != nil
	}
	return true
}

// declare records the name of a function, variable, typedef or enumerator, and
// rejects a second one of the same name.
func (s *scanner) declare(n cc.Node, name string) {
	s.name(n, name)
	if old := s.ordinary[name]; old != nil {
		s.reject(n, "%s is declared at %v already", name, old.Position())
		return
	}
	s.ordinary[name] = n
}

var identifier = regexp.MustCompile(`^[A-Za-z_][0-9A-Za-z_]*$`)

// name rejects names that are not allowed in Go or in a snapshot.
func (s *scanner) name(n cc.Node, name string) {
	if name != "" && !identifier.MatchString(name) {
		s.reject(n, "the name %q cannot be represented", name)
	}
}

// maxTypeDepth is the maximum nesting of a type. A snapshot could hold more.
const maxTypeDepth = 30

// representable rejects types that contain anything but numbers, structs,
// unions, enums and known types of libc. It also rejects types that cc accepts
// although C does not have them, such as an array of functions.
func (s *scanner) representable(n cc.Node, of string, t *api.Type) { s.representableAt(n, of, t, 0) }

func (s *scanner) representableAt(n cc.Node, of string, t *api.Type, depth int) {
	switch {
	case depth > maxTypeDepth:
		s.reject(n, "the type of %s is nested more than %d deep", of, maxTypeDepth)
		return
	case t.Kind == api.Named:
		s.leaf(n, of, t)
		return
	case t.Kind == api.Func && (t.Elem.Kind == api.Func || t.Elem.Kind == api.Array):
		s.reject(n, "%s has a result of type %s", of, t.Elem)
		return
	case t.Kind == api.Array && t.Elem.Kind == api.Func:
		s.reject(n, "%s is an array of functions", of)
	}
	for _, part := range append([]*api.Type{t.Elem}, t.Params...) {
		s.representableAt(n, of, part, depth+1)
	}
}

// libcTypes lists types of libc that the bindings define in Go.
var libcTypes = []string{"pthread_mutex_t", "pthread_cond_t"}

func (s *scanner) leaf(n cc.Node, of string, t *api.Type) {
	kind, _, _ := strings.Cut(t.Name, " ")
	_, isOpaque := layout.Opaque(t.Name)
	switch {
	case isOpaque, slices.Contains([]string{"struct", "union", "enum"}, kind), t.IsVoid(), layout.IsScalar(t.Name), slices.Contains(libcTypes, t.Name):
	default:
		s.reject(n, "the type %s of %s cannot be represented", t.Name, of)
	}
}
