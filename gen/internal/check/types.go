// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// types makes C expressions that check types. In C, an enum is compatible with
// its integer type but not with another enum. To tell an enum from its integer
// type, the expressions also compare with enums that no declaration uses
// (probes).
type types struct {
	kinds map[string]string // enum, struct or union, by tag
	enums map[string]string // probe with the same integer type, by the enum's name
}

const (
	probes = "enum verbena_signed_long { VERBENA_SIGNED_LONG = -1LL << 40 };\n" +
		"enum verbena_unsigned_long { VERBENA_UNSIGNED_LONG = 1ULL << 40 };\n" +
		"enum verbena_signed { VERBENA_SIGNED = -1 };\n" +
		"enum verbena_unsigned { VERBENA_UNSIGNED };\n" +
		"struct verbena_none;\n"
	probeSigned   = "enum verbena_signed"
	probeUnsigned = "enum verbena_unsigned"
)

// integers maps an integer type that an enum can have to the probe with this
// type.
var integers = map[string]string{
	"int": probeSigned, "int32_t": probeSigned, "__s32": probeSigned,
	"unsigned int": probeUnsigned, "uint32_t": probeUnsigned, "__u32": probeUnsigned, "__be32": probeUnsigned,
	"socklen_t": probeUnsigned,
}

func newTypes(a *api.API) types {
	t := types{kinds: map[string]string{}, enums: map[string]string{}}
	for _, s := range a.Structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		t.kinds[tag] = kind
	}
	for _, e := range a.Enums {
		t.kinds[e.Name] = "enum"
		t.enums["enum "+e.Name] = probeUnsigned
		if e.Signed {
			t.enums["enum "+e.Name] = probeSigned
		}
		if e.Size == 8 {
			t.enums["enum "+e.Name] += "_long"
		}
	}
	return t
}

// claim returns a C expression that is true if the C type actual is exactly a
// pointer to t or, if t is a function type, exactly t.
func (ts types) claim(t *api.Type, actual string) string {
	claims := []string{compatible(actual, reference(t))}
	asEnums := t.Copy()
	for i, part := range parts(t) {
		probe, isEnum := ts.enums[part.Name]
		switch {
		case part.Kind == api.Func: // a function without a prototype would be compatible with any parameters
			more := t.Copy()
			f := parts(more)[i]
			f.Params = append(f.Params, &api.Type{Name: "struct verbena_none *"})
			claims = append(claims, "!"+compatible(actual, reference(more)))
		case isEnum: // the type must not be the enum's integer type
			other := t.Copy()
			parts(other)[i].Name, parts(other)[i].Bare = probe, false
			claims = append(claims, "!"+compatible(actual, reference(other)))
		case integers[part.Name] != "" && !part.Const && !part.Volatile: // the type must not be an enum; a const or volatile enum is not compatible anyway
			parts(asEnums)[i].Name = integers[part.Name]
		}
	}
	if asEnums.String() != t.String() {
		claims = append(claims, compatible(actual, reference(asEnums)))
	}
	return strings.Join(claims, " && ")
}

// parts returns t and every type within it, in a fixed order.
func parts(t *api.Type) []*api.Type {
	if t == nil {
		return nil
	}
	all := slices.Concat([]*api.Type{t}, parts(t.Elem))
	for _, p := range t.Params {
		all = append(all, parts(p)...)
	}
	return all
}

// reference returns the C type that is compared in place of t: a pointer to t,
// because the compiler ignores the qualifiers of t itself. A function type is
// compared without a pointer, because gcc uses its qualifiers for attributes.
func reference(t *api.Type) string {
	if t.Kind == api.Func {
		return t.C("")
	}
	return (&api.Type{Kind: api.Pointer, Elem: t}).C("")
}

func compatible(a, b string) string { return fmt.Sprintf("__builtin_types_compatible_p(%s, %s)", a, b) }
