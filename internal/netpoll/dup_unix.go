// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package netpoll

import "syscall"

// Dup duplicates a descriptor. The duplicate is close-on-exec.
func Dup(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	dup, err := syscall.Dup(fd)
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(dup)
	return dup, nil
}
