// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"
)

// absent is the errno of a C function that has no Go function behind it.
// libibverbs returns it for a function that a driver lacks.
const absent = int32(syscall.EOPNOTSUPP)

// call is a function that C calls, with a pointer to a struct of its arguments.
type call func(args unsafe.Pointer) answer

// answer is the result of a Go function, from which C sets the result and errno
// of its own function.
type answer struct {
	pointer unsafe.Pointer
	value   int64
	errno   int32
}

// libraries has the functions that C calls, in the order of call.h.
var libraries = [...][]call{verbsCalls, cmCalls}

// text returns a C string as a Go string. It returns "" for a null pointer.
func text(s *byte) string {
	if s == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}

// truth returns the C value for a bool.
func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
