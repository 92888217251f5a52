// SPDX-License-Identifier: Apache-2.0

package api

// CopyLayouts returns a copy of a snapshot. A change of the layouts in the copy
// does not change the snapshot.
func (a *API) CopyLayouts() *API {
	c := *a
	c.Structs = nil
	for _, s := range a.Structs {
		copied := *s
		copied.Members = CopyMembers(s.Members)
		c.Structs = append(c.Structs, &copied)
	}
	return &c
}

// CopyMembers returns copies of members, at any depth.
func CopyMembers(members []*Member) []*Member {
	var out []*Member
	for _, m := range members {
		copied := *m
		copied.Members = CopyMembers(m.Members)
		if m.Bits != nil {
			bits := *m.Bits
			copied.Bits = &bits
		}
		out = append(out, &copied)
	}
	return out
}

// Copy returns a copy of a type, at any depth.
func (t *Type) Copy() *Type {
	if t == nil {
		return nil
	}
	c := *t
	c.Elem, c.Params = t.Elem.Copy(), nil
	for _, p := range t.Params {
		c.Params = append(c.Params, p.Copy())
	}
	return &c
}
