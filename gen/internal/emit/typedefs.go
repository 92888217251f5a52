// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// isSameName reports whether a typedef has the Go name of the struct, union or
// enum that it stands for.
func (p *pkg) isSameName(t *api.Typedef) bool {
	_, tag, ok := strings.Cut(t.Type.Name, " ")
	return ok && t.Type.Kind == api.Named && p.typeName(tag) == p.typeName(t.Name)
}

// typedefsFile writes an alias for each typedef: its type and the one that it
// stands for are the same in C, too.
func (p *pkg) typedefsFile(f *jen.File) {
	for _, t := range p.typedefs {
		what := jen.Qual("unsafe", "Pointer") // to a function
		switch {
		case t.Type.IsVoid():
			what = jen.Struct()
		case t.Type.Kind != api.Func:
			what = p.goType(t.Type)
		}
		f.Commentf("%s is the typedef %s, which stands for %s.%s", p.typeName(t.Name), t.Name, t.Type.C(""), p.sinceSentence(p.Since.Release("typedef", t.Name)))
		f.Type().Id(p.typeName(t.Name)).Op("=").Add(what)
	}
}
