// SPDX-License-Identifier: Apache-2.0

// Package dl opens a C library at run time and looks up its functions. So a
// program that uses the bindings also starts on a machine without the library.
package dl
