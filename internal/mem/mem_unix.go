// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mem

import "syscall"

// Map returns n bytes of zeroed memory outside of Go's heap, aligned to a page.
func Map(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

// Unmap frees memory from Map.
func Unmap(b []byte) error { return syscall.Munmap(b) }
