package rdmacm

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// giveBack makes the kernel consider a device closed that librdmacm has open
// and that nothing uses. librdmacm itself closes a removed device only when it
// next looks for devices and finds others; and before rdma-core 52, looking can
// make it lose those that are there, because it compares their addresses in 32
// bits. So its descriptors are turned into ones of nothing, which it closes in
// its own time.
func giveBack(raw *libibverbs.Context) {
	nothing, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return // the kernel goes on waiting, which is no worse than with C
	}
	for _, fd := range []int32{raw.CmdFd, raw.AsyncFd} {
		_ = syscall.Dup3(nothing, int(fd), syscall.O_CLOEXEC)
	}
	_ = syscall.Close(nothing)
}
