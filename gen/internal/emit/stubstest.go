// SPDX-License-Identifier: Apache-2.0

package emit

import "github.com/dave/jennifer/jen"

// stubsTestFile writes a test that every stub calls the function of its name.
// It leaves out the bindings' own C functions, which call other functions or
// none.
func (p *pkg) stubsTestFile(f *jen.File) {
	f.HeaderComment("//go:build " + callable)
	check := jen.Func().Params(jen.List(jen.Id("function"), jen.Id("class")).String(), jen.Id("stub").Any())
	f.Func().Id("TestStubs").Params(jen.Id("t").Op("*").Qual("testing", "T")).Block(
		jen.Qual(fakelibPkg, "Stubs").Call(jen.Id("t"), jen.Lit(p.library.Soname),
			jen.Func().Params(jen.Id("check").Add(check)).BlockFunc(func(g *jen.Group) {
				for _, fn := range p.bound() {
					if fn.variable == nil && (fn.Inline == nil || fn.call() != own) {
						g.Id("check").Call(jen.Lit(fn.Name()), jen.Lit(string(fn.Class)), jen.Id(fn.goName))
					}
				}
			})),
	)
}
