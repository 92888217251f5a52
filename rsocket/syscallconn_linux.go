// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"io"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// show calls f with a descriptor from which bytes can be read. If end is true,
// the end of file follows. used is the number of bytes that f has read, and
// done the result of f.
func show(bytes []byte, end bool, f func(fd uintptr) (done bool)) (used int, done bool, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, false, cerr.WithFiles(os.NewSyscallError("socketpair", err))
	}
	lent, own := fds[0], fds[1]
	defer syscall.Close(lent)
	defer syscall.Close(own)
	if len(bytes) > 0 {
		n, err := syscall.Write(own, bytes)
		if err != nil {
			return 0, false, os.NewSyscallError("write", err)
		}
		if n < len(bytes) { // cannot happen: the smallest socket buffer takes maxLook bytes
			return 0, false, io.ErrShortWrite
		}
	}
	if end {
		if err := syscall.Shutdown(own, syscall.SHUT_WR); err != nil {
			return 0, false, os.NewSyscallError("shutdown", err)
		}
	}
	if err := syscall.Shutdown(lent, syscall.SHUT_WR); err != nil { // so that f cannot write: its data would be lost
		return 0, false, os.NewSyscallError("shutdown", err)
	}
	done = f(uintptr(lent))
	return len(bytes) - unread(lent), done, nil
}

// unread reads everything from a descriptor, and returns the number of bytes.
func unread(fd int) (total int) {
	var b [maxLook]byte
	for {
		n, err := syscall.Read(fd, b[:])
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 {
			return total
		}
		total += n
	}
}
