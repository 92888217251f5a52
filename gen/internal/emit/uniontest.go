// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// unionsTestFile writes a test of the methods for the members of each union, at
// any depth: they must return pointers into the same memory, at C's offset.
func (p *pkg) unionsTestFile(f *jen.File) {
	f.Func().Id("TestUnions").Params(jen.Id("t").Op("*").Qual("testing", "T")).BlockFunc(func(g *jen.Group) {
		for _, s := range p.structs {
			kind, tag, _ := strings.Cut(s.Name, " ")
			if !p.plain(kind, s.Members, layout.Size{Size: s.Size, Align: s.Align}) {
				continue // TestLayout shows where they are
			}
			var checks []jen.Code
			if kind == "union" {
				checks = p.unionTests(s.Name, "s", 0, s.Members, layout.Size{Size: s.Size, Align: s.Align})
			} else {
				checks = p.unionsIn(s.Name, "s", 0, s.Members)
			}
			if len(checks) > 0 {
				g.Block(append([]jen.Code{jen.Var().Id("s").Id(p.typeName(tag))}, checks...)...)
			}
		}
	})
}

// unionsIn returns the tests of the unions that are nested in a struct. expr is
// a Go expression for the struct, and base its offset.
func (p *pkg) unionsIn(path, expr string, base int64, members []*api.Member) []jen.Code {
	var checks []jen.Code
	for _, m := range members {
		at, inner := base+m.Offset, expr
		if m.Name != "" {
			inner += "." + goName(m.Name)
		}
		switch name := strings.TrimSuffix(path+"."+m.Name, "."); m.Aggregate {
		case "union":
			checks = append(checks, p.unionTests(name, inner, at, m.Members, p.size(m))...)
		case "struct":
			checks = append(checks, p.unionsIn(name, inner, at, m.Members)...)
		}
	}
	return checks
}

// unionTests returns the tests of a union. expr is a Go expression for it or,
// if the union is anonymous, for the struct that has its methods.
func (p *pkg) unionTests(path, expr string, at int64, members []*api.Member, size layout.Size) []jen.Code {
	var views []jen.Code
	var deeper []jen.Code
	for _, m := range members {
		view := expr + "." + goName(m.Name) + "()"
		views = append(views, jen.Line().Qual(goldenPkg, "View").Call(jen.Lit(m.Name), jen.Op(view), jen.Lit(int(p.size(m).Size))))
		if m.Type == nil {
			deeper = append(deeper, p.unionsIn(path+"."+m.Name, view, at, []*api.Member{{Aggregate: m.Aggregate, Members: m.Members}})...)
		}
	}
	check := jen.Qual(goldenPkg, "Union").Call(append([]jen.Code{
		jen.Id("t"), jen.Lit(path), jen.Qual(goldenPkg, "Memory").Call(jen.Op("&").Id("s")),
		jen.Lit(int(at)), jen.Lit(int(size.Size)), jen.Lit(int(size.Align)),
	}, append(views, jen.Line())...)...)
	return append([]jen.Code{check}, deeper...)
}
