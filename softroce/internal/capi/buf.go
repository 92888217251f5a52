// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// buf is memory that ibv_alloc_buf allocated. It is ordinary memory, as the
// device can access all memory of the program.
type buf struct {
	domain *engine.PD     // protection domain for which it was allocated
	addr   unsafe.Pointer // address of the memory, which C's allocator allocated
	size   uint64
}

func init() {
	verbs.AllocBuf = func(p *libibverbs.Pd, size uint64, out **libibverbs.Buf) (unsafe.Pointer, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		domain := l.domain(p)
		if domain == nil || size == 0 {
			return nil, syscall.EINVAL
		}
		addr := allocPages(size)
		if addr == nil {
			return nil, syscall.ENOMEM
		}
		// Programs see the address of this word, whose type is opaque.
		*out = (*libibverbs.Buf)(unsafe.Pointer(alloc[uint64]()))
		l.bufs[*out] = &buf{domain.e, addr, size}
		return addr, 0
	}
	verbs.RegBufMr = func(p *libibverbs.Pd, b *libibverbs.Buf, addr uintptr, length uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		if !self().inBuf(p, b, addr, length) {
			return nil, syscall.EINVAL
		}
		return self().register(p, addr, length, uint64(addr), access)
	}
	verbs.FreeBuf = func(b *libibverbs.Buf) {
		l := self()
		l.Lock()
		defer l.Unlock()
		if known := l.bufs[b]; known != nil {
			delete(l.bufs, b)
			freeMemory(known.addr)
			free(b)
		}
	}
	verbs.ExportBufDmabufFd = func(b *libibverbs.Buf) (int, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		if l.bufs[b] == nil {
			return -1, syscall.EINVAL
		}
		return -1, syscall.ENODATA // the kernel's error for memory that is not a DMA buffer
	}
}

// inBuf reports whether the length bytes from addr on lie within the buffer c,
// and c was allocated for the protection domain p.
func (l *library) inBuf(p *libibverbs.Pd, c *libibverbs.Buf, addr uintptr, length uint64) bool {
	l.Lock()
	defer l.Unlock()
	b, domain := l.bufs[c], l.domain(p)
	if b == nil || domain == nil || b.domain != domain.e {
		return false
	}
	offset := uint64(addr) - uint64(uintptr(b.addr))
	return offset <= b.size && length <= b.size-offset
}
