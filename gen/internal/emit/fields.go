// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// maxGoAlign is the largest alignment that a Go type has.
const maxGoAlign = 8

// plain reports whether Go's own rules place all members of a struct or union
// at C's offsets, as they do for all structs of rdma-core. Another struct gets
// methods that read and write the memory at C's offsets.
func (p *pkg) plain(kind string, members []*api.Member, size layout.Size) bool {
	if size.Align > maxGoAlign {
		return false
	}
	for _, m := range members {
		anonymous := m.Name == "" && (kind == "union" || m.Aggregate == "struct")
		if m.Bits != nil || anonymous || m.Rules != (api.Rules{}) && m.Type != nil {
			return false
		}
		if m.IsFlexible() && (kind == "union" || m != members[len(members)-1]) {
			return false
		}
		if m.Type == nil {
			inner := p.size(m)
			if !p.plain(m.Aggregate, m.Members, inner) || m.Offset%inner.Align != 0 || inner.Align > size.Align {
				return false
			}
		}
		if m.Type != nil && !m.IsFlexible() && (m.Offset%p.goAlign(m.Type) != 0 || p.goAlign(m.Type) > size.Align) {
			return false
		}
	}
	return true
}

// goAlign returns the alignment of the Go type for a C type.
func (p *pkg) goAlign(t *api.Type) int64 {
	for t.Kind == api.Array {
		t = t.Elem
	}
	size, err := p.engine.Of(t)
	if err != nil {
		return 1 // the code that needs its size reports the error
	}
	return min(size.Align, maxGoAlign)
}

// leaf is a named member of a struct or union, or of an anonymous struct or
// union in it.
type leaf struct {
	*api.Member
	offset int64 // from the start of the enclosing struct or union that has a name
	union  bool  // whether it shares its memory with other members
}

// leaves returns the named members, and the named members of anonymous structs
// and unions.
func leaves(members []*api.Member, base int64, union bool) []leaf {
	var out []leaf
	for _, m := range members {
		switch {
		case m.Name != "":
			out = append(out, leaf{m, base + m.Offset, union})
		case m.Bits == nil:
			out = append(out, leaves(m.Members, base+m.Offset, union || m.Aggregate == "union")...)
		}
	}
	return out
}

// memory writes a struct or union that is not plain. A member becomes a field
// if Go places it at C's offset, and gets methods if not.
func (p *pkg) memory(f *jen.File, name string, in scope, kind string, members []*api.Member, size layout.Size) {
	if size.Align > maxGoAlign {
		f.Commentf("C aligns it to %d bytes, which Go does not: memory for C comes from a function that does.", size.Align)
	}
	all := leaves(members, 0, kind == "union")
	var later []func()
	var at int64
	f.Type().Id(name).StructFunc(func(g *jen.Group) {
		g.Id("_").Index(jen.Lit(0)).Id(units[min(size.Align, maxGoAlign)]).Comment("for the alignment")
		for _, l := range all {
			inner := jen.Empty()
			if l.Type == nil {
				inner = jen.Id(name + goName(l.Name))
				later = append(later, p.innerType(f, name, in, l.Member))
			} else if l.Bits == nil && !l.IsFlexible() {
				inner = p.goType(l.Type)
			}
			if !p.isField(l, size) {
				later = append(later, func() { p.access(f, name, in, l, size) })
				continue
			}
			if l.offset > at {
				g.Id("_").Index(jen.Lit(int(l.offset - at))).Byte()
			}
			at = l.offset + p.size(l.Member).Size
			g.Id(goName(l.Name)).Add(inner).Comment(l.Name + p.sinceClause(p.member(in, l.Member).release))
		}
		if size.Size > at {
			g.Id("_").Index(jen.Lit(int(size.Size - at))).Byte()
		}
	})
	for _, write := range later {
		write()
	}
}

// units maps an alignment to an integer type that has it.
var units = map[int64]string{1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}

// isAligned reports whether the member always has the alignment that Go
// requires of a pointer to it. size is that of the struct.
func (p *pkg) isAligned(l leaf, size layout.Size) bool {
	align := min(p.size(l.Member).Align, maxGoAlign)
	if l.Type != nil {
		align = p.goAlign(l.Type)
	}
	return l.Bits == nil && l.offset%align == 0 && align <= min(size.Align, maxGoAlign)
}

// isField reports whether a leaf is a field of the Go struct.
func (p *pkg) isField(l leaf, size layout.Size) bool {
	return !l.union && !l.IsFlexible() && p.isAligned(l, size)
}

// innerType returns a function that writes the type of a member that is a
// nested struct or union.
func (p *pkg) innerType(f *jen.File, name string, in scope, m *api.Member) func() {
	return func() {
		inner := name + goName(m.Name)
		f.Commentf("%s is the type of member %s of %s.", inner, m.Name, name)
		p.aggregate(f, inner, p.member(in, m), m.Aggregate, m.Members, p.size(m))
	}
}

// access writes the methods of a member that is no field.
func (p *pkg) access(f *jen.File, name string, in scope, l leaf, size layout.Size) {
	method := goName(l.Name)
	since := p.sinceSentence(p.member(in, l.Member).release)
	receiver := func() *jen.Statement { return f.Func().Params(jen.Id("s").Op("*").Id(name)) }
	start := jen.Qual("unsafe", "Pointer").Call(jen.Id("s"))
	place := jen.Qual("unsafe", "Add").Call(start.Clone(), jen.Lit(int(l.offset)))
	switch {
	case l.Bits != nil:
		p.bitMethods(f, name, l, since)
	case l.IsFlexible():
		elem := jen.Op("*").Add(p.goType(l.Type.Elem))
		f.Commentf("%s returns where the elements of member %s begin.%s", method, l.Name, since)
		receiver().Id(method).Params().Add(elem.Clone()).Block(jen.Return(jen.Parens(elem).Parens(place)))
	case p.isAligned(l, size):
		t := jen.Op("*").Add(p.leafType(name, l))
		f.Commentf("%s returns the member %s.%s", method, l.Name, since)
		receiver().Id(method).Params().Add(t.Clone()).Block(jen.Return(jen.Parens(t).Parens(place)))
	default:
		t := p.leafType(name, l)
		bytes := jen.Op("*").Index(jen.Lit(int(p.size(l.Member).Size))).Byte()
		f.Commentf("%s returns a copy of the member %s, which C does not align.%s", method, l.Name, since)
		receiver().Id(method).Params().Params(jen.Id("v").Add(t.Clone())).Block(
			jen.Op("*").Parens(bytes.Clone()).Parens(jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Id("v"))).Op("=").
				Op("*").Parens(bytes.Clone()).Parens(place.Clone()),
			jen.Return(jen.Id("v")),
		)
		f.Commentf("Set%s sets the member %s.", method, l.Name)
		receiver().Id("Set" + method).Params(jen.Id("v").Add(t.Clone())).Block(
			jen.Op("*").Parens(bytes.Clone()).Parens(place.Clone()).Op("=").
				Op("*").Parens(bytes.Clone()).Parens(jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Id("v"))),
		)
	}
}

func (p *pkg) leafType(name string, l leaf) *jen.Statement {
	if l.Type == nil {
		return jen.Id(name + goName(l.Name))
	}
	return p.goType(l.Type)
}

// bitMethods writes the methods of a bit-field.
func (p *pkg) bitMethods(f *jen.File, name string, l leaf, since string) {
	method, t := goName(l.Name), p.goType(l.Type)
	at := 8*(l.offset-l.Offset) + l.Bits.At
	first, last := at/8, (at+l.Bits.Width-1)/8
	memory := jen.Qual("unsafe", "Slice").Call(
		jen.Parens(jen.Op("*").Byte()).Parens(jen.Qual("unsafe", "Add").Call(jen.Qual("unsafe", "Pointer").Call(jen.Id("s")), jen.Lit(int(first)))),
		jen.Lit(int(last-first+1)))
	get := jen.Id("bits").Call(memory.Clone(), jen.Lit(int(at%8)), jen.Lit(int(l.Bits.Width)))
	var result, value jen.Code
	switch goType := p.goType(l.Type).GoString(); {
	case goType == "bool":
		result = get.Op("!=").Lit(0)
		value = jen.Id("word")
	case p.isSigned(l.Type):
		shift := jen.Lit(int(64 - l.Bits.Width))
		result = t.Clone().Call(jen.Int64().Call(get.Op("<<").Add(shift)).Op(">>").Add(shift))
		value = jen.Uint64().Call(jen.Id("v"))
	default:
		result = t.Clone().Call(get)
		value = jen.Uint64().Call(jen.Id("v"))
	}
	f.Commentf("%s returns the bit-field %s, of %s.%s", method, l.Name, plural(l.Bits.Width, "bit"), since)
	f.Func().Params(jen.Id("s").Op("*").Id(name)).Id(method).Params().Add(t.Clone()).Block(jen.Return(result))
	f.Commentf("Set%s sets the bit-field %s. Bits that it has no room for are lost, as in C.", method, l.Name)
	f.Func().Params(jen.Id("s").Op("*").Id(name)).Id("Set" + method).Params(jen.Id("v").Add(t.Clone())).BlockFunc(func(g *jen.Group) {
		if t.GoString() == "bool" {
			g.Var().Id("word").Uint64()
			g.If(jen.Id("v")).Block(jen.Id("word").Op("=").Lit(1))
		}
		g.Id("setBits").Call(memory.Clone(), jen.Lit(int(at%8)), jen.Lit(int(l.Bits.Width)), value)
	})
}

func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// isSigned reports whether the Go type for an integer or an enum is signed.
func (p *pkg) isSigned(t *api.Type) bool {
	if tag, ok := t.Tag("enum"); ok {
		for _, e := range p.API.Enums {
			if e.Name == tag {
				return e.Signed
			}
		}
	}
	return strings.HasPrefix(scalars[t.Name].goType, "int")
}

// hasBits reports whether the package has a bit-field.
func (p *pkg) hasBits() bool {
	for _, s := range p.structs {
		if membersHaveBits(s.Members) {
			return true
		}
	}
	return false
}

func membersHaveBits(members []*api.Member) bool {
	for _, m := range members {
		if m.Bits != nil && m.Name != "" || membersHaveBits(m.Members) {
			return true
		}
	}
	return false
}
