// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// known are errnos that errors match without having them in their chain.
var known = []syscall.Errno{
	syscall.EAGAIN, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL,
	syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENODEV, syscall.EPROTO, syscall.ENOMEM, syscall.EMFILE, syscall.EINVAL,
}

// errnoOf returns the errno of an error of package rsocket.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return syscall.EBADF
	}
	for _, e := range known {
		if errors.Is(err, e) {
			return e
		}
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return syscall.ETIMEDOUT
	case errors.Is(err, errors.ErrUnsupported):
		return syscall.EOPNOTSUPP
	case errors.Is(err, os.ErrInvalid):
		return syscall.EINVAL
	}
	return syscall.EIO
}
