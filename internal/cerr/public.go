// SPDX-License-Identifier: Apache-2.0

package cerr

var converters []func(error) error

// Convert makes this package pass each error that it makes from now on to
// convert. convert returns the error as a type of its own package, or nil if
// the package has none. Packages call Convert in init: a program that can name
// a package's type has imported the package, and sees only that type.
func Convert(convert func(error) error) { converters = append(converters, convert) }

// public returns err as the type that programs know.
func public(err error) error {
	for _, convert := range converters {
		if e := convert(err); e != nil {
			return e
		}
	}
	return err
}
