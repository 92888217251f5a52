// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

func (p *pkg) enumName(e *api.Enum) string {
	if known := p.Known.Enums[e.Key()]; known != nil && known.GoName != "" {
		return known.GoName
	}
	return p.typeName(e.Name)
}

func (p *pkg) enumsFile(f *jen.File) {
	for _, e := range p.enums {
		if name := p.enumName(e); name == "-" {
			p.untyped(f, e)
		} else {
			p.enum(f, e, name)
		}
	}
	for _, a := range p.aliases {
		kind := "struct"
		for _, e := range p.API.Enums {
			if e.Name == a.Target {
				kind = "enum"
			}
		}
		f.Commentf("%s is %s %s, another name of %s.%s",
			p.typeName(a.Name), kind, a.Name, a.Target, p.sinceSentence(p.Since.Release("alias", a.Name)))
		f.Type().Id(p.typeName(a.Name)).Op("=").Add(p.tagged(a.Target))
	}
	p.typedefsFile(f)
}

func (p *pkg) untyped(f *jen.File, e *api.Enum) {
	f.Commentf("Constants of %s.%s", e.Header, p.sinceSentence(p.Since.Release("enum", e.Key())))
	f.Const().DefsFunc(func(g *jen.Group) {
		for _, v := range e.Values {
			withComment(g.Id(enumeratorName(v.Name)).Op("=").Lit(int(v.Value)), p.sinceOf(e, v))
		}
	})
}

func (p *pkg) enum(f *jen.File, e *api.Enum, name string) {
	tag := e.Name
	if tag == "" {
		tag = "of " + e.Values[0].Name + ", which C leaves without a name,"
	}
	underlying := "uint32"
	if e.Signed {
		underlying = "int32"
	}
	if e.Size == 8 {
		underlying = strings.Replace(underlying, "32", "64", 1)
	}
	known := p.Known.Enums[e.Key()]
	flags := known != nil && known.Flags
	what := "one value"
	if flags {
		what = "flags that are combined with |"
	}
	f.Commentf("%s is enum %s in %s: %s.%s", name, tag, e.Header, what, p.sinceSentence(p.Since.Release("enum", e.Key())))
	f.Type().Id(name).Id(underlying)

	f.Commentf("Values of %s.", name)
	f.Const().DefsFunc(func(g *jen.Group) {
		for _, v := range e.Values {
			text := literal(v.Value, flags)
			if e.Size == 8 && !e.Signed {
				text = fmt.Sprintf("%#x", uint64(v.Value))
			}
			withComment(g.Id(enumeratorName(v.Name)).Id(name).Op("=").Op(text), p.sinceOf(e, v))
		}
	})

	table := tableName(name)
	texts := p.Strings[e.Name]
	kind, value := "Values", "int64"
	switch {
	case flags && e.Size == 8:
		kind, value = "Flags64", "uint64"
	case flags:
		kind, value = "Flags", "uint32"
	case texts != nil:
		kind = "Texts"
	}
	f.Var().Id(table).Op("=").Qual(enumPkg, kind).Values(p.tableValues(e, name, texts, kind))

	stringDoc := "String returns the C enumerator's name."
	switch kind {
	case "Flags", "Flags64":
		stringDoc = "String returns the names of the flags, joined with |."
	case "Texts":
		stringDoc = fmt.Sprintf("String returns what %s in C returns, followed by the value if that is %q.", texts.Func, texts.Other)
	}
	f.Comment(stringDoc)
	f.Func().Params(jen.Id("v").Id(name)).Id("String").Params().String().Block(
		jen.Return(jen.Id(table).Dot("String").Call(jen.Id(value).Parens(jen.Id("v")))),
	)
	f.Commentf("Parse%s is the reverse of String. It also takes the names of the C enumerators.", name)
	f.Func().Id("Parse"+name).Params(jen.Id("s").String()).Params(jen.Id(name), jen.Error()).Block(
		jen.List(jen.Id("v"), jen.Err()).Op(":=").Id(table).Dot("Parse").Call(jen.Id("s")),
		jen.Return(jen.Id(name).Parens(jen.Id("v")), jen.Err()),
	)
	f.Comment("MarshalText gives a text from which UnmarshalText gets every value back.")
	f.Func().Params(jen.Id("v").Id(name)).Id("MarshalText").Params().Params(jen.Index().Byte(), jen.Error()).Block(
		jen.Return(jen.Id(table).Dot("MarshalText").Call(jen.Id(value).Parens(jen.Id("v")))),
	)
	f.Commentf("UnmarshalText reads what MarshalText and String give, as Parse%s does.", name)
	f.Func().Params(jen.Id("v").Op("*").Id(name)).Id("UnmarshalText").Params(jen.Id("text").Index().Byte()).Error().Block(
		jen.List(jen.Id("parsed"), jen.Err()).Op(":=").Id("Parse"+name).Call(jen.String().Parens(jen.Id("text"))),
		jen.If(jen.Err().Op("==").Nil()).Block(jen.Op("*").Id("v").Op("=").Id("parsed")),
		jen.Return(jen.Err()),
	)
}

// sinceOf returns the comment that names the release which added an enumerator,
// or "" if the enum was added by the same release.
func (p *pkg) sinceOf(e *api.Enum, v api.Enumerator) string {
	release := p.Since.Release("enumerator", v.Name)
	if release == "" || release == p.Since.Release("enum", e.Key()) {
		return ""
	}
	return "since " + p.project() + " " + release
}

func withComment(s *jen.Statement, comment string) {
	if comment != "" {
		s.Comment(comment)
	}
}

// tableName returns the name of the variable with the names of an enum's
// values.
func tableName(goName string) string { return strings.ToLower(goName[:1]) + goName[1:] + "Names" }

func literal(v int64, flags bool) string {
	if flags {
		return fmt.Sprintf("%#x", v)
	}
	return fmt.Sprint(v)
}

func (p *pkg) tableValues(e *api.Enum, name string, texts *conventions.Strings, kind string) jen.Code {
	names := func(text func(api.Enumerator) string) jen.Code {
		return jen.Index().Qual(enumPkg, "Name").ValuesFunc(func(g *jen.Group) {
			for _, v := range e.Values {
				if s := text(v); s != "" {
					value := jen.Int64().Parens(jen.Id(enumeratorName(v.Name)))
					if e.Size == 8 { // its value may not fit an int64
						value = jen.Lit(int(v.Value))
					}
					g.Line().Values(jen.Id("Value").Op(":").Add(value), jen.Id("Name").Op(":").Lit(s))
				}
			}
			g.Line()
		})
	}
	all := jen.Dict{
		jen.Id("Type"):  jen.Lit(name),
		jen.Id("Names"): names(func(v api.Enumerator) string { return v.Name }),
	}
	if known := p.Known.Enums[e.Key()]; known != nil && known.Modifier != "" {
		all[jen.Id("Modifier")] = jen.Int64().Parens(jen.Id(enumeratorName(known.Modifier)))
	}
	if e.Size == 8 && kind != "Flags64" {
		all[jen.Id("Wide")] = jen.True()
	}
	if e.Signed && kind != "Flags" && kind != "Flags64" {
		all[jen.Id("Signed")] = jen.True()
	}
	if kind != "Texts" {
		return all
	}
	return jen.Dict{
		jen.Id("Values"): jen.Qual(enumPkg, "Values").Values(all),
		jen.Id("Texts"):  names(func(v api.Enumerator) string { return texts.Text[v.Name] }),
		jen.Id("Other"):  jen.Lit(texts.Other),
	}
}

func (p *pkg) constsFile(f *jen.File) {
	if len(p.macros) == 0 {
		return
	}
	f.Comment("Macros with a value.")
	f.Const().DefsFunc(func(g *jen.Group) {
		for _, m := range p.macros {
			name := constName(m.Name)
			from := m.Header + p.sinceClause(p.Since.Release("macro", m.Name))
			switch {
			case m.Enumerator != "":
				g.Id(name).Op("=").Add(p.enumerator(m.Enumerator)).Comment(from)
			case m.Type == "string" || m.Text != "":
				g.Id(name).Op("=").Op(m.Text).Comment(from)
			case m.Type == "pointer" && m.Value >= 0:
				g.Id(name).Op("=").Id("uintptr").Call(jen.Lit(int(m.Value))).Comment(from + ", an address")
			case m.Type == "pointer":
				g.Id(name).Op("=").Op("^").Id("uintptr").Call(jen.Lit(int(^m.Value))).Comment(from + ", an address")
			case m.Type == "unsigned long long" || m.Type == "unsigned long":
				g.Id(name).Op("=").Op(fmt.Sprintf("%#x", uint64(m.Value))).Comment(from)
			default:
				g.Id(name).Op("=").Op(fmt.Sprintf("%#x", m.Value)).Comment(from)
			}
		}
	})
}
