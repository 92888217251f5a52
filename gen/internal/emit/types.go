// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// scalar describes an arithmetic C type: its Go type, and the C type with which
// a stub takes it.
type scalar struct{ goType, wire string }

var scalars = map[string]scalar{
	"_Bool": {"bool", "_Bool"},
	"char":  {"byte", "uint8_t"}, "signed char": {"int8", "int8_t"}, "unsigned char": {"uint8", "uint8_t"},
	"short": {"int16", "int16_t"}, "unsigned short": {"uint16", "uint16_t"},
	"int": {"int32", "int32_t"}, "unsigned int": {"uint32", "uint32_t"},
	"long": {"int64", "int64_t"}, "unsigned long": {"uint64", "uint64_t"},
	"float": {"float32", "float"}, "double": {"float64", "double"},
	"long long": {"int64", "int64_t"}, "unsigned long long": {"uint64", "uint64_t"},
	"int8_t": {"int8", "int8_t"}, "int16_t": {"int16", "int16_t"}, "int32_t": {"int32", "int32_t"}, "int64_t": {"int64", "int64_t"},
	"uint8_t": {"uint8", "uint8_t"}, "uint16_t": {"uint16", "uint16_t"}, "uint32_t": {"uint32", "uint32_t"}, "uint64_t": {"uint64", "uint64_t"},
	"__s8": {"int8", "int8_t"}, "__s16": {"int16", "int16_t"}, "__s32": {"int32", "int32_t"}, "__s64": {"int64", "int64_t"},
	"__u8": {"uint8", "uint8_t"}, "__u16": {"uint16", "uint16_t"}, "__u32": {"uint32", "uint32_t"}, "__u64": {"uint64", "uint64_t"},
	"__be16": {"Be16", "uint16_t"}, "__be32": {"Be32", "uint32_t"}, "__be64": {"Be64", "uint64_t"},
	"size_t": {"uint64", "uint64_t"}, "ssize_t": {"int64", "int64_t"}, "off_t": {"int64", "int64_t"},
	"uintptr_t": {"uint64", "uint64_t"}, "intptr_t": {"int64", "int64_t"},
	"socklen_t": {"uint32", "uint32_t"}, "nfds_t": {"uint64", "uint64_t"}, "sa_family_t": {"uint16", "uint16_t"},
	"pthread_mutex_t": {"PthreadMutex", ""}, "pthread_cond_t": {"PthreadCond", ""},
}

// verbsTypes holds the Go types that libibverbs declares and all packages use.
var verbsTypes = map[string]bool{
	"Be16": true, "Be32": true, "Be64": true, "PthreadMutex": true, "PthreadCond": true,
}

// goType returns the Go type for a C type.
func (p *pkg) goType(t *api.Type) *jen.Statement {
	switch t.Kind {
	case api.Array:
		return jen.Index(jen.Lit(int(t.Len))).Add(p.goType(t.Elem))
	case api.Pointer:
		if t.Elem.IsVoid() || t.Elem.Kind == api.Func || p.isForeign(t.Elem) {
			return jen.Qual("unsafe", "Pointer")
		}
		return jen.Op("*").Add(p.goType(t.Elem))
	}
	if e := p.integers[t]; e != nil {
		return p.qualified(e.Header, func(p *pkg) string { return p.enumName(e) })
	}
	if s, ok := scalars[t.Name]; ok {
		if verbsTypes[s.goType] {
			return jen.Qual(p.libcTypes(s.goType), s.goType)
		}
		return jen.Id(s.goType)
	}
	if tag, ok := t.Tag("enum"); ok {
		return p.tagged(tag)
	}
	if s := p.declared(t.Name); s != nil {
		_, tag, _ := strings.Cut(t.Name, " ")
		return p.tagged(tag)
	}
	if tag, ok := t.Tag("struct"); ok {
		if p.verbs != nil && p.verbs.names(tag) && !p.isElsewhere() {
			return jen.Qual(verbsPkg, p.verbs.typeName(tag))
		}
		return jen.Qual(p.path(), p.typeName(tag))
	}
	p.fail("no Go type for %s", t)
	return jen.Id("invalid")
}

// tagged returns the type of a struct, union or enum that is declared with this
// tag in any package.
func (p *pkg) tagged(tag string) *jen.Statement {
	for _, e := range p.API.Enums {
		if e.Name == tag {
			return p.qualified(e.Header, func(p *pkg) string { return p.enumName(e) })
		}
	}
	for _, s := range p.API.Structs {
		if _, name, _ := strings.Cut(s.Name, " "); name == tag {
			return p.qualified(s.Header, func(p *pkg) string { return p.typeName(tag) })
		}
	}
	p.fail("no Go type for %s", tag)
	return jen.Id("invalid")
}

// enumerator returns the Go constant for an enumerator, which may be one of
// libibverbs.
func (p *pkg) enumerator(name string) *jen.Statement {
	for _, e := range p.API.Enums {
		if has(e, name) {
			return p.qualified(e.Header, func(*pkg) string { return enumeratorName(name) })
		}
	}
	p.fail("no Go constant for %s", name)
	return jen.Id("invalid")
}

// qualified returns a Go identifier for something that a header declares. name
// returns its name in the package to which the header belongs.
func (p *pkg) qualified(header string, name func(*pkg) string) *jen.Statement {
	where := p.Home(header)
	if where == p.name {
		return jen.Qual(p.path(), name(p))
	}
	if p.verbs == nil || where != p.verbs.name {
		p.fail("the declarations of %s are in package %s, which package %s cannot import", header, where, p.name)
		return jen.Id("invalid")
	}
	return jen.Qual(verbsPkg, name(p.verbs))
}

// isForeign reports whether t is a struct of libc that no package binds, such
// as struct pollfd.
func (p *pkg) isForeign(t *api.Type) bool {
	if _, ok := layout.Opaque(t.Name); ok {
		return true
	}
	tag, ok := t.Tag("struct")
	if !ok || p.declared(t.Name) != nil || slices.Contains(p.opaque, tag) {
		return false
	}
	return p.verbs != nil && !p.names(tag) && (!p.verbs.names(tag) || p.isElsewhere())
}

// enumSize returns the size of an enum in bytes.
func (p *pkg) enumSize(t *api.Type) int64 {
	size, err := p.engine.Of(t)
	if err != nil {
		p.fail("%v", err)
	}
	return size.Size
}

// isRecord reports whether t is a struct or union, which a stub takes and
// returns through a pointer.
func (p *pkg) isRecord(t *api.Type) bool {
	_, isStruct := t.Tag("struct")
	_, isUnion := t.Tag("union")
	return isStruct || isUnion
}

// isFloat reports whether t is a floating-point type, of which a stub takes the
// bits.
func isFloat(t *api.Type) bool { return t.Kind == api.Named && layout.IsFloat(t.Name) }

// wire returns the C type with which a stub takes a value. A void pointer is
// passed as a pointer to bytes. With a void pointer, cgo would refuse memory of
// a Go object that contains, at any place, a pointer that is not pinned. The
// type of the bytes says that C gets no such pointer.
func (p *pkg) wire(t *api.Type) string {
	if p.isRecord(t) {
		if s := p.declared(t.Name); s == nil || len(s.Members) == 0 {
			p.fail("%s is passed by value, and its members are not bound", t)
		}
		return "void *"
	}
	if t.Kind == api.Pointer {
		if t.Elem.IsVoid() {
			return "uint8_t *"
		}
		return "void *"
	}
	if _, ok := t.Tag("enum"); ok {
		if p.enumSize(t) == 8 {
			return "uint64_t"
		}
		return "uint32_t"
	}
	s, ok := scalars[t.Name]
	if !ok || s.wire == "" {
		p.fail("%s cannot be passed by value", t)
	}
	return s.wire
}
