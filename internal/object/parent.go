package object

import "slices"

// AddParent makes the object, which exists already, a child of p too. Both
// must be in use (see Use) for as long as it runs.
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
