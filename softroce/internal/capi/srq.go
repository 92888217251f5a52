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
	xrcd   *xrcd // for XRC, the domain; otherwise nil
	cq     *cq   // for XRC and a queue that matches tags, the completion queue; otherwise nil
	events eventCounts
}

func (s *srq) soft() *softSRQ { return (*softSRQ)(unsafe.Pointer(s.c)) }

// softSRQ has the first fields of struct soft_srq, in ring.h.
type softSRQ struct {
	libibverbs.Srq
	queue engine.WorkQueue
	ops   engine.WorkQueue // only for a queue that matches tags
	from  *allocator       // has the slots of the queue; nil: C's allocator has
}

func init() {
	verbs.CreateSrq = func(p *libibverbs.Pd, a *libibverbs.SrqInitAttr) (*libibverbs.Srq, syscall.Errno) {
		x := libibverbs.SrqInitAttrEx{Attr: a.Attr, SrqType: libibverbs.IBV_SRQT_BASIC}
		s, err := self().createSRQ(p, &x, contextOf(&a.SrqContext))
		if err == 0 {
			a.Attr = x.Attr
		}
		return s, err
	}
	verbs.CreateSrqEx = func(c *libibverbs.Context, a *libibverbs.SrqInitAttrEx) (*libibverbs.Srq, syscall.Errno) {
		x := copySRQInit(a)
		s, err := self().createSRQEx(c, &x, contextOf(&a.SrqContext))
		if err == 0 {
			a.Attr = x.Attr
		}
		return s, err
	}
	verbs.GetSrqNum = func(c *libibverbs.Srq, number *uint32) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		s := l.srqs[c]
		switch {
		case s == nil:
			return syscall.EINVAL
		case s.e.Number() == 0:
			return syscall.EOPNOTSUPP // only SRQs for XRC have a number
		}
		*number = s.e.Number()
		return 0
	}
	verbs.ModifySrq = func(c *libibverbs.Srq, a *libibverbs.SrqAttr, mask libibverbs.SrqAttrMask) syscall.Errno {
		return self().modifySRQ(c, *a, mask)
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
	verbs.PostSrqOps = func(c *libibverbs.Srq, op *libibverbs.OpsWr, bad **libibverbs.OpsWr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.postOps(c, op, bad)
	}
	verbs.DestroySrq = func(c *libibverbs.Srq) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		if l.srqs[c] == nil || !l.isOpen(c.Context) {
			return syscall.EINVAL
		}
		return l.destroySRQ(c)
	}
}

// copySRQInit returns a copy of a program's struct, which the program may
// change meanwhile, but for the context. Programs with old headers do not have
// tm_cap, and do not name it in the mask.
func copySRQInit(a *libibverbs.SrqInitAttrEx) libibverbs.SrqInitAttrEx {
	x := libibverbs.SrqInitAttrEx{
		Attr: a.Attr, CompMask: a.CompMask, SrqType: a.SrqType, Pd: a.Pd, Xrcd: a.Xrcd, Cq: a.Cq,
	}
	if x.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_TYPE == 0 {
		x.SrqType = libibverbs.IBV_SRQT_BASIC
	}
	if x.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_TM != 0 {
		x.TmCap = a.TmCap
	}
	return x
}

// createSRQEx creates a shared receive queue of any type. a is a copy of the
// program's struct.
func (l *library) createSRQEx(c *libibverbs.Context, a *libibverbs.SrqInitAttrEx, context uintptr) (*libibverbs.Srq, syscall.Errno) {
	if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_PD == 0 || a.Pd == nil || a.Pd.Context != c {
		return nil, syscall.EINVAL
	}
	return l.createSRQ(a.Pd, a, context)
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
	var raw *softSRQ
	var err error
	l.allocating(domain, func(from *allocator) { raw, err = newSRQ(a.Attr.MaxWr, a.Attr.MaxSge, from) })
	if raw == nil {
		return nil, errno(err)
	}
	s, err := l.newSRQ(domain, a, raw)
	if err != nil {
		l.allocating(domain, func(*allocator) { freeSRQ(raw) })
		return nil, errno(err)
	}
	setContext(&s.c.SrqContext, context)
	return s.c, 0
}

// newSRQ returns the shared receive queue for an object that the program has
// not got yet.
func (l *library) newSRQ(domain *pd, a *libibverbs.SrqInitAttrEx, raw *softSRQ) (*srq, error) {
	p := domain.c
	if l.domain(p) != domain { // the call of the program's allocator has unlocked the node
		return nil, syscall.EINVAL
	}
	s := &srq{c: (*libibverbs.Srq)(unsafe.Pointer(raw)), domain: domain}
	var xrcd *engine.XRCD
	var cq *engine.CQ
	if a.SrqType == libibverbs.IBV_SRQT_XRC {
		s.xrcd, s.cq = l.xrcds[a.Xrcd], l.cqs[a.Cq]
		if s.xrcd == nil || s.cq == nil || s.xrcd.c.Context != p.Context || s.cq.c.Context != p.Context {
			return nil, syscall.EINVAL
		}
		xrcd, cq = s.xrcd.domain.e, s.cq.e
	}
	tags := a.SrqType == libibverbs.IBV_SRQT_TM
	if tags {
		if s.cq = l.cqs[a.Cq]; s.cq == nil || s.cq.c.Context != p.Context {
			return nil, syscall.EINVAL
		}
		cq = s.cq.e
	}
	var err error
	if tags {
		s.e, err = domain.e.CreateTagSRQ(a, &raw.queue, &raw.ops, cq)
	} else {
		s.e, err = domain.e.CreateSRQ(a, &raw.queue, xrcd, cq)
	}
	if err != nil {
		return nil, err
	}
	domain.users++
	if s.xrcd != nil {
		s.xrcd.users++
	}
	s.c.Context, s.c.Pd = p.Context, p
	l.srqs[s.c], l.bySRQ[s.e] = s, s
	l.checkShared(s)
	return s, nil
}

func (l *library) modifySRQ(c *libibverbs.Srq, a libibverbs.SrqAttr, mask libibverbs.SrqAttrMask) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	s := l.srqs[c]
	if s == nil || !l.isOpen(c.Context) {
		return syscall.EINVAL
	}
	if mask&libibverbs.IBV_SRQ_MAX_WR == 0 {
		return errno(s.e.Modify(a, mask, nil, 0))
	}
	if a.MaxWr > l.deviceOf(c.Context).Limits().SRQWR {
		return syscall.EINVAL
	}
	size, stride := ringSize(a.MaxWr), s.soft().queue.Stride
	s.domain.users++ // the allocator must outlive the call, even if another thread destroys the queue
	defer func() { s.domain.users-- }()
	var unused unsafe.Pointer // memory that the queue does not use: the new slots until they are taken, then the old ones
	var from *allocator
	var err error
	l.allocating(s.domain, func(a *allocator) { unused, from, err = allocQueue(a, uint64(size), uint64(stride), resourceSRQ) })
	if unused == nil {
		return errno(err)
	}
	err = l.holdSRQ(s, func(raw *softSRQ) error {
		old := raw.queue.Slots
		if err := s.e.Modify(a, mask, unused, size); err != nil {
			return err
		}
		unused, from, raw.from = old, raw.from, from
		return nil
	})
	l.allocating(s.domain, func(*allocator) { freeQueue(from, unused, resourceSRQ) })
	return errno(err)
}

// holdSRQ runs f while no thread posts to the queue. It waits for such a
// thread, and unlocks the node meanwhile, as hold does. It returns EINVAL if
// the queue was destroyed.
func (l *library) holdSRQ(s *srq, f func(*softSRQ) error) error {
	if l.srqs[s.c] != s {
		return syscall.EINVAL
	}
	raw := s.soft()
	l.unlocked(s.c.Context, func() { lockSRQ(raw) })
	defer unlockSRQ(raw)
	if l.srqs[s.c] != s {
		return syscall.EINVAL
	}
	return f(raw)
}

func (l *library) destroySRQ(c *libibverbs.Srq) syscall.Errno {
	s := l.srqs[c]
	if s == nil {
		return syscall.EINVAL
	}
	if err := l.destroyEngineSRQ(s); err != nil {
		return errno(err)
	}
	if s.xrcd != nil {
		s.xrcd.users--
	}
	l.Hear() // the doorbell's list may still link the queue
	delete(l.srqs, c)
	delete(l.bySRQ, s.e)
	l.retire(c.Context, address(c), &s.events)
	if checking {
		forgetQueue(&s.soft().queue)
	}
	l.allocating(s.domain, func(*allocator) { freeSRQ(s.soft()) })
	s.domain.users--
	return 0
}

// destroyEngineSRQ destroys the engine's part of a shared receive queue. If the
// queue is for XRC or matches tags, no thread may poll its completion queue
// meanwhile. So destroyEngineSRQ waits for such threads, and unlocks the node
// while it waits, as hold does.
func (l *library) destroyEngineSRQ(s *srq) error {
	if s.cq == nil {
		return s.e.Destroy()
	}
	l.unlocked(s.c.Context, func() { lockCQ(s.cq.soft()) }) // which cannot be destroyed while the shared receive queue exists
	defer unlockCQ(s.cq.soft())
	if l.srqs[s.c] != s {
		return syscall.EINVAL
	}
	return s.e.Destroy()
}

// postOps executes a list of operations on the tag list of a queue, up to the
// first that fails. It stores that one in bad.
func (l *library) postOps(c *libibverbs.Srq, op *libibverbs.OpsWr, bad **libibverbs.OpsWr) syscall.Errno {
	s := l.srqs[c]
	for ; op != nil; op = op.Next {
		if err := postOp(s, op); err != nil {
			*bad = op
			return errno(err)
		}
	}
	return 0
}

func postOp(s *srq, op *libibverbs.OpsWr) error {
	if s == nil {
		return syscall.EINVAL
	}
	var segments []libibverbs.Sge
	if op.Opcode == libibverbs.IBV_WR_TAG_ADD { // other operations leave op.Tm.Add undefined
		add := &op.Tm.Add
		list, n := add.SgList, add.NumSge
		if n < 0 || n > 0 && list == nil {
			return syscall.EINVAL
		}
		segments = unsafe.Slice(list, n)
	}
	return s.e.PostOp(op, segments)
}
