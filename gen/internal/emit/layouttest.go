// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// layoutTestFile writes a test that lists every layout as Go sees it, in the
// words of the golden file that a C program wrote.
func (p *pkg) layoutTestFile(f *jen.File) {
	f.Func().Id("TestLayout").Params(jen.Id("t").Op("*").Qual("testing", "T")).BlockFunc(func(g *jen.Group) {
		g.Id("g").Op(":=").Qual(goldenPkg, "Layout").Call(jen.Id("t"), jen.Lit(p.name))
		for _, s := range p.structs {
			_, tag, _ := strings.Cut(s.Name, " ")
			name := p.typeName(tag)
			g.BlockFunc(func(g *jen.Group) {
				g.Var().Id("s").Id(name)
				g.Id("g").Dot("Type").Call(jen.Lit(s.Name), sizeof("s"), jen.Qual("unsafe", "Alignof").Call(jen.Id("s")))
				kind, _, _ := strings.Cut(s.Name, " ")
				p.memberLayouts(g, s.Name, "s", kind, s.Members, "uintptr(0)")
			})
		}
	})
}

func sizeof(expr string) jen.Code { return jen.Qual("unsafe", "Sizeof").Call(jen.Op(expr)) }

// memberLayouts lists the members of the aggregate that expr is, recursively;
// base is the expression of its offset in the whole.
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
