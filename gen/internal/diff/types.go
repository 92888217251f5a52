// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"slices"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// signedNarrow lists the signed types that are sign-extended when they are
// passed to a function.
var signedNarrow = []string{"signed char", "short", "int8_t", "int16_t", "__s8", "__s16"}

// samePassed reports whether an argument or result of type a is passed in the
// same way as one of type b. It ignores const. Scalars are passed in the same
// way if they have the same size and, if they are narrower than an int, the
// same sign. An enum is a scalar of four bytes. Pointers are passed in the same
// way if their targets are stored in the same way, or if one of them is *void.
func samePassed(a, b *api.Type) bool {
	return same(a, b, func(a, b string) bool {
		return scalarSize(a) >= 4 || a != "char" && b != "char" && slices.Contains(signedNarrow, a) == slices.Contains(signedNarrow, b)
	})
}

// sameStored reports whether a value of type a is stored in memory in the same
// way as one of type b. It compares types as samePassed does, but ignores the
// sign of scalars.
func sameStored(a, b *api.Type) bool {
	return same(a, b, func(string, string) bool { return true })
}

// same compares types for samePassed and sameStored. It calls sameSign for two
// scalars of the same size.
func same(a, b *api.Type, sameSign func(a, b string) bool) bool {
	if a.Kind != b.Kind || a.Len != b.Len || a.Variadic != b.Variadic || len(a.Params) != len(b.Params) {
		return false
	}
	switch a.Kind {
	case api.Named:
		size := scalarSize(a.Name)
		return a.Name == b.Name || size != 0 && size == scalarSize(b.Name) &&
			a.Name != "_Bool" && b.Name != "_Bool" && sameSign(a.Name, b.Name)
	case api.Pointer:
		return a.Elem.IsVoid() && b.Elem.Kind != api.Func || b.Elem.IsVoid() && a.Elem.Kind != api.Func ||
			sameStored(a.Elem, b.Elem)
	case api.Array:
		return same(a.Elem, b.Elem, sameSign)
	}
	return slices.EqualFunc(a.Params, b.Params, samePassed) && samePassed(a.Elem, b.Elem)
}

// scalarSize returns the size of an arithmetic type or an enum, and 0 for any
// other type.
func scalarSize(name string) int64 {
	t := &api.Type{Name: name}
	if _, isEnum := t.Tag("enum"); !isEnum && !layout.IsScalar(name) {
		return 0
	}
	size, err := layout.New(&api.API{}, layout.AMD64).Of(t)
	if err != nil {
		return 0
	}
	return size.Size
}

// refers reports whether t contains the type with that name, also behind
// pointers.
func refers(t *api.Type, name string) bool {
	return t != nil && (t.Kind == api.Named && t.Name == name || refers(t.Elem, name) ||
		slices.ContainsFunc(t.Params, func(p *api.Type) bool { return refers(p, name) }))
}
