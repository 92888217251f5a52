// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"errors"
	"io"
	"math"
	"net"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// maxTransfer limits the bytes of one call, as Linux does.
const maxTransfer = math.MaxInt32 &^ 4095

// iovec is struct iovec.
type iovec struct {
	base unsafe.Pointer
	len  uint64
}

// msghdr is struct msghdr.
type msghdr struct {
	name       unsafe.Pointer
	namelen    uint32
	iov        unsafe.Pointer
	iovlen     uint64
	control    unsafe.Pointer
	controllen uint64
	flags      int32
}

// memory returns C's memory as buffers, and its length.
func memory(vectors []iovec) (buffers net.Buffers, total int, err syscall.Errno) {
	for _, v := range vectors {
		n := int(min(v.len, uint64(maxTransfer-total)))
		switch {
		case n == 0:
			continue
		case v.base == nil:
			return nil, 0, syscall.EFAULT
		}
		buffers = append(buffers, unsafe.Slice((*byte)(v.base), n))
		total += n
	}
	return buffers, total, 0
}

// vectors returns an array of struct iovec.
func vectors(iov unsafe.Pointer, n uint64) ([]iovec, syscall.Errno) {
	switch {
	case n > 1024: // IOV_MAX
		return nil, syscall.EINVAL
	case n == 0:
		return nil, 0
	case iov == nil:
		return nil, syscall.EFAULT
	}
	return unsafe.Slice((*iovec)(iov), n), 0
}

// Flags of recv(2) and send(2).
const waitAll = syscall.MSG_WAITALL

// connection returns the connection to transfer data over. It waits while the
// socket connects, unless it must not.
func (s *socket) connection(flags int32, timeout time.Duration) (*rsocket.Conn, syscall.Errno) {
	for {
		if c := s.conn.Load(); c != nil {
			return c, 0
		}
		s.mu.Lock()
		state, err := s.state, s.err
		if state == failed {
			s.err = 0
		}
		s.mu.Unlock()
		switch {
		case s.isClosed():
			return nil, syscall.EBADF
		case state == failed && err != 0:
			return nil, err
		case state == connected:
			continue
		case state != connecting:
			return nil, syscall.ENOTCONN
		case s.mustNotWait(flags):
			return nil, syscall.EAGAIN
		}
		if err := s.await(pollOut, timeout); err != 0 {
			return nil, err
		}
	}
}

// mustNotWait reports whether a call with these flags fails instead of waiting.
func (s *socket) mustNotWait(flags int32) bool {
	return flags&syscall.MSG_DONTWAIT != 0 || s.nonblocking.Load()
}

// recv is rrecv and the like.
func (s *socket) recv(all []iovec, flags int32) (int, syscall.Errno) {
	to, total, err := memory(all)
	if err != 0 {
		return 0, err
	}
	if flags&syscall.MSG_OOB != 0 {
		return 0, syscall.EINVAL // none ever arrives
	}
	timeout := time.Duration(s.timeouts[0].Load())
	c, err := s.connection(flags, timeout)
	if err != 0 || total == 0 {
		return 0, err
	}
	internals := sealed.Open(c.Internals())
	peek := flags&syscall.MSG_PEEK != 0
	return s.transfer(pollIn, flags, timeout, func(done int) (n int, more bool, err error) {
		n, err = internals.TryRead(to, peek)
		switch {
		case err == io.EOF:
			return n, false, nil
		case err != nil || done+n == total || peek || flags&waitAll == 0:
			return n, false, err
		}
		for n > 0 && len(to[0]) == 0 { // TryRead has advanced the buffers
			to = to[1:]
		}
		return n, true, nil
	})
}

// transfer calls part until a call needs no more, and returns the bytes that
// the calls have transferred. done is the number of bytes so far. If part fails
// with EAGAIN, transfer waits for events of the socket, unless the call must
// not wait. An error ends the transfer, but is the call's only if no bytes were
// transferred.
func (s *socket) transfer(events int16, flags int32, timeout time.Duration, part func(done int) (n int, more bool, err error)) (int, syscall.Errno) {
	for done := 0; ; {
		n, more, err := part(done)
		done += n
		var e syscall.Errno
		switch {
		case err == nil && more:
			continue
		case err == nil:
			return done, 0
		case !errors.Is(err, syscall.EAGAIN):
			e = errnoOf(err)
		case s.mustNotWait(flags):
			e = syscall.EAGAIN
		default:
			if e = s.await(events, timeout); e == 0 {
				continue
			}
		}
		if done > 0 {
			return done, 0
		}
		return 0, e
	}
}

// send is rsend and the like.
func (s *socket) send(all []iovec, flags int32) (int, syscall.Errno) {
	from, total, err := memory(all)
	if err != 0 {
		return 0, err
	}
	if flags&syscall.MSG_OOB != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	timeout := time.Duration(s.timeouts[1].Load())
	c, err := s.connection(flags, timeout)
	if err != 0 {
		return 0, err
	}
	internals := sealed.Open(c.Internals())
	return s.transfer(pollOut, flags, timeout, func(done int) (n int, more bool, err error) {
		n, err = internals.TryWrite(&from, total-done)
		return n, false, err
	})
}
