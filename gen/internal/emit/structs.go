// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

func (p *pkg) structsFile(f *jen.File) {
	for _, tag := range p.opaque {
		f.Commentf("%s is struct %s, which only the library can look into.%s",
			p.typeName(tag), tag, p.sinceSentence(p.Since.Release("struct", tag)))
		f.Type().Id(p.typeName(tag)).Struct(jen.Id("_").Index(jen.Lit(0)).Byte())
	}
	for _, s := range p.structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		name := p.typeName(tag)
		in := scope{tag, p.Since.Release(kind, tag)}
		f.Commentf("%s is %s in %s: %d bytes.%s", name, s.C(), s.Header, s.Size, p.sinceSentence(in.release))
		p.aggregate(f, name, in, kind, s.Members, layout.Size{Size: s.Size, Align: s.Align})
	}
}

// scope identifies a struct or union, or a member of one.
type scope struct {
	path    string // its name in C, such as ibv_qp or rdma_cm_event.param
	release string // release that added it; empty if every supported release has it
}

// member returns the scope of a member of s. The release in it is empty if the
// same release has added s.
func (p *pkg) member(s scope, m *api.Member) scope {
	path := s.path + "." + m.Name
	release := p.Since.Release("member", path)
	if release == s.release {
		release = ""
	}
	return scope{path, release}
}

// aggregate writes the Go type of a struct or union. A union becomes an array
// of integers with a method for each member.
func (p *pkg) aggregate(f *jen.File, name string, in scope, kind string, members []*api.Member, size layout.Size) {
	if !p.plain(kind, members, size) {
		p.memory(f, name, in, kind, members, size)
		return
	}
	if kind == "union" {
		f.Type().Id(name).Struct(jen.Id("storage").Add(storage(size)))
		p.views(f, name, in, "storage", members)
		return
	}
	var nested []func()
	var at int64
	pad := func(g *jen.Group, to int64) {
		if to > at {
			g.Id("_").Index(jen.Lit(int(to - at))).Byte()
		}
	}
	f.Type().Id(name).StructFunc(func(g *jen.Group) {
		if m := members[len(members)-1]; m.IsFlexible() {
			// It comes first, because Go would give an empty array
			// that is the last field a size.
			g.Id("_").Index(jen.Lit(0)).Add(p.goType(m.Type.Elem)).Comment("for the alignment of " + m.Name)
			nested = append(nested, func() { p.flexible(f, name, in, m) })
		}
		for _, m := range members {
			if m.IsFlexible() {
				continue
			}
			pad(g, m.Offset)
			msize := p.size(m)
			at = m.Offset + msize.Size
			switch {
			case m.Type != nil:
				g.Id(goName(m.Name)).Add(p.goType(m.Type)).Comment(m.Name + p.sinceClause(p.member(in, m).release))
			case m.Name == "": // a union; see checkMembers
				field := fmt.Sprintf("union%d", m.Offset)
				g.Id(field).Add(storage(msize)).Comment(memberNames(m.Members))
				nested = append(nested, func() { p.views(f, name, in, field, m.Members) })
			default:
				inner := name + goName(m.Name)
				g.Id(goName(m.Name)).Id(inner).Comment(m.Name + p.sinceClause(p.member(in, m).release))
				nested = append(nested, func() {
					f.Commentf("%s is the type of member %s of %s.", inner, m.Name, name)
					p.aggregate(f, inner, p.member(in, m), m.Aggregate, m.Members, msize)
				})
			}
		}
		pad(g, size.Size)
	})
	for _, emit := range nested {
		emit()
	}
}

// flexible writes the method for a flexible array member: the array behind the
// struct, whose length its type does not say.
func (p *pkg) flexible(f *jen.File, name string, in scope, m *api.Member) {
	t := jen.Op("*").Add(p.goType(m.Type.Elem))
	f.Commentf("%s returns where the elements of member %s begin, behind the struct.%s",
		goName(m.Name), m.Name, p.sinceSentence(p.member(in, m).release))
	f.Func().Params(jen.Id("s").Op("*").Id(name)).Id(goName(m.Name)).Params().Add(t.Clone()).Block(
		jen.Return(jen.Parens(t).Parens(jen.Qual("unsafe", "Add").Call(
			jen.Qual("unsafe", "Pointer").Call(jen.Id("s")), jen.Lit(int(m.Offset))))),
	)
}

// views writes a method for each member of a union. The Go type with the given
// name has the union's memory in field.
func (p *pkg) views(f *jen.File, name string, in scope, field string, members []*api.Member) {
	for _, m := range members {
		var t *jen.Statement
		var nested func()
		switch {
		case m.Type != nil:
			t = p.goType(m.Type)
		default:
			inner := name + goName(m.Name)
			t = jen.Id(inner)
			nested = func() {
				f.Commentf("%s is the type of member %s of %s.", inner, m.Name, name)
				p.aggregate(f, inner, p.member(in, m), m.Aggregate, m.Members, p.size(m))
			}
		}
		f.Commentf("%s returns the union's member %s.%s", goName(m.Name), m.Name, p.sinceSentence(p.member(in, m).release))
		f.Func().Params(jen.Id("s").Op("*").Id(name)).Id(goName(m.Name)).Params().Op("*").Add(t.Clone()).Block(
			jen.Return(jen.Parens(jen.Op("*").Add(t)).Parens(
				jen.Qual("unsafe", "Pointer").Parens(jen.Op("&").Id("s").Dot(field)))),
		)
		if nested != nil {
			nested()
		}
	}
}

func memberNames(members []*api.Member) string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	return "union of " + strings.Join(names, ", ")
}

// storage returns an array type with the size and alignment of a union.
func storage(size layout.Size) *jen.Statement {
	unit := map[int64]string{1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}[size.Align]
	return jen.Index(jen.Lit(int(size.Size / size.Align))).Id(unit)
}

func (p *pkg) size(m *api.Member) layout.Size {
	size, err := p.engine.OfMember(m)
	if err != nil {
		p.fail("%v", err)
	}
	return size
}
