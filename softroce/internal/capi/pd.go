// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// pd is a protection domain, or a parent domain. A parent domain uses the
// engine's object of its protection domain.
type pd struct {
	c        *libibverbs.Pd
	e        *engine.PD
	file     *deviceFile // file of the context that the domain was created with
	imported bool        // whether the domain was imported, and e belongs to another one
	of       *pd         // protection domain of a parent domain; nil for protection domains
	td       *td         // thread domain of a parent domain, or nil
	from     *allocator  // allocator of a parent domain, in C's memory, or nil
	users    int         // objects that were created with the domain, and parent domains of it
}

// td is a thread domain. It has no effect: the device always locks.
type td struct {
	c     *libibverbs.Td
	users int // parent domains that have the thread domain
}

// allocator has the fields of struct soft_allocator, in c.h.
type allocator struct {
	pd          *libibverbs.Pd
	alloc, free unsafe.Pointer
	context     uintptr
}

func init() {
	verbs.AllocPd = func(c *libibverbs.Context) (*libibverbs.Pd, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocPD(c)
	}
	verbs.DeallocPd = func(p *libibverbs.Pd) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deallocPD(p)
	}
	verbs.AllocTd = func(c *libibverbs.Context, a *libibverbs.TdInitAttr) (*libibverbs.Td, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocTD(c, a)
	}
	verbs.DeallocTd = func(t *libibverbs.Td) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deallocTD(t)
	}
	verbs.AllocParentDomain = func(c *libibverbs.Context, a *libibverbs.ParentDomainInitAttr) (*libibverbs.Pd, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocParentDomain(c, a)
	}
}

// domain returns the protection domain or parent domain that the program knows
// as c. It returns nil if there is none, if the protection domain was
// deallocated by its importer or exporter, or if its context is or is being
// closed. A
// domain remains after the close of its context while an importer uses it.
func (l *library) domain(c *libibverbs.Pd) *pd {
	p := l.pds[c]
	if p == nil || p.e.Destroyed() || !l.isOpen(c.Context) {
		return nil
	}
	return p
}

// protectionDomains returns the number of protection domains of a device,
// without parent domains and imports.
func (l *library) protectionDomains(device *libibverbs.Device) (n int) {
	for _, p := range l.pds {
		if p.of == nil && !p.imported && p.c.Context.Device == device {
			n++
		}
	}
	return n
}

func (l *library) allocPD(c *libibverbs.Context) (*libibverbs.Pd, syscall.Errno) {
	device := l.deviceOf(c)
	if device == nil {
		return nil, syscall.EINVAL
	}
	e, err := device.CreatePD()
	if err != nil {
		return nil, errno(err)
	}
	p := &pd{c: alloc[libibverbs.Pd](), e: e, file: l.contexts[c].file}
	l.handle++
	p.c.Context, p.c.Handle = c, l.handle
	l.pds[p.c] = p
	return p.c, 0
}

// deallocPD deallocates a protection domain or a parent domain. It fails with
// EBUSY while the domain has users. As in the kernel, an import is
// deallocated together with the original.
func (l *library) deallocPD(c *libibverbs.Pd) syscall.Errno {
	p := l.pds[c]
	if p == nil {
		return syscall.EINVAL
	}
	if p.users > 0 {
		return syscall.EBUSY
	}
	if p.of == nil {
		if p.e.Destroyed() {
			return syscall.EINVAL
		}
		if err := p.e.Destroy(); err != nil {
			return errno(err)
		}
	} else {
		p.of.users--
	}
	if p.td != nil {
		p.td.users--
	}
	free(p.from)
	delete(l.pds, c)
	free(c)
	return 0
}

func (l *library) allocTD(c *libibverbs.Context, a *libibverbs.TdInitAttr) (*libibverbs.Td, syscall.Errno) {
	if err := l.checkDomains(c); err != 0 {
		return nil, err
	}
	if a == nil {
		return nil, syscall.EINVAL
	}
	if a.CompMask != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	t := &td{c: alloc[libibverbs.Td]()}
	t.c.Context = c
	l.tds[t.c] = t
	return t.c, 0
}

// deallocTD deallocates a thread domain. It fails with EBUSY while parent
// domains have it.
func (l *library) deallocTD(c *libibverbs.Td) syscall.Errno {
	t := l.tds[c]
	if t == nil {
		return syscall.EINVAL
	}
	if t.users > 0 {
		return syscall.EBUSY
	}
	delete(l.tds, c)
	free(c)
	return 0
}

// checkDomains returns the error with which the device of c refuses thread
// domains and parent domains, or 0.
func (l *library) checkDomains(c *libibverbs.Context) syscall.Errno {
	device := l.deviceOf(c)
	if device == nil {
		return syscall.EINVAL
	}
	return errno(device.CheckParentDomain())
}

// allocating calls f with the domain's allocator, which is nil if there is
// none. If there is one, f may call functions of the program, so the node is
// unlocked meanwhile. The domain remains.
func (l *library) allocating(domain *pd, f func(*allocator)) {
	if domain == nil || domain.from == nil || domain.from.free == nil {
		f(nil)
		return
	}
	domain.users++
	l.unlocked(domain.c.Context, func() { f(domain.from) })
	domain.users--
}

// abandonMemory makes queues of the context c leave their memory to the
// program: what the program's allocators need may be gone when the program
// closes the context before its queues.
func (l *library) abandonMemory(c *libibverbs.Context) {
	for _, p := range l.pds {
		if p.c.Context == c && p.from != nil {
			p.from.free = nil
		}
	}
}

// allocParentDomain allocates a parent domain of a protection domain.
func (l *library) allocParentDomain(c *libibverbs.Context, a *libibverbs.ParentDomainInitAttr) (*libibverbs.Pd, syscall.Errno) {
	const known = libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT |
		libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC
	if err := l.checkDomains(c); err != 0 {
		return nil, err
	}
	if a == nil {
		return nil, syscall.EINVAL
	}
	// The program may change its struct meanwhile.
	mask, thread := a.CompMask, a.Td
	if mask&^known != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	var from allocator
	if mask&libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 {
		if from.alloc, from.free = a.Alloc, a.Free; from.alloc == nil || from.free == nil {
			return nil, syscall.EINVAL
		}
	}
	of := l.domain(a.Pd)
	if of == nil || of.of != nil || of.c.Context != c {
		return nil, syscall.EINVAL
	}
	p := &pd{e: of.e, file: of.file, of: of}
	if thread != nil {
		if p.td = l.tds[thread]; p.td == nil || p.td.c.Context != c {
			return nil, syscall.EINVAL
		}
		p.td.users++
	}
	of.users++
	p.c = alloc[libibverbs.Pd]()
	p.c.Context, p.c.Handle = c, of.c.Handle
	if from.alloc != nil {
		p.from = alloc[allocator]()
		p.from.pd, p.from.alloc, p.from.free = p.c, from.alloc, from.free
		if mask&libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
			p.from.context = contextOf(&a.PdContext)
		}
	}
	l.pds[p.c] = p
	return p.c, 0
}
