// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// dmabuf is a part of a DMA buffer, mapped for the processor. Between the two
// calls of sync, the driver of the buffer keeps the memory coherent for the
// processor.
type dmabuf struct {
	fd     int    // duplicate of the program's descriptor, which the program may close
	pages  []byte // mapping of whole pages
	memory []byte // part of pages that the program has registered
}

// dmabufMagic is the file system type of DMA buffers in statfs.
const dmabufMagic = 0x444d4142

// The phases of the processor's access to a DMA buffer, as Linux numbers them.
const (
	syncRW    = 3
	syncStart = 0
	syncEnd   = 4
)

// dmabufAccess has the access flags that a region of a DMA buffer may have. A
// device may ignore the optional ones.
const dmabufAccess = libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ |
	libibverbs.IBV_ACCESS_REMOTE_ATOMIC | libibverbs.AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

func init() {
	verbs.RegDmabufMr = func(p *libibverbs.Pd, offset, length, iova uint64, fd int32, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		return self().registerDMABuf(p, offset, length, iova, int(fd), access)
	}
}

// kernelNotSupported is the kernel's internal ENOTSUPP, with which NVIDIA's
// driver refuses to map its buffers.
const kernelNotSupported = syscall.Errno(524)

// openDMABuf maps length bytes of a DMA buffer, from offset on. Like the
// kernel, it fails with EBADF if fd is not open, and with EINVAL if fd is not a
// DMA buffer or the buffer does not have that range. It fails with EOPNOTSUPP
// if the processor cannot access the buffer's memory.
func openDMABuf(fd int, offset, length uint64, write bool) (*dmabuf, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	if uint32(fs.Type) != dmabufMagic {
		return nil, syscall.EINVAL
	}
	size, err := syscall.Seek(fd, 0, 2) // returns the size, and does not move the offset of a DMA buffer
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
		switch err {
		case syscall.EINVAL, syscall.ENODEV, kernelNotSupported: // the driver does not map the buffer into user space
			return nil, syscall.EOPNOTSUPP
		}
		return nil, err
	}
	d.memory = d.pages[within : within+length : within+length]
	if err := d.sync(syncStart); err != nil {
		_ = syscall.Munmap(d.pages)
		syscall.Close(d.fd)
		return nil, err
	}
	return d, nil
}

// sync starts or ends the processor's access to the buffer. when is syncStart
// or syncEnd.
func (d *dmabuf) sync(when uint64) error {
	flags := when | syncRW // struct dma_buf_sync
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(d.fd), syncRequest, uintptr(unsafe.Pointer(&flags)))
		switch errno {
		case 0:
			return nil
		case syscall.EINTR, syscall.EAGAIN:
		default:
			return errno
		}
	}
}

// close unmaps the buffer. No work request may use it any more.
func (d *dmabuf) close() {
	_ = d.sync(syncEnd) // an error is ignored, as nothing else can be done
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
	// libibverbs shows the offset as the address, although it is none.
	c, failed := l.add(p, &mr{access: access, dmabuf: d}, uintptr(offset), func(domain *engine.PD) (*engine.MR, error) {
		return domain.RegisterMR(d.memory, iova, access)
	})
	if failed != 0 {
		d.close()
	}
	return c, failed
}
