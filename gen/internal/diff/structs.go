// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

func (c *comparer) structs() {
	pairs(c.from.Structs, c.to.Structs, func(s *api.Struct) string { return s.Name }, func(name string, a, b *api.Struct) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: StructAdded, Name: name, To: extent(b)})
		case b == nil:
			c.add(source, Change{Kind: StructRemoved, Name: name, From: extent(a)})
		default:
			c.header(name, a.Header, b.Header)
			c.spelling(name, a.C(), b.C())
			c.structure(name, a, b)
		}
	})
}

func (c *comparer) structure(name string, a, b *api.Struct) {
	change := Change{Name: name, From: extent(a), To: extent(b)}
	switch {
	case opaque(a) && opaque(b):
		return
	case opaque(a):
		change.Kind = NowComplete
		c.add(compatible, change)
		return
	case opaque(b):
		change.Kind, change.Why = NowOpaque, "nothing holds its layout in place any more"
		c.add(abi, change)
		return
	}
	if a.Align != b.Align {
		c.add(abi, Change{
			Kind: AlignmentChanged, Name: name, From: bytes(a.Align), To: bytes(b.Align),
			Why: "programs place it, and what follows it, in another way",
		})
	}
	c.rules("", name, a.Rules, b.Rules)
	old, now := fields(a), fields(b)
	switch change.From, change.To = bytes(a.Size), bytes(b.Size); {
	case grownAtFront(a, b, old, now):
		change.Kind = StructGrownFront
		user := c.user(name)
		change.Why = "programs find it from its end only"
		if user != "" {
			change.Why = fmt.Sprintf("all members moved, and %s refers to it", user)
		}
		c.add(abi.when(user != ""), change)
		old = shifted(old, b.Size-a.Size)
	case b.Size > a.Size:
		change.Kind = StructGrown
		holder, bad := c.holder(name), compatible
		switch {
		case holder != "":
			change.Why, bad = holder, abi
		case hasCompMask(b):
			change.Why = "it has a comp_mask"
		default:
			change.Why, bad = "it has no comp_mask: safe only if the library allocates it or is told its size", undecided
		}
		c.add(bad, change)
	case b.Size < a.Size:
		change.Kind, change.Why = StructShrunk, "the library may write where old programs expect it, or leave members unset"
		c.add(abi, change)
	}
	c.members(name, old, now)
}

// rules compares what the headers say about the layout of the struct or member
// with a name. of is the member's struct, or "". Members that move because of
// the rules are reported as changes of their own.
func (c *comparer) rules(of, name string, a, b api.Rules) {
	if from, to := rulesText(a), rulesText(b); from != to {
		c.add(compatible, Change{
			Kind: RulesChanged, Name: name, Of: of, From: from, To: to, Why: "if members move by it, that is listed too",
		})
	}
}

// rulesText returns the rules in the form of attributes. A pragma has the same
// form as an attribute with the same effect.
func rulesText(r api.Rules) string {
	var words []string
	switch r.Pack {
	case 0:
	case 1:
		words = append(words, "packed")
	default:
		words = append(words, fmt.Sprintf("pack(%d)", r.Pack))
	}
	if r.Aligned > 0 {
		words = append(words, fmt.Sprintf("aligned(%d)", r.Aligned))
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func opaque(s *api.Struct) bool { return len(s.Members) == 0 }

func extent(s *api.Struct) string {
	if opaque(s) {
		return "opaque"
	}
	return fmt.Sprintf("%s, align %d", bytes(s.Size), s.Align)
}

func bytes(n int64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func hasCompMask(s *api.Struct) bool {
	for _, f := range fields(s) {
		if f.path == "comp_mask" {
			return true
		}
	}
	return false
}

// grownAtFront reports whether b is a with additional members at its front
// only. The old members must keep their types and their distances from the end.
// The last member must still be the last one, and a struct: programs find the
// other members from its address.
func grownAtFront(a, b *api.Struct, old, now []field) bool {
	grown := b.Size - a.Size
	if grown <= 0 || a.Align != b.Align {
		return false
	}
	first, last := a.Members[len(a.Members)-1], b.Members[len(b.Members)-1]
	if first.Name != last.Name || last.Type == nil {
		return false
	}
	if _, isStruct := last.Type.Tag("struct"); !isStruct {
		return false
	}
	byPath := index(now)
	for _, f := range old {
		g, ok := byPath[f.path]
		if !ok || g.offset != f.offset+grown || g.text() != f.text() {
			return false
		}
	}
	return true
}

func shifted(list []field, by int64) []field {
	out := make([]field, len(list))
	for i, f := range list {
		f.offset += by
		if f.bits != nil {
			f.bits = &api.Bits{At: f.bits.At + by*8, Width: f.bits.Width}
		}
		out[i] = f
	}
	return out
}
