// SPDX-License-Identifier: Apache-2.0

package emit

import "github.com/dave/jennifer/jen"

// enumsTestFile writes the tests that the parser of each enum reverses String.
func (p *pkg) enumsTestFile(f *jen.File) {
	f.Var().Id("enumCases").Op("=").Index().Qual(goldenPkg, "EnumCase").ValuesFunc(func(g *jen.Group) {
		for _, e := range p.enums {
			if name := p.enumName(e); name != "-" {
				g.Line().Qual(goldenPkg, "Enum").Call(jen.Id("Parse"+name), jen.Op("&").Id(tableName(name)))
			}
		}
		g.Line()
	})
	f.Func().Id("TestEnums").Params(jen.Id("t").Op("*").Qual("testing", "T")).Block(
		jen.Qual(goldenPkg, "TestEnums").Call(jen.Id("t"), jen.Id("enumCases")),
	)
	f.Func().Id("FuzzEnums").Params(jen.Id("f").Op("*").Qual("testing", "F")).Block(
		jen.Qual(goldenPkg, "FuzzEnums").Call(jen.Id("f"), jen.Id("enumCases")),
	)
}
