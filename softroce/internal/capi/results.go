// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import "syscall"

// absent is the errno of a C function that has no Go function behind it.
// libibverbs returns it for a function that a driver lacks.
const absent = int32(syscall.EOPNOTSUPP)

// counted returns n, or the negative errno if errno is not 0.
func counted(n int, errno syscall.Errno) int64 {
	if errno != 0 {
		return -int64(errno)
	}
	return int64(n)
}
