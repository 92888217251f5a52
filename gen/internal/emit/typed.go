// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// The conventions name the enums of integers that C declares as such, often
// because they hold flags combined with |. These have the enum's type in Go,
// and the integer's in all of C.

// typed makes goType return an enum's type for the integer t, or for the
// integer to which t points. unfit reports what does not fit.
func (p *pkg) typed(t *api.Type, enums conventions.Enums, name string) {
	if t = integer(t); t == nil || enums[name] == "" {
		return
	}
	if e := enumOf(p.API, enums[name]); e != nil {
		p.integers[t] = e
	}
}

// typedMembers does what typed does for the members of a struct.
func (p *pkg) typedMembers(s *api.Struct) {
	_, tag, _ := strings.Cut(s.Name, " ")
	if enums := p.Known.Members[tag]; enums != nil {
		eachMember(s.Members, "", func(path string, m *api.Member) { p.typed(m.Type, enums, path) })
	}
}

// eachMember calls visit for each member that is not a struct or union, and for
// those of nested structs and unions. path is the member's name in a line of
// the conventions.
func eachMember(members []*api.Member, around string, visit func(path string, m *api.Member)) {
	for _, m := range members {
		path := around
		if m.Name != "" {
			path = strings.TrimPrefix(around+"."+m.Name, ".")
		}
		if m.Type != nil && m.Name != "" {
			visit(path, m)
		}
		eachMember(m.Members, path, visit)
	}
}

// enumOf returns the enum to which a line of the conventions refers, or nil.
func enumOf(a *api.API, key string) *api.Enum {
	for _, e := range a.Enums {
		if e.Key() == key {
			return e
		}
	}
	return nil
}

// integer returns t if it is an integer in the byte order of the host, or the
// integer to which t points, or else nil.
func integer(t *api.Type) *api.Type {
	if t != nil && t.Kind == api.Pointer {
		t = t.Elem
	}
	if t == nil || t.Kind != api.Named || !strings.Contains(scalars[t.Name].goType, "int") {
		return nil
	}
	return t
}

// unfit returns an error for each word enum= in the conventions of in that does
// not fit the headers.
func unfit(in Input) []error {
	whole := in.whole()
	engine := layout.New(whole.API, layout.AMD64)
	var errs []error
	check := func(line, at, what string, t *api.Type, key string) {
		e := enumOf(whole.API, key)
		if e == nil {
			errs = append(errs, fmt.Errorf("%s: the line for %s names an enum %s, which %s do not have", at, line, key, in.described()))
			return
		}
		if known := whole.Known.Enums[key]; known != nil && known.GoName == "-" {
			errs = append(errs, fmt.Errorf("%s: the line for %s names the enum %s, which has no type in Go, as its line says name=-", at, line, key))
			return
		}
		size := cmp.Or(e.Size, 4)
		if n := integer(t); n != nil {
			if have, err := engine.Of(n); err == nil && have.Size == size {
				return
			}
		}
		errs = append(errs, fmt.Errorf("%s: the line for %s gives %s the type of enum %s, but it is %s, not an integer of %d bytes", at, line, what, key, t.C(""), size))
	}
	for _, f := range in.API.Functions {
		known := in.Known.Funcs[f.Name]
		if known == nil || known.Skip != "" {
			continue
		}
		at := in.Known.At("func", f.Name)
		if key := known.Enums[conventions.Result]; key != "" {
			check(f.Name, at, "the result", f.Type.Elem, key)
		}
		for i, name := range f.ParamNames() {
			if key := known.Enums[name]; key != "" {
				check(f.Name, at, name, f.Type.Params[i], key)
			}
		}
	}
	for _, s := range in.API.Structs {
		_, tag, _ := strings.Cut(s.Name, " ")
		found := map[string]bool{}
		eachMember(s.Members, "", func(path string, m *api.Member) {
			key := in.Known.Members[tag][path]
			if found[path] = true; key == "" {
				return
			}
			at := in.Known.At("struct", tag)
			if m.Bits != nil {
				errs = append(errs, fmt.Errorf("%s: the line for %s gives %s the type of enum %s, but it is a bit-field", at, s.Name, path, key))
				return
			}
			check(s.Name, at, path, m.Type, key)
		})
		for _, path := range slices.Sorted(maps.Keys(in.Known.Members[tag])) {
			if !found[path] {
				errs = append(errs, fmt.Errorf("%s: the line for %s names a member %s, which %s do not have", in.Known.At("struct", tag), s.Name, path, in.described()))
			}
		}
	}
	return errs
}
