// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"github.com/verbena-go/verbena/gen/internal/api"
)

func (c *comparer) typedefs() {
	pairs(c.from.Typedefs, c.to.Typedefs, func(t *api.Typedef) string { return t.Name }, func(name string, a, b *api.Typedef) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: TypedefAdded, Name: name, To: b.Type.C("")})
		case b == nil:
			c.add(source, Change{Kind: TypedefRemoved, Name: name, From: a.Type.C("")})
		default:
			c.header(name, a.Header, b.Header)
			if from, to := a.Type.C(""), b.Type.C(""); from != to {
				change := Change{Kind: TypedefChanged, Name: name, From: from, To: to, Why: "programs store and pass it in another way"}
				bad := abi
				if samePassed(a.Type, b.Type) {
					change.Why, bad = "every value is passed as before", source
				}
				c.add(bad, change)
			}
		}
	})
}
