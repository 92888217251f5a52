// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// lines formats a text as // comment lines.
func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight("// "+strings.TrimSuffix(line, "\n"), " ") + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// mayCallBack reports whether functions that post and poll may call Go in
// programs that are built with -race: the device in user space then tells the
// race detector about the memory of requests.
func (p *pkg) mayCallBack() bool { return p.verbs == nil && !p.isElsewhere() }

// directives returns what cgo may assume about the C function of a kind.
func directives(k kind) (lines []string) {
	if !k.keeps {
		lines = append(lines, "#cgo noescape "+k.Name())
	}
	if k.path {
		lines = append(lines, "#cgo nocallback "+k.Name())
	}
	return lines
}

// pathFile writes the directives of the kinds that post and poll.
func (p *pkg) pathFile(f *jen.File) {
	f.HeaderComment("//go:build " + callable + " && !race")
	preamble := []string{`#include "stubs.h"`}
	for _, k := range p.kinds() {
		if k.path {
			preamble = append(preamble, directives(k)...)
		}
	}
	f.CgoPreamble(strings.Join(preamble, "\n"))
}

// stubsFile writes the Go stubs that call C.
func (p *pkg) stubsFile(f *jen.File) {
	f.HeaderComment("//go:build " + callable)
	preamble := []string{`#include <stdlib.h>`, `#include "stubs.h"`}
	for _, k := range p.kinds() {
		if !k.path || !p.mayCallBack() {
			preamble = append(preamble, directives(k)...)
		}
	}
	f.CgoPreamble(strings.Join(preamble, "\n"))

	library := jen.Dict{
		jen.Id("Name"):    jen.Lit(p.library.Soname),
		jen.Id("Debian"):  jen.Lit(p.library.Debian),
		jen.Id("Fedora"):  jen.Lit(p.library.Fedora),
		jen.Id("Symbols"): jen.Id("symbols"),
		jen.Id("Set"): jen.Func().Params(jen.Id("i").Int(), jen.Id("f").Qual("unsafe", "Pointer")).Block(
			jen.Qual("C", p.setter()).Call(jen.Qual("C", "int").Call(jen.Id("i")), jen.Id("f")),
		),
	}
	if p.library.Apart && !p.isElsewhere() {
		library[jen.Id("Apart")] = jen.True()
	}
	if !p.isElsewhere() {
		library[jen.Id("Since")] = jen.Id("since")
	}
	f.Var().Id("library").Op("=").Qual(dlPkg, "Library").Values(library)
	f.Comment("symbols is in the order of the table in stubs.c.")
	f.Var().Id("symbols").Op("=").Index().String().ValuesFunc(func(g *jen.Group) {
		for _, name := range p.symbols() {
			g.Line().Lit(name)
		}
		g.Line()
	})
	f.Comment("The numbers of the stubs in stubs.c.")
	f.Const().DefsFunc(func(g *jen.Group) {
		for i, fn := range p.bound() {
			number := g.Id(fn.number())
			if i == 0 {
				number.Op("=").Iota()
			}
		}
	})
	if !p.isElsewhere() {
		p.sinceTable(f)
	}
	for _, fn := range p.bound() {
		f.Comment(lines(p.doc(fn)))
		f.Add(p.signature(fn, p.body(fn)...))
	}
}

// sinceTable writes the table of the releases that added functions.
func (p *pkg) sinceTable(f *jen.File) {
	f.Comment("since has the functions that an older library lacks.")
	f.Var().Id("since").Op("=").Map(jen.String()).Qual(dlPkg, "Since").ValuesFunc(func(g *jen.Group) {
		for _, fn := range p.functions {
			if release := p.Since.Release(fn.kind(), fn.Name()); release != "" && fn.why == "" && fn.needsLibrary() {
				g.Line().Lit(fn.Name()).Op(":").ValuesFunc(func(g *jen.Group) {
					if !p.standsAlone() { // dl's errors take a Release for one of rdma-core
						g.Id("Release").Op(":").Lit(release)
					}
					g.Id("Node").Op(":").Lit(fn.Node)
				})
			}
		}
		g.Line()
	})
}

// number returns the name of the constant with the stub's number.
func (f *function) number() string { return "stub" + f.goName }

// platformFile writes the functions of stubsFile for programs that cannot call
// C. Each returns an error.
func (p *pkg) platformFile(f *jen.File) {
	f.HeaderComment("//go:build " + notCallable)
	for _, fn := range p.bound() {
		f.Comment(lines(p.doc(fn)))
		f.Add(p.signature(fn, p.fails(fn, jen.Qual(cerrPkg, "Platform").Call(jen.Lit(fn.Name())))))
	}
}

// fails returns the return statement with an error and the zero values of the
// other results.
func (p *pkg) fails(fn *function, err jen.Code) jen.Code {
	var values []jen.Code
	if v := p.value(fn); v != nil {
		values = append(values, zero(v, p.isRecord(fn.Type.Elem)))
	}
	for _, param := range fn.params {
		if param.out {
			values = append(values, zero(p.goType(param.t.Elem), false))
		}
	}
	return jen.Return(append(values, err)...)
}

func zero(t *jen.Statement, isRecord bool) jen.Code {
	switch text := t.GoString(); {
	case strings.HasPrefix(text, "*"), text == "unsafe.Pointer":
		return jen.Nil()
	case text == "string":
		return jen.Lit("")
	case text == "bool":
		return jen.False()
	case strings.HasPrefix(text, "["), isRecord:
		return jen.Add(t).Values()
	default:
		return jen.Lit(0)
	}
}

// body returns the statements of a stub that calls C.
func (p *pkg) body(fn *function) []jen.Code {
	out := p.refusals(fn)
	if fn.needsLibrary() {
		out = append(out, jen.If(jen.Err().Op(":=").Id("library").Dot("Load").Call(), jen.Err().Op("!=").Nil()).Block(
			p.fails(fn, jen.Err()),
		))
	}
	var outs []jen.Code
	grouped := map[string][]jen.Code{}
	for _, param := range fn.params {
		before, arg := p.argument(param)
		out = append(out, before...)
		grouped[p.group(param)] = append(grouped[p.group(param)], arg)
		if param.out {
			outs = append(outs, jen.Id(param.name))
		}
	}
	if p.isRecord(fn.Type.Elem) {
		out = append(out, jen.Var().Id("result").Add(p.goType(fn.Type.Elem)))
		grouped[pointers] = append(grouped[pointers], jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Id("result")))
	}
	args := []jen.Code{jen.Id(fn.number())}
	for _, g := range groups {
		args = append(args, grouped[g]...)
	}
	out = append(out, jen.Id("r").Op(":=").Qual("C", p.kind(fn).Name()).Call(args...))
	if fn.needsLibrary() {
		out = append(out, jen.If(jen.Id("r").Dot("error").Op("==").Qual(cerrPkg, "Missing")).Block(
			p.fails(fn, jen.Id("library").Dot("Lacks").Call(jen.Lit(fn.Name()))),
		))
	}
	if !fn.leavesErrno() && fn.call() == dispatch {
		// An error means that the object lacks the operation, which the
		// function's result cannot report.
		out = append(out, jen.If(jen.Id("r").Dot("error").Op("!=").Lit(0)).Block(
			p.fails(fn, jen.Qual(cerrPkg, "Code").Call(jen.Lit(fn.Name()), jen.Int64().Call(jen.Id("r").Dot("error")), jen.Lit(0))),
		))
	}
	return append(out, p.finish(fn, outs)...)
}

// refusals returns the statements that refuse nil pointers which C would
// follow, and strings with a zero byte, at which C's string would end.
func (p *pkg) refusals(fn *function) []jen.Code {
	var out []jen.Code
	for _, param := range fn.params {
		name, reason := jen.Id(param.name), ""
		var isWrong jen.Code
		switch {
		case param.text:
			isWrong, reason = jen.Qual("strings", "IndexByte").Call(name, jen.Lit(0)).Op(">=").Lit(0), "ZeroByte"
		case param.t.Kind == api.Pointer && !param.mayNil && !param.out:
			isWrong, reason = name.Op("==").Nil(), "Nil"
		default:
			continue
		}
		out = append(out, jen.If(isWrong).Block(
			p.fails(fn, jen.Qual(cerrPkg, reason).Call(jen.Lit(fn.Name()), jen.Lit(param.cName))),
		))
	}
	return out
}

// argument returns C's argument for a parameter, and the statements that
// prepare it.
func (p *pkg) argument(param param) (before []jen.Code, arg jen.Code) {
	name := jen.Id(param.name)
	switch {
	case param.out:
		before = []jen.Code{jen.Var().Id(param.name).Add(p.goType(param.t.Elem))}
		return before, jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Add(name))
	case param.t.Kind == api.Pointer && param.t.Elem.IsVoid():
		return nil, jen.Parens(jen.Op("*").Qual("C", "uint8_t")).Call(name)
	case param.text && !param.mayNil:
		c := param.copied()
		before = []jen.Code{
			jen.Id(c).Op(":=").Qual("unsafe", "Pointer").Call(jen.Qual("C", "CString").Call(name)),
			jen.Defer().Qual("C", "free").Call(jen.Id(c)),
		}
		return before, jen.Id(c)
	case param.text:
		c := param.copied()
		before = []jen.Code{
			jen.Var().Id(c).Qual("unsafe", "Pointer"),
			jen.If(name.Clone().Op("!=").Lit("")).Block(
				jen.Id(c).Op("=").Qual("unsafe", "Pointer").Call(jen.Qual("C", "CString").Call(name)),
				jen.Defer().Qual("C", "free").Call(jen.Id(c)),
			),
		}
		return before, jen.Id(c)
	case p.wire(param.t) == "_Bool":
		c := jen.Id(param.copied())
		before = []jen.Code{
			jen.Var().Add(c).Qual("C", "uint64_t"),
			jen.If(name).Block(c.Clone().Op("=").Lit(1)),
		}
		return before, c
	case p.isRecord(param.t):
		return nil, jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Add(name))
	case isFloat(param.t):
		return nil, jen.Qual("C", "uint64_t").Call(jen.Qual("math", "Float64bits").Call(jen.Float64().Call(name)))
	case param.t.Kind != api.Pointer:
		return nil, jen.Qual("C", "uint64_t").Call(name)
	case p.goType(param.t).GoString() == "unsafe.Pointer":
		return nil, name
	}
	return nil, jen.Qual("unsafe", "Pointer").Call(name)
}

// readers maps a class to the function of cerr that decodes its results.
var readers = map[conventions.Class]string{
	conventions.Status: "Status", conventions.Code: "Code", conventions.EAI: "Addrinfo",
	conventions.Count: "Count", conventions.Negative: "Count", conventions.Minus: "Status",
	conventions.Poll: "Poll", conventions.Wait: "Wait",
}

// decoded returns the call of cerr that decodes fn's result.
func (p *pkg) decoded(fn *function) jen.Code {
	number := jen.Int64().Call(jen.Id("r").Dot("value"))
	code := jen.Int32().Call(jen.Id("r").Dot("error"))
	switch fn.Class {
	case conventions.Rereg:
		return jen.Qual(cerrPkg, "Rereg").Call(number, code)
	case conventions.Poll, conventions.Wait:
		return jen.Qual(cerrPkg, readers[fn.Class]).Call(jen.Lit(fn.Name()), number, jen.Int().Call(jen.Id(fn.limit())), code)
	}
	return jen.Qual(cerrPkg, readers[fn.Class]).Call(jen.Lit(fn.Name()), number, code)
}

// onFailure returns the statement that ends the stub if the call has failed.
func (p *pkg) onFailure(fn *function) jen.Code {
	return jen.If(jen.Err().Op(":=").Add(p.decoded(fn)), jen.Err().Op("!=").Nil()).Block(p.fails(fn, jen.Err()))
}

// finish returns the statements that return C's result as Go's. outs are the
// results that C has stored through pointers.
func (p *pkg) finish(fn *function, outs []jen.Code) []jen.Code {
	value := jen.Id("r").Dot("value")
	success := func(result jen.Code) jen.Code {
		return jen.Return(slices.Concat([]jen.Code{result}, outs, []jen.Code{jen.Nil()})...)
	}
	switch fn.Class {
	case conventions.Status, conventions.Code, conventions.Minus, conventions.EAI, conventions.Rereg:
		if len(outs) == 0 {
			return []jen.Code{jen.Return(p.decoded(fn))}
		}
		return []jen.Code{p.onFailure(fn), jen.Return(append(outs, jen.Nil())...)}
	case conventions.Count, conventions.Negative, conventions.Poll, conventions.Wait:
		return []jen.Code{p.onFailure(fn), success(jen.Int().Call(value))}
	case conventions.Pointer, conventions.List:
		failed := value.Clone().Op("==").Nil()
		if fn.Class == conventions.List {
			failed.Op("&&").Id("r").Dot("error").Op("!=").Lit(0)
		}
		null := jen.Qual(cerrPkg, "Null").Call(jen.Lit(fn.Name()), jen.Int32().Call(jen.Id("r").Dot("error")))
		return []jen.Code{
			jen.If(failed).Block(p.fails(fn, null)),
			success(p.pointer(fn, value)),
		}
	case conventions.Interior:
		return []jen.Code{success(p.pointer(fn, value))}
	case conventions.String:
		return []jen.Code{success(jen.Qual("C", "GoString").Call(jen.Parens(jen.Op("*").Qual("C", "char")).Call(value)))}
	case conventions.Value:
		switch {
		case p.isRecord(fn.Type.Elem):
			return []jen.Code{jen.Id("_").Op("=").Id("r"), success(jen.Id("result"))}
		case layout.IsFloat(fn.Type.Elem.Name):
			bits := jen.Qual("math", "Float64frombits").Call(jen.Uint64().Call(value))
			return []jen.Code{success(p.goType(fn.Type.Elem).Call(bits))}
		}
		if fn.Type.Elem.Name == "_Bool" {
			return []jen.Code{success(value.Clone().Op("!=").Lit(0))}
		}
		return []jen.Code{success(p.goType(fn.Type.Elem).Call(value))}
	}
	if fn.call() == own { // r is not used elsewhere
		return []jen.Code{jen.Id("_").Op("=").Id("r"), jen.Return(append(outs, jen.Nil())...)}
	}
	return []jen.Code{jen.Return(append(outs, jen.Nil())...)}
}

func (p *pkg) pointer(fn *function, value *jen.Statement) jen.Code {
	t := p.goType(fn.Type.Elem)
	if t.GoString() == "unsafe.Pointer" {
		return value
	}
	return jen.Parens(t).Call(value)
}
