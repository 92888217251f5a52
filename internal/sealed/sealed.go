// SPDX-License-Identifier: Apache-2.0

// Package sealed lets the packages of this module use internals of each other
// that programs cannot use. A type with internals has a method Internals.
// Programs can call it, but cannot do anything with the result, since they
// cannot import this package.
//
// The type of the internals is declared in the package of the object. It is not
// exported, but its methods are, so the compiler checks each call:
//
//	mr, err := sealed.Open(pd.Internals()).NewHostMR(...)
package sealed

// Of holds internals of type T, which only this module can get with Open.
type Of[T any] struct{ internals T }

// Seal returns the internals in a form that only this module can open.
func Seal[T any](internals T) Of[T] { return Of[T]{internals} }

// Open returns the internals that were passed to Seal.
func Open[T any](sealed Of[T]) T { return sealed.internals }
