// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// field is a member of a struct at any depth. As in C, the members of an
// anonymous struct or union belong to the struct around it.
type field struct {
	path      string // path in the outermost struct, such as "wr.rdma.rkey"
	offset    int64  // from the start of the outermost struct
	t         *api.Type
	aggregate string // "struct" or "union", if the member is nested; otherwise ""
	bits      *api.Bits
	union     bool // in an anonymous union, so that it is no field in Go
	rules     api.Rules
}

// fields returns the members of s. If several members have the same path, it
// returns the first.
func fields(s *api.Struct) []field {
	var out []field
	seen := map[string]bool{}
	var walk func(prefix string, base int64, inUnion bool, list []*api.Member)
	walk = func(prefix string, base int64, inUnion bool, list []*api.Member) {
		for _, m := range list {
			if m.Name == "" {
				walk(prefix, base+m.Offset, inUnion || m.Aggregate == "union", m.Members)
				continue
			}
			if path := prefix + m.Name; !seen[path] {
				seen[path] = true
				out = append(out, field{path, base + m.Offset, m.Type, m.Aggregate, bitsOf(m, base), inUnion, m.Rules})
			}
			walk(prefix+m.Name+".", base+m.Offset, false, m.Members)
		}
	}
	walk("", 0, strings.HasPrefix(s.Name, "union "), s.Members)
	return out
}

// bitsOf returns the place of a bit-field in the outermost struct, or nil for
// another member. base is the offset of the struct or union around the member,
// in bytes.
func bitsOf(m *api.Member, base int64) *api.Bits {
	if m.Bits == nil {
		return nil
	}
	return &api.Bits{At: base*8 + m.Bits.At, Width: m.Bits.Width}
}

func index(list []field) map[string]field {
	byPath := map[string]field{}
	for _, f := range list {
		byPath[f.path] = f
	}
	return byPath
}

// text returns the member's C type.
func (f field) text() string {
	if f.t == nil {
		return f.aggregate
	}
	if f.bits != nil {
		return fmt.Sprintf("%s : %d", f.t.C(""), f.bits.Width)
	}
	return f.t.C("")
}

// at returns a text with the offset of f or, for a bit-field, the number of its
// first bit.
func (f field) at() string {
	if f.bits != nil {
		return fmt.Sprintf("bit %d", f.bits.At)
	}
	return fmt.Sprintf("offset %d", f.offset)
}

func (f field) String() string { return f.text() + " at " + f.at() }

// reserved reports whether f only reserves space, according to its name.
func (f field) reserved() bool { return strings.Contains(f.path, "reserved") }

func (f field) sameForm(g field) bool {
	if f.t == nil || g.t == nil {
		return f.t == nil && g.t == nil && f.aggregate == g.aggregate
	}
	if f.bits != nil || g.bits != nil {
		return f.bits != nil && g.bits != nil && f.bits.Width == g.bits.Width && sameStored(f.t, g.t)
	}
	return sameStored(f.t, g.t)
}

// members compares the members of a struct that is complete in both snapshots.
func (c *comparer) members(name string, old, now []field) {
	oldByPath, nowByPath := index(old), index(now)
	gone, fresh := without(old, nowByPath), without(now, oldByPath)
	for _, f := range old {
		if g, ok := nowByPath[f.path]; ok {
			c.member(name, f, g)
		}
	}
	renamed := renames(gone, fresh)
	for _, f := range gone {
		change := Change{Kind: MemberRemoved, Name: f.path, Of: name, From: f.String(), Why: "its place means something else, or nothing"}
		bad := abi
		if g, ok := renamed[f.path]; ok {
			change.Kind, change.From, change.To, change.Why = MemberRenamed, f.path, g, "its place and form are the same"
			bad = source
		} else if f.reserved() {
			change.Why, bad = "it only held space", source
		}
		c.add(bad, change)
	}
	renamed = renames(fresh, gone)
	for _, g := range fresh {
		if _, ok := renamed[g.path]; !ok {
			c.add(compatible, Change{Kind: MemberAdded, Name: g.path, Of: name, To: g.String()})
		}
	}
}

func (c *comparer) member(name string, f, g field) {
	bad, why := abi, "old programs look for it elsewhere"
	if f.reserved() {
		bad, why = compatible, "it only holds space"
	}
	if f.at() != g.at() {
		c.add(bad, Change{Kind: MemberMoved, Name: f.path, Of: name, From: f.at(), To: g.at(), Why: why})
	}
	c.rules(name, f.path, f.rules, g.rules)
	if f.union != g.union {
		c.add(source, Change{
			Kind: MemberUnion, Name: f.path, Of: name, From: beside(f), To: beside(g),
			Why: "C programs write it as before; in Go, a field is a method now, or a method a field",
		})
	}
	if f.text() == g.text() {
		return
	}
	change := Change{Kind: MemberTypeChanged, Name: f.path, Of: name, From: f.text(), To: g.text(), Why: why}
	switch {
	case f.reserved():
	case f.sameForm(g):
		bad, change.Why = source, "every value is stored as before"
	default:
		change.Why = "old programs store it in another way"
	}
	c.add(bad, change)
}

// beside says whether a member shares its place with others.
func beside(f field) string {
	if f.union {
		return "in a union"
	}
	return "alone"
}

// without returns the fields of list that others does not have.
func without(list []field, others map[string]field) []field {
	var out []field
	for _, f := range list {
		if _, ok := others[f.path]; !ok {
			out = append(out, f)
		}
	}
	return out
}

// renames returns the fields that were only renamed. It maps the path of a
// field in list to that of the field in others with the same place and form, if
// each list has only one field with these.
func renames(list, others []field) map[string]string {
	partners := func(f field, in []field) (found []field) {
		for _, g := range in {
			if f.at() == g.at() && f.sameForm(g) {
				found = append(found, g)
			}
		}
		return found
	}
	out := map[string]string{}
	for _, f := range list {
		if found := partners(f, others); len(found) == 1 && len(partners(found[0], list)) == 1 {
			out[f.path] = found[0].path
		}
	}
	return out
}
