// SPDX-License-Identifier: Apache-2.0

// Clib is the device as a shared library: go build -buildmode=c-shared makes libverbena-softroce.so of it. The
// C files in its folder c are the libraries that programs are linked to, which load this one and pass calls on to the
// functions of package face. The program softroce builds all of them.
package main

import _ "github.com/verbena-go/verbena/softroce/internal/face" // whose C functions the library exports

func main() {}
