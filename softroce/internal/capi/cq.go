// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"slices"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// cq is a completion queue.
type cq struct {
	c      *libibverbs.Cq
	e      *engine.CQ
	domain *pd // parent domain with which the queue was created, or nil
	events eventCounts
	wake   func() bool // wakes the goroutine that waits for the queue, and reports whether one does; does nothing before setWake
}

func (q *cq) soft() *softCQ { return (*softCQ)(unsafe.Pointer(q.c)) }

// softCQ has the first fields of struct soft_cq, in ring.h.
type softCQ struct {
	libibverbs.CqEx // begins with the fields of Cq
	ring            engine.CompletionQueue
	id              uint64 // number of the queue in C's table of queues
	empty           uint32 // number of empty polls since the queue had a completion or was armed
	_               [3]uint32
	from            *allocator // has the entries of the ring; nil: C's allocator has
}

// completionFields are the optional fields that extended completions may have.
const completionFields = libibverbs.IBV_WC_EX_WITH_BYTE_LEN | libibverbs.IBV_WC_EX_WITH_IMM |
	libibverbs.IBV_WC_EX_WITH_QP_NUM | libibverbs.IBV_WC_EX_WITH_SRC_QP | libibverbs.IBV_WC_EX_WITH_SLID |
	libibverbs.IBV_WC_EX_WITH_SL | libibverbs.IBV_WC_EX_WITH_DLID_PATH_BITS | libibverbs.IBV_WC_EX_WITH_TM_INFO |
	libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK

func init() {
	verbs.CreateCq = func(c *libibverbs.Context, cqe int32, cqContext uintptr, channel *libibverbs.CompChannel, vector int32) (*libibverbs.Cq, syscall.Errno) {
		return self().createCQ(c, int64(cqe), cqContext, channel, vector, nil)
	}
	verbs.CreateCqEx = func(c *libibverbs.Context, a *libibverbs.CqInitAttrEx) (*libibverbs.CqEx, syscall.Errno) {
		const masks = libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS | libibverbs.IBV_CQ_INIT_ATTR_MASK_PD
		const flags = libibverbs.IBV_CREATE_CQ_ATTR_SINGLE_THREADED
		x := libibverbs.CqInitAttrEx{WcFlags: a.WcFlags, CompMask: a.CompMask} // which the program may change meanwhile
		if x.CompMask&libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
			x.Flags = a.Flags
		}
		if x.CompMask&libibverbs.IBV_CQ_INIT_ATTR_MASK_PD != 0 {
			x.ParentDomain = a.ParentDomain
		}
		if x.CompMask&^masks != 0 || x.WcFlags&^uint64(completionFields) != 0 || x.Flags&^flags != 0 {
			return nil, syscall.EOPNOTSUPP
		}
		q, err := self().createCQ(c, int64(a.Cqe), contextOf(&a.CqContext), a.Channel, int32(a.CompVector), &x)
		return (*libibverbs.CqEx)(unsafe.Pointer(q)), err
	}
	verbs.ResizeCq = func(q *libibverbs.Cq, cqe int32) syscall.Errno { return self().resizeCQ(q, cqe) }
	verbs.ModifyCq = func(q *libibverbs.Cq, a *libibverbs.ModifyCqAttr) syscall.Errno { return self().modifyCQ(q, a) }
	verbs.DestroyCq = func(q *libibverbs.Cq) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		if l.cqs[q] == nil || !l.isOpen(q.Context) {
			return syscall.EINVAL
		}
		return l.destroyCQ(q)
	}
}

// createCQ creates a completion queue for cqe completions. extended has the
// other attributes of a queue for ibv_create_cq_ex; it is nil for
// ibv_create_cq.
func (l *library) createCQ(c *libibverbs.Context, cqe int64, cqContext uintptr, channel *libibverbs.CompChannel, vector int32, extended *libibverbs.CqInitAttrEx) (*libibverbs.Cq, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	device := l.deviceOf(c)
	if device == nil || vector < 0 || vector >= compVectors || cqe < 0 || channel != nil && (l.channels[channel] == nil || channel.Context != c) {
		return nil, syscall.EINVAL
	}
	if err := device.CheckCQE(uint32(cqe)); err != nil {
		return nil, errno(err)
	}
	var domain *pd
	var fields uint64
	if extended != nil {
		fields = extended.WcFlags
		if extended.CompMask&libibverbs.IBV_CQ_INIT_ATTR_MASK_PD != 0 {
			domain = l.domain(extended.ParentDomain)
			if domain == nil || domain.of == nil || domain.c.Context != c {
				return nil, syscall.EINVAL
			}
		}
	}
	var raw *softCQ
	var err error
	limits := l.Node.Limits()
	l.allocating(domain, func(a *allocator) { raw, err = newCQ(uint32(cqe), fields, extended != nil, limits, a) })
	if raw == nil {
		return nil, errno(err)
	}
	var e *engine.CQ
	if !l.isOpen(c) || channel != nil && (l.channels[channel] == nil || channel.Context != c) {
		err = syscall.EINVAL // the call of the program's allocator has unlocked the node
	} else {
		e, err = device.CreateCQ(&raw.ring)
	}
	if err != nil {
		retireCQ(raw) // has no events
		l.allocating(domain, func(*allocator) { freeCQ(raw) })
		return nil, errno(err)
	}
	q := &cq{c: (*libibverbs.Cq)(unsafe.Pointer(raw)), e: e, domain: domain, wake: func() bool { return false }}
	if domain != nil {
		domain.users++
	}
	q.c.Context, q.c.Channel, q.c.Cqe = c, channel, int32(cqe)
	setContext(&q.c.CqContext, cqContext)
	if channel != nil {
		channel.Refcnt++
	}
	l.cqs[q.c], l.byCQ[e] = q, q
	return q.c, 0
}

// setWake sets the function that wakes the goroutine which waits for the queue.
// It returns false if there is no such queue.
func (l *library) setWake(c *libibverbs.Cq, wake func() bool) bool {
	l.Lock()
	defer l.Unlock()
	q := l.cqs[c]
	if q != nil {
		q.wake = wake
	}
	return q != nil
}

func (l *library) resizeCQ(c *libibverbs.Cq, cqe int32) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	q := l.cqs[c]
	if q == nil || cqe < 0 || !l.isOpen(c.Context) {
		return syscall.EINVAL
	}
	if err := l.deviceOf(c.Context).CheckCQE(uint32(cqe)); err != nil {
		return errno(err)
	}
	size := ringSize(uint32(cqe))
	if q.domain != nil {
		q.domain.users++ // the allocator must outlive the call, even if another thread destroys the queue
		defer func() { q.domain.users-- }()
	}
	var unused unsafe.Pointer // memory that the queue does not use: of the new ring until the resize, then of the old one
	var from *allocator
	var err error
	l.allocating(q.domain, func(a *allocator) {
		unused, from, err = allocQueue(a, uint64(size), uint64(unsafe.Sizeof(engine.Completion{})), resourceCQ)
	})
	if unused == nil {
		return errno(err)
	}
	err = l.holdCQ(q, func(s *softCQ) error {
		old := s.ring.Entries
		if err := q.e.Resize(unused, size, uint32(cqe)); err != nil {
			return err
		}
		unused, from, s.from = old, s.from, from
		c.Cqe = cqe
		return nil
	})
	l.allocating(q.domain, func(*allocator) { freeQueue(from, unused, resourceCQ) })
	return errno(err)
}

// holdCQ runs f while no thread polls the queue. It waits for such a thread,
// and unlocks the node meanwhile, as hold does. It returns EINVAL if the queue
// was destroyed.
func (l *library) holdCQ(q *cq, f func(*softCQ) error) error {
	if l.cqs[q.c] != q {
		return syscall.EINVAL
	}
	s := q.soft()
	l.unlocked(q.c.Context, func() { lockCQ(s) })
	defer unlockCQ(s)
	if l.cqs[q.c] != q {
		return syscall.EINVAL
	}
	return f(s)
}

func (l *library) modifyCQ(c *libibverbs.Cq, a *libibverbs.ModifyCqAttr) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	q := l.cqs[c]
	if q == nil || a.AttrMask&^libibverbs.IBV_CQ_ATTR_MODERATE != 0 {
		return syscall.EINVAL
	}
	if a.AttrMask&libibverbs.IBV_CQ_ATTR_MODERATE != 0 {
		return errno(q.e.Moderate(a.Moderate))
	}
	return 0
}

func (l *library) destroyCQ(c *libibverbs.Cq) syscall.Errno {
	q := l.cqs[c]
	if q == nil {
		return syscall.EINVAL
	}
	if err := q.e.Destroy(); err != nil {
		return errno(err)
	}
	delete(l.cqs, c)
	delete(l.byCQ, q.e)
	l.retire(c.Context, address(c), &q.events)
	x := l.contexts[c.Context]
	if x.closed {
		releaseCQ(q.soft())
	}
	x.retiring = append(x.retiring, q.soft())
	l.unlocked(c.Context, func() { retireCQ(q.soft()) }) // a thread that acknowledges events may need the node
	x.retiring = slices.DeleteFunc(x.retiring, func(s *softCQ) bool { return s == q.soft() })
	if c.Channel != nil {
		c.Channel.Refcnt--
	}
	l.allocating(q.domain, func(*allocator) { freeCQ(q.soft()) })
	if q.domain != nil {
		q.domain.users--
	}
	return 0
}
