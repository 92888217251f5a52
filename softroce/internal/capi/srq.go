// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// srq is a shared receive queue.
type srq struct {
	c      *libibverbs.Srq
	e      *engine.SRQ
	domain *pd
	events eventCounts
}

func (s *srq) soft() *softSRQ { return (*softSRQ)(unsafe.Pointer(s.c)) }

// softSRQ has the first fields of struct soft_srq, in ring.h.
type softSRQ struct {
	libibverbs.Srq
	queue engine.WorkQueue
}

func init() {
	verbs.CreateSrq = func(p *libibverbs.Pd, a *libibverbs.SrqInitAttr) (*libibverbs.Srq, syscall.Errno) {
		x := libibverbs.SrqInitAttrEx{Attr: a.Attr, SrqType: libibverbs.IBV_SRQT_BASIC}
		s, err := self().createSRQ(p, &x, contextOf(&a.SrqContext))
		a.Attr = x.Attr
		return s, err
	}
	verbs.CreateSrqEx = func(c *libibverbs.Context, a *libibverbs.SrqInitAttrEx) (*libibverbs.Srq, syscall.Errno) {
		if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_PD == 0 || a.Pd == nil || a.Pd.Context != c {
			return nil, syscall.EINVAL
		}
		x := libibverbs.SrqInitAttrEx{Attr: a.Attr, CompMask: a.CompMask, SrqType: a.SrqType} // all but the context
		if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_TYPE == 0 {
			x.SrqType = libibverbs.IBV_SRQT_BASIC
		}
		s, err := self().createSRQ(a.Pd, &x, contextOf(&a.SrqContext))
		a.Attr = x.Attr
		return s, err
	}
	verbs.GetSrqNum = func(c *libibverbs.Srq, number *uint32) syscall.Errno {
		return syscall.EOPNOTSUPP // only SRQs for XRC have a number
	}
	verbs.ModifySrq = func(c *libibverbs.Srq, a *libibverbs.SrqAttr, mask libibverbs.SrqAttrMask) syscall.Errno {
		return self().modifySRQ(c, a, mask)
	}
	verbs.QuerySrq = func(c *libibverbs.Srq, a *libibverbs.SrqAttr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		s := l.srqs[c]
		if s == nil {
			return syscall.EINVAL
		}
		attr, err := s.e.Attr()
		*a = attr
		return errno(err)
	}
	verbs.DestroySrq = func(c *libibverbs.Srq) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.destroySRQ(c)
	}
}

func (l *library) createSRQ(p *libibverbs.Pd, a *libibverbs.SrqInitAttrEx, context uintptr) (*libibverbs.Srq, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if err := l.deviceOf(p.Context).CheckSRQ(a); err != nil {
		return nil, errno(err)
	}
	raw, err := newSRQ(a.Attr.MaxWr, a.Attr.MaxSge)
	if raw == nil {
		return nil, errno(err)
	}
	e, err := domain.e.CreateSRQ(a, &raw.queue)
	if err != nil {
		freeSRQ(raw)
		return nil, errno(err)
	}
	s := &srq{c: (*libibverbs.Srq)(unsafe.Pointer(raw)), e: e, domain: domain}
	domain.users++
	s.c.Context, s.c.Pd = p.Context, p
	setContext(&s.c.SrqContext, context)
	l.srqs[s.c], l.bySRQ[e] = s, s
	return s.c, 0
}

func (l *library) modifySRQ(c *libibverbs.Srq, a *libibverbs.SrqAttr, mask libibverbs.SrqAttrMask) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	s := l.srqs[c]
	if s == nil {
		return syscall.EINVAL
	}
	if mask&libibverbs.IBV_SRQ_MAX_WR == 0 {
		return errno(s.e.Modify(*a, mask, nil, 0))
	}
	size := ringSize(min(a.MaxWr, 1<<30))
	slots := allocMemory(uint64(size), uint64(s.soft().queue.Stride))
	if slots == nil {
		return syscall.ENOMEM
	}
	l.Unlock() // queues are locked before the node
	lockSRQ(s.soft())
	defer unlockSRQ(s.soft())
	l.Lock()
	if l.srqs[c] != s {
		freeMemory(slots)
		return syscall.EINVAL
	}
	old := s.soft().queue.Slots
	if err := s.e.Modify(*a, mask, slots, size); err != nil {
		freeMemory(slots)
		return errno(err)
	}
	freeMemory(old)
	return 0
}

func (l *library) destroySRQ(c *libibverbs.Srq) syscall.Errno {
	s := l.srqs[c]
	if s == nil {
		return syscall.EINVAL
	}
	if err := s.e.Destroy(); err != nil {
		return errno(err)
	}
	l.Hear() // the doorbell's list may still link the queue
	delete(l.bySRQ, s.e)
	l.retire(c.Context, &s.events)
	delete(l.srqs, c)
	s.domain.users--
	freeSRQ(s.soft())
	return 0
}
