// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"syscall"
	"unsafe"
)

// Readable reports whether an event waits in C for the channel.
func Readable(ch *EventChannel) bool {
	if ch.direct != nil {
		return ch.direct.Pending()
	}
	const pollIn = 1
	poll := struct {
		fd            int32
		asked, result int16
	}{fd: ch.raw.Fd, asked: pollIn}
	var none syscall.Timespec
	n, _, _ := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&none)), 0, 0, 0)
	return n == 1
}
