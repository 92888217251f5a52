// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import "syscall"

// absent is the errno of what Go has no function for, as libibverbs has it for what
// a driver lacks.
const absent = int32(syscall.EOPNOTSUPP)

// counted makes one number of a count and an errno, which is negative.
func counted(n int, errno syscall.Errno) int64 {
	if errno != 0 {
		return -int64(errno)
	}
	return int64(n)
}
