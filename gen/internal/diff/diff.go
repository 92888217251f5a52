package diff

import (
	"github.com/verbena-go/verbena/gen/internal/api"
)

// Change is one difference between two snapshots.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Of is the enum of an enumerator or the struct of a member.
	Of     string `json:"of"`
	From   string `json:"from"`
	To     string `json:"to"`
	Break  bool   `json:"break"`  // of the ABI
	Source bool   `json:"source"` // only a source break
	Why    string `json:"why"`
}

// Report is everything that changed from one version to another.
type Report struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Breaks  int      `json:"breaks"`
	Sources int      `json:"sources"`
	Changes []Change `json:"changes"` // by kind, then as the headers have them
}

// Compare returns what changed from a to b.
func Compare(a, b *api.API) *Report {
	r := &Report{From: a.Version, To: b.Version, Changes: []Change{}}
	c := &comparer{from: a, to: b, byKind: map[Kind][]Change{}}
	c.functions()
	c.enums()
	c.structs()
	c.macros()
	c.aliases()
	for _, k := range kinds {
		for _, change := range c.byKind[k.kind] {
			r.Changes = append(r.Changes, change)
			if change.Break {
				r.Breaks++
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

// severity is what a change does to programs.
type severity int

const (
	compatible severity = iota
	source
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
	change.Break, change.Source = s == abi, s == source
	c.byKind[change.Kind] = append(c.byKind[change.Kind], change)
}

// header notes that a declaration is found elsewhere.
func (c *comparer) header(name, from, to string) {
	if from != to {
		c.add(source, Change{
			Kind: HeaderChanged, Name: name, From: from, To: to,
			Why: "a program that includes only the old header does not see it",
		})
	}
}

// pairs calls each with the declarations of one name in two lists, of which
// one is nil if there is none: first in the order of from, then what is new in
// the order of to.
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
