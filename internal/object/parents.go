package object

import "slices"

// AddParent makes the object, which must be in use, a child of p too, which
// must be as well. Only one goroutine may change an object's parents at a time.
func (o *Object) AddParent(p *Object) {
	if !slices.Contains(o.parents, p) {
		o.parents = append(o.parents, p)
		p.adopt(o)
	}
}

// RemoveParent ends what AddParent or Init began. The object must be in use.
func (o *Object) RemoveParent(p *Object) {
	if i := slices.Index(o.parents, p); i >= 0 {
		o.parents = slices.Delete(o.parents, i, i+1)
		p.disown(o)
	}
}
