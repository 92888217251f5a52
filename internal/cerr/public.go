// SPDX-License-Identifier: Apache-2.0

package cerr

// converters has the functions that were passed to Convert.
var converters []func(error) error

// Convert makes this package pass each error to the function convert from now
// on. convert returns the error as a type of the calling package, or nil if
// that package has no such type. Packages call Convert in init, so a program
// that uses a package's error types gets errors of these types.
func Convert(convert func(error) error) { converters = append(converters, convert) }

// public returns err as the type that programs use.
func public(err error) error {
	for _, convert := range converters {
		if e := convert(err); e != nil {
			return e
		}
	}
	return err
}
