// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"errors"
	"math"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#include <linux/dma-buf.h>

enum { syncRequest = DMA_BUF_IOCTL_SYNC };
*/
import "C"

// dmabuf is a part of a DMA buffer, which the processor reaches by a mapping.
// Between START and END the buffer's driver keeps the memory where the
// processor sees it.
type dmabuf struct {
	fd     int    // a duplicate, as the program may close its descriptor
	pages  []byte // the mapping
	memory []byte // the region, a part of pages
}

// dmabufMagic is the type of the file system that DMA buffers are files of.
const dmabufMagic = 0x444d4142

// dmabufAccess is the access that a region of a DMA buffer may permit. Devices
// may ignore the optional flags.
const dmabufAccess = libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ |
	libibverbs.IBV_ACCESS_REMOTE_ATOMIC | libibverbs.AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

func init() {
	verbs.RegDmabufMr = func(p *libibverbs.Pd, offset, length, iova uint64, fd, access int32) (*libibverbs.Mr, syscall.Errno) {
		return self().registerDMABuf(p, offset, length, iova, int(fd), libibverbs.AccessFlags(access))
	}
}

// openDMABuf maps a part of a DMA buffer. As with the kernel, the error is
// EBADF if the descriptor is not open, and EINVAL if it is not a DMA buffer's
// or if the part exceeds the buffer. The error is EOPNOTSUPP if the processor
// cannot reach the buffer's memory.
func openDMABuf(fd int, offset, length uint64, write bool) (*dmabuf, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	if uint32(fs.Type) != dmabufMagic {
		return nil, syscall.EINVAL
	}
	size, err := syscall.Seek(fd, 0, 2) // moves nothing in a DMA buffer
	if err != nil {
		return nil, err
	}
	page := uint64(syscall.Getpagesize())
	if length == 0 || offset > uint64(size) || length > uint64(size)-offset || length > math.MaxInt-page {
		return nil, syscall.EINVAL
	}

	own, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, errno
	}
	d := &dmabuf{fd: int(own)}
	within := offset % page
	protection := syscall.PROT_READ
	if write {
		protection |= syscall.PROT_WRITE
	}
	d.pages, err = syscall.Mmap(d.fd, int64(offset-within), int(within+length), protection, syscall.MAP_SHARED)
	if err != nil {
		syscall.Close(d.fd)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENODEV) {
			return nil, syscall.EOPNOTSUPP // the driver does not map the buffer for programs
		}
		return nil, err
	}
	d.memory = d.pages[within : within+length : within+length]
	if err := d.sync(C.DMA_BUF_SYNC_START); err != nil {
		_ = syscall.Munmap(d.pages)
		syscall.Close(d.fd)
		return nil, err
	}
	return d, nil
}

func (d *dmabuf) sync(when uint64) error {
	s := C.struct_dma_buf_sync{flags: C.__u64(when | C.DMA_BUF_SYNC_RW)}
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(d.fd), C.syncRequest, uintptr(unsafe.Pointer(&s)))
		switch errno {
		case 0:
			return nil
		case syscall.EINTR, syscall.EAGAIN:
		default:
			return errno
		}
	}
}

// close gives the memory back. No request uses it any more.
func (d *dmabuf) close() {
	_ = d.sync(C.DMA_BUF_SYNC_END) // close goes on after an error
	_ = syscall.Munmap(d.pages)
	syscall.Close(d.fd)
}

func (l *library) registerDMABuf(p *libibverbs.Pd, offset, length, iova uint64, fd int, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
	if access&^dmabufAccess != 0 {
		return nil, syscall.EINVAL
	}
	d, err := openDMABuf(fd, offset, length, writes(access)) // may wait for the buffer's driver
	if err != nil {
		return nil, errno(err)
	}
	m, failed := l.add(p, d.memory, iova, access)
	if failed != 0 {
		d.close()
		return nil, failed
	}
	// libibverbs shows the offset, although it is not an address.
	*(*uintptr)(unsafe.Pointer(&m.c.Addr)) = uintptr(offset)
	m.dmabuf = d
	return m.c, 0
}
