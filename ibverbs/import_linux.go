package ibverbs

import "syscall"

// dupCloseOnExec sets the flag in the same system call, because a C library
// that forks does not take syscall.ForkLock.
func dupCloseOnExec(fd int) (int, error) {
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(dup), nil
}
