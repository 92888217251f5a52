// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"syscall"
	"unsafe"
)

// restarts reports whether a call that a signal has interrupted goes on.
// poll(2), in which threads wait here, is always interrupted. recv(2), and C's
// rsockets, go on if the signal's handler has SA_RESTART. As the signal is not
// known here, a call goes on if all handlers of the program have it.
func restarts() bool {
	const restart = 0x10000000
	for sig := uintptr(1); sig <= 64; sig++ {
		var action [32]uintptr // of the kernel: handler and flags come first
		_, _, err := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		if err == 0 && action[0] > 1 && action[1]&restart == 0 { // neither SIG_DFL nor SIG_IGN
			return false
		}
	}
	return true
}
