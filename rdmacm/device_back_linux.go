// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// giveBack closes an unused device for the kernel, although librdmacm keeps it
// open. librdmacm closes a removed device only when it looks for devices again
// and finds other ones. Before rdma-core 52, that search can lose existing
// devices, because it compares addresses in 32 bits. giveBack therefore
// redirects the device's descriptors to /dev/null, and leaves closing them to
// librdmacm.
func giveBack(raw *libibverbs.Context) {
	nothing, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return // the kernel keeps waiting, as it does for a C program
	}
	for _, fd := range []int32{raw.CmdFd, raw.AsyncFd} {
		_ = syscall.Dup3(nothing, int(fd), syscall.O_CLOEXEC)
	}
	_ = syscall.Close(nothing)
}
