// SPDX-License-Identifier: Apache-2.0

//go:build unix

package verbs

import "syscall"

func mapMemory(n int, p protection) ([]byte, error) {
	bits := map[protection]int{noAccess: syscall.PROT_NONE, readOnly: syscall.PROT_READ, readWrite: syscall.PROT_READ | syscall.PROT_WRITE}
	return syscall.Mmap(-1, 0, n, bits[p], syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

func unmapMemory(b []byte) error { return syscall.Munmap(b) }
