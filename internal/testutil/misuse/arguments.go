// SPDX-License-Identifier: Apache-2.0

package misuse

import (
	"context"
	"math"
	"reflect"
)

// Zero returns the zero value of a parameter's type, for Method.Call.
func Zero(t reflect.Type) reflect.Value { return reflect.Zero(t) }

// depth limits how deeply Filled fills nested values.
const depth = 5

// Filled returns a function that makes arguments for Method.Call. Numbers are
// as close to n as their types permit. Pointers point to values, slices have
// one element, functions return zeros, and contexts have ended. If one of known
// has the type of an argument, or of a value in it, that is used.
func Filled(n int64, known ...any) func(reflect.Type) reflect.Value {
	f := &filler{n, map[reflect.Type]reflect.Value{}}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for _, v := range append([]any{done}, known...) {
		f.known[reflect.TypeOf(v)] = reflect.ValueOf(v)
	}
	return func(t reflect.Type) reflect.Value { return f.value(t, depth) }
}

type filler struct {
	n     int64
	known map[reflect.Type]reflect.Value
}

func (f *filler) value(t reflect.Type, depth int) reflect.Value {
	v := reflect.New(t).Elem()
	if known, ok := f.known[t]; ok {
		v.Set(known)
		return v
	}
	if depth == 0 {
		return v
	}
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(f.n != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		high := int64(math.MaxInt64) >> (64 - t.Bits())
		v.SetInt(min(max(f.n, -high-1), high))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		high := uint64(math.MaxUint64) >> (64 - t.Bits())
		v.SetUint(min(uint64(f.n), high)) // a negative n becomes the largest number
	case reflect.String:
		v.SetString("nonsense")
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(f.value(t.Elem(), depth-1))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(t, 1, 1))
		v.Index(0).Set(f.value(t.Elem(), depth-1))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).Set(f.value(t.Elem(), depth-1))
		}
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				v.Field(i).Set(f.value(t.Field(i).Type, depth-1))
			}
		}
	case reflect.Func:
		v.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
			out := make([]reflect.Value, t.NumOut())
			for i := range out {
				out[i] = reflect.Zero(t.Out(i))
			}
			return out
		}))
	case reflect.Interface:
		for _, known := range f.known {
			if known.Type().Implements(t) {
				v.Set(known)
				break
			}
		}
	}
	return v
}
