package emit

import "github.com/dave/jennifer/jen"

// enumsTestFile writes a test that every enum's parser reverses its String.
func (p *pkg) enumsTestFile(f *jen.File) {
	f.Func().Id("TestEnums").Params(jen.Id("t").Op("*").Qual("testing", "T")).BlockFunc(func(g *jen.Group) {
		for _, e := range p.enums {
			name := p.enumName(e)
			if name == "-" {
				continue
			}
			other := jen.Lit("")
			if p.Strings[e.Name] != nil {
				other = jen.Id(tableName(name)).Dot("Other")
			}
			g.Qual(goldenPkg, "Enum").Call(jen.Id("t"), jen.Id("Parse"+name), jen.Id(tableName(name)).Dot("Names"), other)
		}
	})
}
