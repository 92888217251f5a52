// SPDX-License-Identifier: Apache-2.0

// Clib is the device as a shared library: go build -buildmode=c-shared makes
// libverbena-softroce.so from it. The C files in folder c are the libraries
// that programs are linked to. They load this library and pass calls on to the
// functions of package capi. The program softroce builds all of them.
package main

import _ "github.com/verbena-go/verbena/softroce/internal/capi" // the library exports its C functions

func main() {}
