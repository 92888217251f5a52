// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// user returns the name of an exported function, a member or a variable whose
// type contains a struct or a pointer to it, in either snapshot. Through it,
// the library and programs may pass the struct's address. Inline functions do
// not count, because their code is part of the program.
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
		for _, v := range a.Variables {
			if refers(v.Type, name) {
				return v.Name
			}
		}
	}
	return ""
}

// holder returns a text about a function, array or variable that has a struct
// by value, so that the struct cannot grow. It returns "" if there is none.
func (c *comparer) holder(name string) string {
	byValue := isNamed(name)
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
	for _, v := range c.from.Variables {
		t := v.Type
		for t.Kind == api.Array {
			t = t.Elem
		}
		if byValue(t) {
			return fmt.Sprintf("the variable %s has it, and programs its size", v.Name)
		}
	}
	return c.counted(name)
}

func isNamed(name string) func(*api.Type) bool {
	return func(t *api.Type) bool { return t != nil && t.Kind == api.Named && t.Name == name }
}

// number matches the names of parameters and members that are numbers of
// elements.
var number = regexp.MustCompile(`^(num|nr|n)_\w+$|^max_?\w+$|^n[a-z]+s$|^nsge$|(cnt|count)$`)

// counted returns a text about a function or struct that has a pointer to a
// struct beside a number of elements: programs have arrays of this struct. It
// returns "" if there is none, or if a function returns a pointer to the
// struct, because the library allocates such structs one by one.
func (c *comparer) counted(name string) string {
	is := isNamed(name)
	for _, f := range c.from.Functions {
		if t := f.Type.Elem; t.Kind == api.Pointer && is(t.Elem) {
			return ""
		}
	}
	beside := func(names []string, types []*api.Type) (pointer, count string) {
		for i, t := range types {
			if t == nil || t.Kind != api.Pointer || !is(t.Elem) {
				continue
			}
			for _, j := range []int{i - 1, i + 1} {
				if j >= 0 && j < len(types) && types[j] != nil && types[j].Kind == api.Named && scalarSize(types[j].Name) != 0 && number.MatchString(names[j]) {
					return names[i], names[j]
				}
			}
		}
		return "", ""
	}
	for _, f := range c.from.Functions {
		// Other functions are skipped: an inline function that does
		// more than call an operation is part of the program, and a
		// function with a size learns the size that the program was
		// compiled with.
		if ownLogic := f.Inline != nil && f.Inline.Call == ""; ownLogic || len(f.Params) != len(f.Type.Params) || slices.ContainsFunc(f.Params, isSize) {
			continue
		}
		if pointer, count := beside(f.Params, f.Type.Params); pointer != "" {
			return fmt.Sprintf("%s takes an array of it, %s with %s", f.Name, pointer, count)
		}
	}
	for _, s := range c.from.Structs {
		if pointer, count := besideMember(s.Members, beside); pointer != "" {
			return fmt.Sprintf("%s has an array of it, %s with %s", s.Name, pointer, count)
		}
	}
	return ""
}

func isSize(name string) bool { return strings.HasSuffix(name, "size") }

// besideMember returns the first result of beside for the members of a struct
// or of a nested one.
func besideMember(members []*api.Member, beside func([]string, []*api.Type) (string, string)) (pointer, count string) {
	var names []string
	var types []*api.Type
	for _, m := range members {
		names, types = append(names, m.Name), append(types, m.Type)
	}
	if pointer, count = beside(names, types); pointer != "" {
		return pointer, count
	}
	for _, m := range members {
		if pointer, count = besideMember(m.Members, beside); pointer != "" {
			return pointer, count
		}
	}
	return "", ""
}
