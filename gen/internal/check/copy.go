// SPDX-License-Identifier: Apache-2.0

package check

import "github.com/verbena-go/verbena/gen/internal/api"

// copyAPI returns a copy of a snapshot. A change of the copy's layouts does not
// change the snapshot.
func copyAPI(a *api.API) *api.API {
	c := *a
	c.Structs = copyEach(a.Structs, func(s *api.Struct) { s.Members = copyMembers(s.Members) })
	return &c
}

func copyMembers(members []*api.Member) []*api.Member {
	return copyEach(members, func(m *api.Member) {
		m.Members = copyMembers(m.Members)
		if m.Bits != nil {
			bits := *m.Bits
			m.Bits = &bits
		}
	})
}

func copyType(t *api.Type) *api.Type {
	if t == nil {
		return nil
	}
	c := *t
	c.Elem = copyType(t.Elem)
	c.Params = copyEach(t.Params, func(p *api.Type) { *p = *copyType(p) })
	return &c
}

// copyEach returns copies of the items. deep replaces the pointers in a copy by
// pointers to copies.
func copyEach[T any](items []*T, deep func(*T)) []*T {
	var out []*T
	for _, item := range items {
		c := *item
		deep(&c)
		out = append(out, &c)
	}
	return out
}
