// SPDX-License-Identifier: Apache-2.0

// Package sealed lets the packages of this module use each other's internals.
// A type with internals has a method Internals, which programs can call, but
// they cannot import this package and so cannot open the result.
//
// The type of the internals belongs to the package that they are of. It is not
// exported, but its methods are, so that the compiler checks each call:
//
//	mr, err := sealed.Open(pd.Internals()).NewHostMR(...)
package sealed

// Of holds internals of type T.
type Of[T any] struct{ internals T }

// Seal returns the internals in a form that only this module can open.
func Seal[T any](internals T) Of[T] { return Of[T]{internals} }

// Open returns the internals that Seal was given.
func Open[T any](sealed Of[T]) T { return sealed.internals }
