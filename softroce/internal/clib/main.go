//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

// Clib is the device as a shared library: go build -buildmode=c-shared makes libverbena-softroce.so of it. The
// C files in its folder c are the libraries that programs are linked to, which load this one and pass calls on to the
// functions of package face. Package clibs in internal/cmd builds them all.
package main

import _ "github.com/verbena-go/verbena/softroce/internal/face" // whose C functions the library exports

func main() {}
