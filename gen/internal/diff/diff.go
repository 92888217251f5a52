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
	// At most one of these is true.
	Break     bool   `json:"break"`     // a break of the ABI
	Undecided bool   `json:"undecided"` // may be a break of the ABI; the snapshots do not tell
	Source    bool   `json:"source"`    // a break of the source only
	Why       string `json:"why"`
}

// Report has all changes from one version to another.
type Report struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	Breaks    int      `json:"breaks"`
	Undecided int      `json:"undecided"`
	Sources   int      `json:"sources"`
	Changes   []Change `json:"changes"` // by kind, then in the headers' order
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

// when returns s if bad, and compatible otherwise.
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

// headers compares the lists of headers, which old snapshots lack.
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

// spelling records that C writes the name of a struct, union or enum in another
// way: without its keyword, or with it.
func (c *comparer) spelling(name, from, to string) {
	if from != to {
		c.add(source, Change{Kind: SpellingChanged, Name: name, From: from, To: to, Why: "its layout is the same"})
	}
}

// pairs calls each with the declarations of each name in two lists, one of
// which is nil if the list lacks the name: first in the order of from, then the
// new ones in the order of to.
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
