// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"go/token"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// goName returns a C name in Go's mixed caps: send_wr becomes SendWr.
func goName(c string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(c, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// trimmed returns a C name without its library's prefix.
func (p *pkg) trimmed(c string) string {
	c = strings.TrimLeft(c, "_")
	for _, prefix := range p.library.Prefixes {
		if rest, ok := strings.CutPrefix(c, prefix); ok {
			return rest
		}
	}
	return c
}

// names reports whether a C name has a prefix of the library.
func (p *pkg) names(c string) bool {
	c = strings.TrimLeft(c, "_")
	return slices.ContainsFunc(p.library.Prefixes, func(prefix string) bool { return strings.HasPrefix(c, prefix) })
}

// typeName returns the Go name of a struct, union or enum tag that is
// declared in p.
func (p *pkg) typeName(tag string) string {
	if name := p.Known.Names["struct "+tag]; name != "" {
		return name
	}
	return goName(p.trimmed(tag))
}

func (p *pkg) funcName(c string) string {
	if name := p.Known.Names["func "+c]; name != "" {
		return name
	}
	return goName(p.trimmed(c))
}

// enumeratorName returns the Go name of an enumerator: C's, if programs can use
// it. Leading underscores are moved to the end, because an enum may have both
// FOO_MAX and __FOO_MAX.
func enumeratorName(c string) string {
	name := strings.TrimLeft(c, "_")
	if !exported.MatchString(name) {
		name = goName(c)
	}
	return name + c[:len(c)-len(strings.TrimLeft(c, "_"))]
}

// local returns the Go name of a parameter.
func local(c string) string {
	name := goName(c)
	if name == "" || name[0] <= '9' { // as for _ and _1
		name = "arg" + name
	}
	name = strings.ToLower(name[:1]) + name[1:]
	switch {
	case name == "type":
		return "typ"
	case token.IsKeyword(name):
		return name + "_"
	}
	return name
}

// ConstName returns the Go name of a macro.
func ConstName(c string) string { return constName(c) }

// WholeName returns a C name in Go's mixed caps, with the library's prefix.
func WholeName(c string) string { return goName(c) }

// IsUsable reports whether Go programs can use a name of a package.
func IsUsable(name string) bool { return exported.MatchString(name) }

// constName returns the Go name of a macro.
func constName(c string) string { return strings.TrimLeft(c, "_") }

// Prototype returns the C declaration of a function.
func Prototype(f *api.Function) string { return prototype(f, f.ParamNames()) }

// prototype returns the C declaration of f, with the given names of its
// parameters.
func prototype(f *api.Function, names []string) string {
	var params []string
	for i, t := range f.Type.Params {
		params = append(params, t.C(names[i]))
	}
	if f.Type.Variadic {
		params = append(params, "...")
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return f.Type.Elem.C(f.Name + "(" + strings.Join(params, ", ") + ")")
}

// GoName returns the Go name of a function or type of a table's first library.
func GoName(known *conventions.Table, c string) string {
	p := pkg{Input: Input{Known: known}, library: known.Own()[0]}
	return goName(p.trimmed(c))
}
