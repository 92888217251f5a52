// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RegisterOnDemand creates a region of size bytes of the program's memory from
// the address start on, which is paged on demand: the memory need not be mapped
// before a request uses it. With start 0 and size math.MaxUint64, the region is
// the whole address space. access must have IBV_ACCESS_ON_DEMAND.
//
// RegisterOnDemand fails with EINVAL if the device cannot register the whole
// address space, and for the whole address space with an iova or with huge
// pages. Otherwise it fails like RegisterMR.
func (p *PD) RegisterOnDemand(start, size, iova uint64, access libibverbs.AccessFlags) (*MR, error) {
	return p.register(&MR{size: size, start: start, paged: true, access: access}, func() error {
		switch {
		case access&libibverbs.IBV_ACCESS_ON_DEMAND == 0:
			return syscall.EINVAL
		case start == 0 && size == math.MaxUint64:
			if p.device.limits.ODP < 2 || iova != 0 || access&libibverbs.IBV_ACCESS_HUGETLB != 0 {
				return syscall.EINVAL
			}
			return nil
		case start+size < start:
			return syscall.EINVAL
		}
		return checkRange(start, size, iova, access)
	}, iova)
}

// Prefetch checks the program's advice to fetch length bytes from addr on, in
// the region whose local key is key, and returns their address in the program.
// write says whether the device will write to them. Prefetch fails with EFAULT
// if the region does not belong to the domain, is not paged on demand, lacks
// some of the bytes, or does not permit writing.
func (p *PD) Prefetch(addr, length uint64, key uint32, write bool) (start uint64, err error) {
	if err := p.device.check(); err != nil {
		return 0, err
	}
	access := libibverbs.AccessFlags(0)
	if write {
		access = libibverbs.IBV_ACCESS_LOCAL_WRITE
	}
	m := p.device.local(p, addr, length, key, access)
	if m == nil || !m.paged {
		return 0, syscall.EFAULT
	}
	return m.address(addr), nil
}

// AllocNullMR creates a region without memory, which only local requests can
// use. It fails with EOPNOTSUPP if the device has no such regions, and with
// ENOMEM if there are too many regions.
func (p *PD) AllocNullMR() (*MR, error) {
	return p.register(&MR{size: math.MaxUint64, access: libibverbs.IBV_ACCESS_LOCAL_WRITE}, func() error {
		if !p.device.limits.NullMR {
			return syscall.EOPNOTSUPP
		}
		return nil
	}, 0)
}

// endOfMemory is an address above all memory that programs can have. Above it,
// an amd64 processor does not report at which address a program faults.
var endOfMemory = func() uint64 {
	if runtime.GOARCH == "amd64" {
		return 1 << 47
	}
	return 1 << 56
}()

// possible reports whether a program can have memory at the n addresses from
// addr on. No program has any in the first page, where Go takes a fault for the
// use of a nil pointer.
func possible(addr, n uint64) bool {
	return addr >= pageSize && addr <= endOfMemory && n <= endOfMemory-addr
}

// memoryAt returns the n bytes at the address addr, which may not be mapped. In
// Go's own heap they may span several objects, which checkptr, part of builds
// with -race, would report.
//
//go:nocheckptr
func memoryAt(addr, n uint64) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// fetch copies the memory at the address from to dst. It returns false if some
// of the memory is not mapped.
//
// A peer may choose any address in a region of the whole address space. So
// fetch never holds the address as a pointer: Go's garbage collector would
// follow it.
func fetch(dst []byte, from uint64) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			faultOf(r, nil) // panics again if r is not a fault
			ok = false
		}
	}()
	fetchBytes(dst, uintptr(from))
	return true
}

// fetchBytes copies the memory at the address from to dst, as copyBytes does.
//
//go:norace
//go:nocheckptr
func fetchBytes(dst []byte, from uintptr) {
	for ; len(dst) >= 64; dst, from = dst[64:], from+64 {
		*(*[64]byte)(dst) = *(*[64]byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from)))
	}
	for ; len(dst) > 0; dst, from = dst[1:], from+1 {
		dst[0] = *(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from)))
	}
}
