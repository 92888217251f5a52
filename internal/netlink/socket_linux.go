// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"errors"
	"os"
	"syscall"
)

// largest is the size of the receive buffer, twice the size of the kernel's
// largest message.
const largest = 1 << 16

// socket is a netlink socket. The kernel creates an answer during the request
// and the reads, so these do not wait for other processes.
type socket struct {
	fd     int
	buffer []byte
}

// openSocket opens a socket that gives up after 10 s without an answer.
func openSocket(protocol int) (socket, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, protocol)
	if err != nil {
		return socket{}, os.NewSyscallError("socket", err)
	}
	s := socket{fd, make([]byte, largest)}
	// Without a limit, a kernel that does not answer would block the caller
	// for ever.
	patience := syscall.Timeval{Sec: 10}
	if err := errors.Join(
		os.NewSyscallError("setsockopt", syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience)),
		os.NewSyscallError("bind", syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK})),
	); err != nil {
		return socket{}, errors.Join(err, s.close())
	}
	return s, nil
}

func (s socket) send(b []byte) error {
	return os.NewSyscallError("sendto", syscall.Sendto(s.fd, b, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}))
}

// receive returns the messages of one datagram, in memory that is not reused.
func (s socket) receive() ([]byte, error) {
	for {
		n, from, err := syscall.Recvfrom(s.fd, s.buffer, syscall.MSG_TRUNC)
		switch kernel, _ := from.(*syscall.SockaddrNetlink); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		case kernel == nil || kernel.Pid != 0: // another process has sent the datagram
		case n > len(s.buffer):
			return nil, ErrShort
		default:
			return append([]byte(nil), s.buffer[:n]...), nil
		}
	}
}

func (s socket) close() error { return os.NewSyscallError("close", syscall.Close(s.fd)) }
