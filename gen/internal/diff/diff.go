// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"github.com/verbena-go/verbena/gen/internal/api"
)

// Change is one difference between two snapshots.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Of is the enum of an enumerator or the struct of a member.
	Of   string `json:"of"`
	From string `json:"from"`
	To   string `json:"to"`
	// At most one of Break, Undecided and Source is true.
	Break     bool   `json:"break"`     // whether it is an ABI break
	Undecided bool   `json:"undecided"` // whether it may be an ABI break, which the snapshots do not show
	Source    bool   `json:"source"`    // whether it breaks the source only
	Why       string `json:"why"`
}

// Report holds all changes from one version to another.
type Report struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	Breaks    int      `json:"breaks"`
	Undecided int      `json:"undecided"`
	Sources   int      `json:"sources"`
	Changes   []Change `json:"changes"` // ordered by kind, and within a kind in the headers' order
}

// Compare returns what changed from a to b.
func Compare(a, b *api.API) *Report {
	r := &Report{From: a.Version, To: b.Version, Changes: []Change{}}
	c := &comparer{from: a, to: b, byKind: map[Kind][]Change{}}
	c.headers()
	c.functions()
	c.enums()
	c.structs()
	c.macros()
	c.aliases()
	c.typedefs()
	c.variables()
	for _, k := range kinds {
		for _, change := range c.byKind[k.kind] {
			r.Changes = append(r.Changes, change)
			if change.Break {
				r.Breaks++
			}
			if change.Undecided {
				r.Undecided++
			}
			if change.Source {
				r.Sources++
			}
		}
	}
	return r
}

type comparer struct {
	from, to *api.API
	byKind   map[Kind][]Change
}

// severity is the effect of a change on programs.
type severity int

const (
	compatible severity = iota
	source
	undecided
	abi
)

// when returns s if bad is true, and compatible otherwise.
func (s severity) when(bad bool) severity {
	if bad {
		return s
	}
	return compatible
}

func (c *comparer) add(s severity, change Change) {
	change.Break, change.Undecided, change.Source = s == abi, s == undecided, s == source
	c.byKind[change.Kind] = append(c.byKind[change.Kind], change)
}

// headers compares the lists of headers. It does nothing if a snapshot is so
// old that it has no such list.
func (c *comparer) headers() {
	if len(c.from.Headers) == 0 || len(c.to.Headers) == 0 {
		return
	}
	pairs(c.from.Headers, c.to.Headers, func(h *api.Header) string { return h.Name }, func(name string, a, b *api.Header) {
		switch {
		case a == nil:
			c.add(compatible, Change{Kind: HeaderAdded, Name: name})
		case b == nil:
			c.add(source, Change{Kind: HeaderRemoved, Name: name, Why: "a program that includes it does not compile"})
		}
	})
}

// header records that a declaration has moved to another header.
func (c *comparer) header(name, from, to string) {
	if from != to {
		c.add(source, Change{
			Kind: HeaderChanged, Name: name, From: from, To: to,
			Why: "a program that includes only the old header does not see it",
		})
	}
}

// spelling records that C code writes the name of a struct, union or enum in
// another way: it has lost its tag and has a typedef, or the reverse.
func (c *comparer) spelling(name, from, to string) {
	if from != to {
		c.add(source, Change{Kind: SpellingChanged, Name: name, From: from, To: to, Why: "its layout is the same"})
	}
}

// pairs calls each for all names in two lists, with the name's declaration in
// each list. A declaration is nil if the list lacks the name. The names of from
// come first, in their order. The names that only to has follow, in their
// order.
func pairs[T any](from, to []*T, name func(*T) string, each func(name string, a, b *T)) {
	index := func(list []*T) map[string]*T {
		byName := map[string]*T{}
		for _, item := range list {
			if _, taken := byName[name(item)]; !taken {
				byName[name(item)] = item
			}
		}
		return byName
	}
	old, now := index(from), index(to)
	for _, item := range from {
		if n := name(item); old[n] == item {
			each(n, item, now[n])
		}
	}
	for _, item := range to {
		if n := name(item); old[n] == nil && now[n] == item {
			each(n, nil, item)
		}
	}
}
