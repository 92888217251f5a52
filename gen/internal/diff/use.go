package diff

import (
	"fmt"
	"slices"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// user returns what refers to a struct, in either snapshot, and could give a
// program its address or take it: an exported function or a member of another
// struct. Inline functions do not count, as their code is in the program.
func (c *comparer) user(name string) string {
	for _, a := range []*api.API{c.from, c.to} {
		for _, f := range a.Functions {
			if f.Inline == nil && refers(f.Type, name) {
				return f.Name
			}
		}
		for _, s := range a.Structs {
			for _, f := range fields(s) {
				if refers(f.t, name) {
					return s.Name + "." + f.path
				}
			}
		}
	}
	return ""
}

// holder says which function or array has a struct by value, so that it cannot
// grow, if there is one.
func (c *comparer) holder(name string) string {
	byValue := func(t *api.Type) bool { return t != nil && t.Kind == api.Named && t.Name == name }
	for _, f := range c.from.Functions {
		if f.Inline == nil && (byValue(f.Type.Elem) || slices.ContainsFunc(f.Type.Params, byValue)) {
			return fmt.Sprintf("%s passes it by value", f.Name)
		}
	}
	for _, s := range c.from.Structs {
		for _, f := range fields(s) {
			t := f.t
			for t != nil && t.Kind == api.Array {
				t = t.Elem
			}
			if t != f.t && byValue(t) {
				return fmt.Sprintf("%s.%s is an array of it", s.Name, f.path)
			}
		}
	}
	return ""
}
