// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// layoutTestFile writes a test that lists the layouts of all Go types, in the
// format of the golden file with C's layouts.
func (p *pkg) layoutTestFile(f *jen.File) {
	f.Func().Id("TestLayout").Params(jen.Id("t").Op("*").Qual("testing", "T")).BlockFunc(func(g *jen.Group) {
		if p.isElsewhere() {
			g.Id("g").Op(":=").Qual(goldenPkg, "LayoutIn").Call(jen.Id("t"), jen.Lit("testdata"), jen.Lit(p.name))
		} else {
			g.Id("g").Op(":=").Qual(goldenPkg, "Layout").Call(jen.Id("t"), jen.Lit(p.name))
		}
		for _, s := range p.structs {
			_, tag, _ := strings.Cut(s.Name, " ")
			name := p.typeName(tag)
			kind, _, _ := strings.Cut(s.Name, " ")
			if size := (layout.Size{Size: s.Size, Align: s.Align}); !p.plain(kind, s.Members, size) {
				align := jen.Qual("unsafe", "Alignof").Call(jen.Op("*").Id("s"))
				if s.Align > maxGoAlign { // Go cannot align it so
					align = jen.Lit(int(s.Align))
				}
				g.BlockFunc(func(g *jen.Group) {
					g.Id("s").Op(":=").New(jen.Id(name))
					g.Id("g").Dot("Type").Call(jen.Lit(s.Name), sizeof("*s"), align)
					p.leafLayouts(g, s.Name, "s", kind, s.Members, size, "uintptr(0)")
				})
				continue
			}
			g.BlockFunc(func(g *jen.Group) {
				g.Var().Id("s").Id(name)
				g.Id("g").Dot("Type").Call(jen.Lit(s.Name), sizeof("s"), jen.Qual("unsafe", "Alignof").Call(jen.Id("s")))
				p.memberLayouts(g, s.Name, "s", kind, s.Members, "uintptr(0)")
			})
		}
	})
}

func sizeof(expr string) jen.Code { return jen.Qual("unsafe", "Sizeof").Call(jen.Op(expr)) }

// memberLayouts writes the statements that list the members of a struct or
// union, and those of nested ones. expr is a Go expression for it, and base one
// for its offset in the outermost struct.
func (p *pkg) memberLayouts(g *jen.Group, path, expr, kind string, members []*api.Member, base string) {
	for _, m := range members {
		field := expr + "." + goName(m.Name)
		switch {
		case m.IsFlexible():
			begin := jen.Qual(goldenPkg, "Distance").Call(jen.Op("&").Op(expr), jen.Op(field+"()"))
			g.Id("g").Dot("Member").Call(jen.Lit(path), jen.Lit(m.Name), jen.Op(base).Op("+").Add(begin), jen.Lit(0))
			continue
		case kind == "union":
			field = "*" + expr + "." + goName(m.Name) + "()"
		case m.Name == "": // an anonymous union: its members have views in the struct
			inner := jen.Qual("unsafe", "Offsetof").Call(jen.Op(expr).Dot("union" + itoa(m.Offset)))
			for _, um := range m.Members {
				view := expr + "." + goName(um.Name) + "()"
				p.layoutLine(g, path, "*"+view, um, jen.Op(base).Op("+").Add(inner.Clone()))
				if um.Type == nil {
					name := "o" + itoa(m.Offset) + goName(um.Name)
					g.Id(name).Op(":=").Op(base).Op("+").Add(inner.Clone())
					p.memberLayouts(g, path+"."+um.Name, view, um.Aggregate, um.Members, name)
				}
			}
			continue
		}
		at := jen.Op(base)
		if kind != "union" {
			at = jen.Op(base).Op("+").Qual("unsafe", "Offsetof").Call(jen.Op(field))
		}
		p.layoutLine(g, path, field, m, at)
		if m.Type == nil {
			inner := strings.TrimPrefix(field, "*")
			name := "o" + goName(strings.NewReplacer(".", "_", "()", "").Replace(inner))
			g.Id(name).Op(":=").Add(at.Clone())
			p.memberLayouts(g, path+"."+m.Name, inner, m.Aggregate, m.Members, name)
		}
	}
}

func (p *pkg) layoutLine(g *jen.Group, path, field string, m *api.Member, at *jen.Statement) {
	g.Id("g").Dot("Member").Call(jen.Lit(path), jen.Lit(m.Name), at, sizeof(field))
}

// leafLayouts does the same as memberLayouts for a struct or union that is not
// plain. expr is a Go expression for a pointer to it.
func (p *pkg) leafLayouts(g *jen.Group, path, expr, kind string, members []*api.Member, size layout.Size, base string) {
	memory := jen.Qual(goldenPkg, "Memory").Call(jen.Id(expr))
	for _, l := range leaves(members, 0, kind == "union") {
		member := expr + "." + goName(l.Name)
		setter := expr + ".Set" + goName(l.Name)
		value, pointer := "*"+member+"()", member+"()"
		if p.isField(l, size) {
			value, pointer = member, "&"+member
		}
		distance := jen.Op(base).Op("+").Qual(goldenPkg, "Distance").Call(jen.Id(expr), jen.Op(pointer))
		switch {
		case l.Bits != nil:
			g.Id("g").Dot("Bits").Call(jen.Lit(path), jen.Lit(l.Name), jen.Op(base), memory.Clone(), jen.Func().Params().Bool().Block(
				jen.Op(setter).Call(p.allOnes(l)),
				jen.Return(jen.Op(member+"()").Op("==").Add(p.allOnes(l))),
			))
		case l.IsFlexible():
			g.Id("g").Dot("Member").Call(jen.Lit(path), jen.Lit(l.Name), distance, jen.Lit(0))
		case p.isAligned(l, size):
			g.Id("g").Dot("Member").Call(jen.Lit(path), jen.Lit(l.Name), distance, sizeof(value))
			p.innerLayouts(g, path, l, jen.Id("v").Op(":=").Op(pointer), distance)
		default:
			g.Qual(goldenPkg, "Access").Call(jen.Id("g"), jen.Lit(path), jen.Lit(l.Name), jen.Op(base), memory.Clone(), jen.Op(member), jen.Op(setter))
			p.innerLayouts(g, path, l, jen.List(jen.Id("c")).Op(":=").Op(member+"()").Line().Id("v").Op(":=").Op("&").Id("c"),
				jen.Op(base).Op("+").Lit(int(l.offset)))
		}
	}
}

// innerLayouts writes the statements that list the members of l, if l is a
// nested struct or union. The statement v declares the variable v, a pointer to
// it.
func (p *pkg) innerLayouts(g *jen.Group, path string, l leaf, v, at jen.Code) {
	if l.Type == nil {
		g.BlockFunc(func(g *jen.Group) {
			g.Id("o").Op(":=").Add(at)
			g.Add(v)
			p.leafLayouts(g, path+"."+l.Name, "v", l.Aggregate, l.Members, p.size(l.Member), "o")
		})
	}
}

// allOnes returns the value of a bit-field with all its bits set.
func (p *pkg) allOnes(l leaf) jen.Code {
	switch {
	case p.goType(l.Type).GoString() == "bool":
		return jen.True()
	case p.isSigned(l.Type):
		return jen.Lit(-1)
	}
	return jen.Op(fmt.Sprintf("%#x", uint64(1)<<l.Bits.Width-1))
}
