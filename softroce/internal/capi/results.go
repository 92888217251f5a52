// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"
)

// absent is the errno of a C function for which there is no Go function.
// libibverbs returns the same for a function that a driver lacks.
const absent = int32(syscall.EOPNOTSUPP)

// call is a Go function that a C function calls. args points to a struct of the
// arguments.
type call func(args unsafe.Pointer) answer

// answer is the result of a call. The C function sets its own result and errno
// from it.
type answer struct {
	pointer unsafe.Pointer
	value   int64
	errno   int32
}

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

// truth returns a bool as C represents it.
func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
