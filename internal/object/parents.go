// SPDX-License-Identifier: Apache-2.0

package object

import "slices"

// AddParent makes o a child of p, in addition to its other parents. Both must
// be in use (see Use) while AddParent runs.
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

// RemoveParent makes o no longer a child of p. o must be in use (see Use).
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
