// SPDX-License-Identifier: Apache-2.0

package netpoll

import "syscall"

// Dup duplicates a descriptor. The duplicate is close-on-exec. Both are done in
// one system call, since a C library that forks does not take syscall.ForkLock.
func Dup(fd int) (int, error) {
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(dup), nil
}
