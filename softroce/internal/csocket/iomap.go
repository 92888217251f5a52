// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// ioMap is riomap. It returns the offset of the first byte.
func ioMap(fd int32, buf uintptr, n uint64, prot, _ int32, offset int64) (int, syscall.Errno) {
	return count(fd, func(s *socket) (int, syscall.Errno) {
		if prot&^syscall.PROT_WRITE != 0 {
			return 0, syscall.EINVAL
		}
		memory, err := ioMemory(*(*unsafe.Pointer)(unsafe.Pointer(&buf)), n)
		if err != 0 {
			return 0, err
		}
		c := s.conn.Load()
		if c == nil {
			return 0, syscall.ENOTCONN
		}
		if offset == -1 {
			offset = int64(buf)
		}
		i := sealed.Open(c.Internals())
		if err := i.IOMap(memory, prot != syscall.PROT_NONE, uint64(offset)); err != nil {
			return 0, errnoOf(err)
		}
		i.TryAnnounce()
		return int(offset), 0
	})
}

// ioUnmap is riounmap.
func ioUnmap(fd int32, buf unsafe.Pointer, n uint64) syscall.Errno {
	return with(fd, func(s *socket) syscall.Errno {
		memory, err := ioMemory(buf, n)
		if err != 0 {
			return err
		}
		c := s.conn.Load()
		if c == nil {
			return syscall.ENOTCONN
		}
		return errnoOf(sealed.Open(c.Internals()).IOUnmap(memory))
	})
}

// maxIOMap limits the memory of a riomap: the peer gets its length in 32 bits.
const maxIOMap = 1<<32 - 1

// ioMemory returns memory of C's.
func ioMemory(buf unsafe.Pointer, n uint64) ([]byte, syscall.Errno) {
	switch {
	case buf == nil:
		return nil, syscall.EFAULT
	case n == 0 || n > maxIOMap || uint64(uintptr(buf))+n < n:
		return nil, syscall.EINVAL
	}
	return unsafe.Slice((*byte)(buf), n), 0
}

// ioWrite is riowrite.
func ioWrite(fd int32, buf unsafe.Pointer, n uint64, offset int64, flags int32) (int, syscall.Errno) {
	return count(fd, func(s *socket) (int, syscall.Errno) {
		n = min(n, maxTransfer)
		if buf == nil && n > 0 {
			return 0, syscall.EFAULT
		}
		c := s.conn.Load()
		if c == nil {
			return 0, syscall.ENOTCONN
		}
		return s.writeAt(c, unsafe.Slice((*byte)(buf), n), uint64(offset), flags)
	})
}

// writeAt does the work of riowrite. If the send buffer is full, it waits, as C
// does, until rsend would not wait, which also takes the peer's permission.
func (s *socket) writeAt(c *rsocket.Conn, b []byte, offset uint64, flags int32) (int, syscall.Errno) {
	internals, timeout := sealed.Open(c.Internals()), time.Duration(s.timeouts[1].Load())
	return s.transfer(pollOut, flags, timeout, func(done int) (n int, more bool, err error) {
		n, err = internals.TryWriteAt(b[done:], offset+uint64(done))
		return n, false, err
	})
}
