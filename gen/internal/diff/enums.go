// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"cmp"
	"strconv"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// enumerator is an enumerator with its enum.
type enumerator struct {
	api.Enumerator
	enum string // such as "enum ibv_mtu"; "enum" if the enum has no tag
}

func (c *comparer) enums() {
	pairs(tagged(c.from), tagged(c.to), enumName, func(name string, a, b *api.Enum) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: EnumAdded, Name: name, To: b.Header})
		case b == nil:
			c.add(source, Change{Kind: EnumRemoved, Name: name, From: a.Header})
		default:
			c.header(name, a.Header, b.Header)
			c.spelling(name, api.Spelled(name, a.Bare), api.Spelled(name, b.Bare))
			if from, to := cmp.Or(a.Size, 4), cmp.Or(b.Size, 4); from != to {
				c.add(abi, Change{Kind: EnumSize, Name: name, From: bytes(from), To: bytes(to), Why: "programs store and pass it in another way"})
			}
			if a.Signed != b.Signed {
				c.add(source, Change{
					Kind: EnumSignedness, Name: name, From: signedness(a), To: signedness(b),
					Why: "it compares in another way, but has the same bits",
				})
			}
		}
	})
	pairs(enumerators(c.from), enumerators(c.to), func(v *enumerator) string { return v.Name },
		func(name string, a, b *enumerator) {
			switch {
			case a == nil:
				c.add(compatible, Change{Kind: EnumeratorAdded, Name: name, Of: b.enum, To: value(b.Value)})
			case b == nil:
				c.add(source, Change{Kind: EnumeratorRemoved, Name: name, Of: a.enum, From: value(a.Value)})
			default:
				if a.Value != b.Value {
					c.add(abi, Change{
						Kind: EnumeratorChanged, Name: name, Of: b.enum, From: value(a.Value), To: value(b.Value),
						Why: "the old value is compiled into programs",
					})
				}
				if a.enum != b.enum {
					c.add(source, Change{Kind: EnumeratorMoved, Name: name, Of: b.enum, From: a.enum, To: b.enum})
				}
			}
		})
}

func tagged(a *api.API) []*api.Enum {
	var out []*api.Enum
	for _, e := range a.Enums {
		if e.Name != "" {
			out = append(out, e)
		}
	}
	return out
}

func enumerators(a *api.API) []*enumerator {
	var out []*enumerator
	for _, e := range a.Enums {
		for _, v := range e.Values {
			out = append(out, &enumerator{v, enumName(e)})
		}
	}
	return out
}

func enumName(e *api.Enum) string {
	if e.Name == "" {
		return "enum"
	}
	return "enum " + e.Name
}

func signedness(e *api.Enum) string {
	if e.Signed {
		return "signed"
	}
	return "unsigned"
}

func value(v int64) string { return strconv.FormatInt(v, 10) }
