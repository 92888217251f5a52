// SPDX-License-Identifier: Apache-2.0

// Package dl opens a C library at run time and looks up its functions. A
// program that uses the bindings therefore also starts on a machine without the
// library. It also has the choice of a device that the program brings along, whose
// functions take the place of the library's.
package dl
