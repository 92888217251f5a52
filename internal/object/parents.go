// SPDX-License-Identifier: Apache-2.0

package object

import "slices"

// AddParent makes an initialized object a child of p too. Both must be in use
// (see Use) while it runs.
func (o *Object) AddParent(p *Object) {
	o.mu.Lock()
	known := slices.Contains(o.parents, p)
	if !known {
		o.parents = append(o.parents, p)
	}
	o.mu.Unlock()
	if !known {
		p.adopt(o)
	}
}

// RemoveParent makes the object no longer a child of p. The object must be in
// use.
func (o *Object) RemoveParent(p *Object) {
	o.mu.Lock()
	i := slices.Index(o.parents, p)
	if i >= 0 {
		o.parents = slices.Delete(o.parents, i, i+1)
	}
	o.mu.Unlock()
	if i >= 0 {
		p.disown(o)
	}
}
