// SPDX-License-Identifier: Apache-2.0

// Clib is the device as a shared library, libverbena-softroce.so, which go
// build -buildmode=c-shared makes. The C files in the directory c are libraries
// in place of those to which programs are linked. They load this library and
// pass calls on to the functions of package capi. The command softroce builds
// all of them.
package main

import (
	_ "github.com/verbena-go/verbena/softroce/internal/capi"    // the library exports its C functions
	_ "github.com/verbena-go/verbena/softroce/internal/csocket" // some of which need package rsocket
)

func main() {}
