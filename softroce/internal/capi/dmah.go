// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// dmah is a DMA handle. Its hints are about PCIe, and have no effect on the
// device.
type dmah struct {
	c       *libibverbs.Dmah
	file    *deviceFile
	regions int // regions that were registered with the handle
}

func init() {
	verbs.AllocDmah = func(c *libibverbs.Context, a *libibverbs.DmahInitAttr) (*libibverbs.Dmah, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocDmah(c, a)
	}
	verbs.DeallocDmah = func(h *libibverbs.Dmah) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deallocDmah(h)
	}
}

// allocDmah allocates a DMA handle. It fails as Linux and its driver mlx5, the
// only one with such handles, do.
func (l *library) allocDmah(c *libibverbs.Context, a *libibverbs.DmahInitAttr) (*libibverbs.Dmah, syscall.Errno) {
	const (
		cpu   = libibverbs.IBV_DMAH_INIT_ATTR_MASK_CPU_ID
		hint  = libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH
		kind  = libibverbs.IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
		hints = 3 // largest processing hint
	)
	if !l.isOpen(c) || a == nil {
		return nil, syscall.EINVAL
	}
	mask := a.CompMask
	switch {
	case mask&^(cpu|hint|kind) != 0,
		mask&kind != 0 && libibverbs.TphMemType(a.TphMemType) > libibverbs.IBV_TPH_MEM_TYPE_PM:
		return nil, syscall.EOPNOTSUPP
	case mask&cpu != 0 && !mayRunOn(a.CpuId):
		return nil, syscall.EPERM
	case mask&hint == 0, a.Ph > hints, (mask&cpu == 0) != (mask&kind == 0):
		return nil, syscall.EINVAL
	}
	h := &dmah{c: alloc[libibverbs.Dmah](), file: l.contexts[c].file}
	h.c.Context = c
	l.dmahs[h.c] = h
	return h.c, 0
}

// mayRunOn reports whether the calling thread may run on a CPU.
func mayRunOn(cpu uint32) bool {
	const bits = 64
	var set [1 << 16 / bits]uint64 // Linux has far fewer CPUs
	n, _, err := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	return err == 0 && uint64(cpu) < 8*uint64(n) && set[cpu/bits]>>(cpu%bits)&1 != 0
}

// deallocDmah deallocates a DMA handle. It fails with EBUSY while regions have
// it.
func (l *library) deallocDmah(c *libibverbs.Dmah) syscall.Errno {
	h := l.dmahs[c]
	if h == nil {
		return syscall.EINVAL
	}
	if h.regions > 0 {
		return syscall.EBUSY
	}
	l.forgetDmah(h)
	return 0
}

// closeDmah ends a DMA handle as its context is being closed. Regions that
// importers keep do not need theirs.
func (l *library) closeDmah(c *libibverbs.Dmah) syscall.Errno {
	l.forgetDmah(l.dmahs[c])
	return 0
}

func (l *library) forgetDmah(h *dmah) {
	delete(l.dmahs, h.c)
	free(h.c)
}

// withDmah makes a region of the domain p with a DMA handle. register does
// this.
func (l *library) withDmah(
	p *libibverbs.Pd, c *libibverbs.Dmah, register func() (*libibverbs.Mr, syscall.Errno),
) (out *libibverbs.Mr, err syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	h, domain := l.dmahs[c], l.domain(p)
	if h == nil || domain == nil || h.file != domain.file {
		return nil, syscall.EINVAL
	}
	h.regions++
	l.unlocked(p.Context, func() { out, err = register() })
	if m := l.mrs[out]; m != nil {
		m.dmah = h
	} else { // it failed
		h.regions--
	}
	return out, err
}
