// SPDX-License-Identifier: Apache-2.0

package api

import "strings"

// Name is the name of a declaration, with its kind.
type Name struct {
	Kind string // func, enum, enumerator, struct, union, member, macro, alias, typedef or variable
	Name string // name in C; that of a member is TAG.MEMBER, or TAG.MEMBER.MEMBER in a nested struct
}

func (n Name) String() string { return n.Kind + " " + n.Name }

// Finding is a problem with a declaration. If Of is the zero value, it is a
// problem with no particular declaration.
type Finding struct {
	Of     Name
	Header string
	Text   string
}

func (f Finding) String() string {
	if f.Of == (Name{}) {
		return f.Text
	}
	return f.Header + ": " + f.Of.String() + ": " + f.Text
}

// Kinds lists the kinds of names.
var Kinds = []string{"func", "enum", "enumerator", "struct", "union", "member", "macro", "alias", "typedef", "variable"}

// Names returns the names of all declarations, each once, in the headers'
// order. The name of an enum without a tag is its Key. Structs that are
// mentioned but not defined, because the library hides them, are included.
func (a *API) Names() []Name {
	var all []Name
	seen := map[Name]bool{}
	add := func(kind, name string) {
		if n := (Name{kind, name}); !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	speakOf := func(header string) func(*Type) {
		return func(t *Type) {
			// Unlike libibverbs', librdmacm's headers mention structs of libc.
			tag, ok := t.Tag("struct")
			if ok && (strings.HasPrefix(header, "infiniband/") || strings.HasPrefix(tag, "rdma_")) {
				add("struct", tag)
			}
		}
	}
	for _, f := range a.Functions {
		add("func", f.Name)
	}
	for _, e := range a.Enums {
		add("enum", e.Key())
		for _, v := range e.Values {
			add("enumerator", v.Name)
		}
	}
	for _, s := range a.Structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		add(kind, tag)
		addMembers(tag, s.Members, add)
	}
	for _, f := range a.Functions {
		f.Type.Walk(speakOf(f.Header))
	}
	for _, s := range a.Structs {
		WalkMembers(s.Members, speakOf(s.Header))
	}
	for _, m := range a.Macros {
		add("macro", m.Name)
	}
	for _, alias := range a.Aliases {
		add("alias", alias.Name)
	}
	for _, t := range a.Typedefs {
		add("typedef", t.Name)
	}
	for _, v := range a.Variables {
		add("variable", v.Name)
	}
	return all
}

// addMembers adds the members of the struct or union with the name path. The
// members of an anonymous struct or union have the path of the one around it.
func addMembers(path string, members []*Member, add func(kind, name string)) {
	for _, m := range members {
		inner := path
		if m.Name != "" {
			inner += "." + m.Name
			add("member", inner)
		}
		addMembers(inner, m.Members, add)
	}
}
