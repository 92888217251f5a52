// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"iter"
	"math/rand/v2"
	"unsafe"
)

// An index holds regions, which may overlap, in the order of their first bytes.
// It is a treap: a search tree by address, and a heap by numbers drawn at
// random, which keep it flat in whatever order regions come and go.
type index struct{ root *place }

// A place is a region's node in an index. A nil *place is an empty tree.
type place struct {
	start, end  uintptr // of the region
	region      *Region
	left, right *place // the places before it, and those after it
	priority    uint64 // larger than those of left and right

	// furthest is the end of the region that reaches furthest, of this place
	// and those below it. So a search takes one way down, however regions are
	// nested.
	furthest uintptr
}

// find returns a region that contains the memory from start to end, or nil.
func (x index) find(start, end uintptr) *Region {
	for p := x.root; p != nil && p.furthest >= end; {
		switch {
		case p.start > start:
			p = p.left
		case p.end >= end:
			return p.region
		case p.left.reach() >= end: // and all there start before start
			p = p.left
		default:
			p = p.right
		}
	}
	return nil
}

// touching returns the regions that overlap the memory from start to end, or
// are next to it, the last first.
func (x index) touching(start, end uintptr) iter.Seq[*Region] {
	return func(yield func(*Region) bool) { x.root.touching(start, end, yield) }
}

// touching calls yield with these regions of the tree until it returns false.
func (p *place) touching(start, end uintptr, yield func(*Region) bool) bool {
	switch {
	case p == nil || p.furthest < start:
		return true
	case p.start > end:
		return p.left.touching(start, end, yield)
	}
	return p.right.touching(start, end, yield) && (p.end < start || yield(p.region)) && p.left.touching(start, end, yield)
}

// insert adds a region.
func (x *index) insert(r *Region) {
	start, end := span(r.bytes)
	p := &place{start: start, end: end, region: r, priority: rand.Uint64(), furthest: end}
	before, after := x.root.split(p)
	x.root = merge(merge(before, p), after)
}

// remove removes a region, and reports whether it was in the index.
func (x *index) remove(r *Region) (found bool) {
	start, _ := span(r.bytes)
	x.root, found = x.root.remove(&place{start: start, region: r})
	return found
}

// remove removes the place of one's region from the tree.
func (p *place) remove(one *place) (rest *place, found bool) {
	switch {
	case p == nil:
		return nil, false
	case p.region == one.region:
		return merge(p.left, p.right), true
	case one.isBefore(p):
		p.left, found = p.left.remove(one)
	default:
		p.right, found = p.right.remove(one)
	}
	p.update()
	return p, found
}

// split divides the tree into the places before one and those after it.
func (p *place) split(one *place) (before, after *place) {
	switch {
	case p == nil:
		return nil, nil
	case p.isBefore(one):
		p.right, after = p.right.split(one)
		before = p
	default:
		before, p.left = p.left.split(one)
		after = p
	}
	p.update()
	return before, after
}

// merge returns the tree of all places of a and b. Those of a come first.
func merge(a, b *place) *place {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = merge(a.right, b)
		a.update()
		return a
	}
	b.left = merge(a, b.left)
	b.update()
	return b
}

// isBefore reports whether p comes before other. Regions with the same first
// byte come in the order of their own addresses, which do not change.
func (p *place) isBefore(other *place) bool {
	if p.start != other.start {
		return p.start < other.start
	}
	return uintptr(unsafe.Pointer(p.region)) < uintptr(unsafe.Pointer(other.region))
}

// update corrects furthest after a change below p.
func (p *place) update() { p.furthest = max(p.end, p.left.reach(), p.right.reach()) }

// reach returns the end of the tree's region that reaches furthest, or 0.
func (p *place) reach() uintptr {
	if p == nil {
		return 0
	}
	return p.furthest
}
