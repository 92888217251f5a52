// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"syscall"
	"unsafe"
)

// nodeOf returns the NUMA node of a byte's page, or -1 if the system does not
// tell: the kernel may lack NUMA, and a container may forbid the question.
func nodeOf(b *byte) int {
	const flags = 1<<0 | 1<<1 // MPOL_F_NODE and MPOL_F_ADDR
	node := int32(-1)
	_, _, errno := syscall.Syscall6(syscall.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0, uintptr(unsafe.Pointer(b)), flags, 0)
	if errno != 0 {
		return -1
	}
	return int(node)
}
