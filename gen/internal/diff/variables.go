// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"github.com/verbena-go/verbena/gen/internal/api"
)

func (c *comparer) variables() {
	pairs(c.from.Variables, c.to.Variables, func(v *api.Variable) string { return v.Name }, func(name string, a, b *api.Variable) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: VariableAdded, Name: name, To: b.Type.C(name)})
		case b == nil:
			c.add(abi, Change{Kind: VariableRemoved, Name: name, From: a.Type.C(name), Why: "programs that use it cannot be linked or started"})
		default:
			c.header(name, a.Header, b.Header)
			if from, to := a.Type.C(name), b.Type.C(name); from != to {
				change := Change{Kind: VariableChanged, Name: name, From: from, To: to, Why: "programs read it in another way, or have less room for it"}
				bad := abi
				if sameStored(a.Type, b.Type) {
					change.Why, bad = "its value is stored as before", source
				}
				c.add(bad, change)
			}
		}
	})
}
