// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// checkArches rejects a struct or union for which the Go code would be wrong on
// an architecture. Go code has the offsets and sizes of amd64. It is the same
// for all architectures, except that Go itself places what follows the field of
// a libc type whose size depends on the architecture.
func (p *pkg) checkArches(s *api.Struct) {
	kind := s.Keyword()
	for _, arch := range layout.Arches {
		if arch.SameRules(layout.AMD64) {
			continue
		}
		engine, copied := p.laidOut(arch)
		for _, other := range copied.Structs {
			if other.Name != s.Name || engine.Apply(other) != nil { // scan has reported the error
				continue
			}
			a := record{kind, s.Members, layout.Size{Size: s.Size, Align: s.Align}, p.engine}
			b := record{kind, other.Members, layout.Size{Size: other.Size, Align: other.Align}, engine}
			if why := p.differs(a, b, s.C()); why != "" {
				p.fail("%s on %s, for which the Go code would be wrong; to bind the name alone, say in the conventions: struct %s opaque=\"why\"",
					why, arch.Name, p.at.Of.Name)
				return
			}
		}
	}
}

// laidOut returns an engine for an architecture, and the structs for which it
// computes the layouts.
func (p *pkg) laidOut(arch layout.Arch) (*layout.Engine, *api.API) {
	if p.arches == nil {
		p.arches = map[string]*onArch{}
	}
	on := p.arches[arch.Name]
	if on == nil {
		on = &onArch{api: p.API.CopyLayouts()}
		on.engine = layout.New(on.api, arch)
		p.arches[arch.Name] = on
	}
	return on.engine, on.api
}

// onArch is the snapshot as it is on one architecture.
type onArch struct {
	api    *api.API
	engine *layout.Engine
}

// record is a struct or union with its layout on one architecture.
type record struct {
	kind    string
	members []*api.Member
	size    layout.Size
	engine  *layout.Engine
}

// differs returns what is different on the architecture of b, if the Go code
// that is made from a would be wrong there, and otherwise "". path is the name
// of the struct or union in C.
func (p *pkg) differs(a, b record, path string) string {
	previous := path
	plain := a.kind == "struct" && p.plain(a.kind, a.members, a.size)
	var moved int64 // by how much the last field ends later than on amd64
	for i, m := range a.members {
		o := b.members[i]
		name := path + "." + m.Name
		if m.Name == "" {
			name = "the unnamed member after " + previous
		}
		previous = name
		inner, other, err := sizes(a, b, m, o)
		if err != nil {
			p.fail("%v", err)
			return ""
		}
		// Go places fields, but no other members.
		field := plain && !m.IsFlexible() || m.Name != "" && p.isField(leaf{m, m.Offset, a.kind == "union"}, a.size)
		switch {
		case m.Bits != nil && m.Name == "":
			continue
		case m.Bits != nil && *m.Bits != *o.Bits:
			return fmt.Sprintf("%s is at bit %d on amd64 and at bit %d", name, m.Bits.At, o.Bits.At)
		case field && m.Aggregate == "union" && o.Offset != m.Offset, field && o.Offset != m.Offset+moved, !field && o.Offset != m.Offset:
			return fmt.Sprintf("%s is at byte %d on amd64 and at byte %d", name, m.Offset, o.Offset)
		case !field && inner != other:
			return fmt.Sprintf("%s has %d bytes on amd64 and %d", name, inner.Size, other.Size)
		}
		if m.Type == nil {
			if why := p.differs(record{m.Aggregate, m.Members, inner, a.engine}, record{m.Aggregate, o.Members, other, b.engine}, name); why != "" {
				return why
			}
		}
		if field {
			moved = o.Offset + other.Size - (m.Offset + inner.Size)
		}
	}
	if b.size.Size != a.size.Size+moved {
		return fmt.Sprintf("%s has %d bytes on amd64 and %d", path, a.size.Size, b.size.Size)
	}
	if b.size.Align != a.size.Align {
		return fmt.Sprintf("%s is aligned to %d bytes on amd64 and to %d", path, a.size.Align, b.size.Align)
	}
	return ""
}

// sizes returns the size of a member in a and in b.
func sizes(a, b record, m, o *api.Member) (inner, other layout.Size, err error) {
	if inner, err = a.engine.OfMember(m); err != nil {
		return inner, other, err
	}
	other, err = b.engine.OfMember(o)
	return inner, other, err
}
