// SPDX-License-Identifier: Apache-2.0

// Package dl opens a C library at run time and looks up its functions. A
// program that uses the bindings therefore also starts on a machine without the
// library. Package dl can also take the functions from a device that is part of
// the program.
package dl
