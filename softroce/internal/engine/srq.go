// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
)

// SRQ is a shared receive queue.
type SRQ struct {
	pd    *PD
	queue *WorkQueue

	// Only for XRC: the domain, the queue for the completions, and the
	// number by which peers name the shared receive queue.
	xrcd   *XRCD
	cq     *CQ
	number uint32

	limit uint32   // number of posted receives below which an event is reported, once; 0: no event is reported
	users int      // number of queue pairs with the shared receive queue
	tags  *tagList // nil: the queue matches no tags
}

// CreateSRQ creates a shared receive queue on the given ring. One for XRC is in
// the domain xrcd, and its completions go to cq; otherwise, xrcd and cq are
// nil.
//
// CreateSRQ fails with EINVAL for sizes of 0 or above the device's limits, and
// if the domain or completion queue is missing or belongs to another device. It
// fails with EOPNOTSUPP for types that the device does not have, and with
// ENOMEM if there are too many shared receive queues.
func (p *PD) CreateSRQ(attr *libibverbs.SrqInitAttrEx, queue *WorkQueue, xrcd *XRCD, cq *CQ) (*SRQ, error) {
	d := p.device
	if err := d.CheckSRQ(attr); err != nil {
		return nil, err
	}
	xrc := srqType(attr) == libibverbs.IBV_SRQT_XRC
	if xrc && (xrcd == nil || cq == nil || xrcd.device != d || cq.device != d) {
		return nil, syscall.EINVAL
	}
	if d.srqs == int(d.limits.SRQs) {
		return nil, syscall.ENOMEM
	}
	s := &SRQ{pd: p, queue: queue}
	if xrc {
		s.xrcd, s.cq, s.number = xrcd, cq, d.newSRQN()
		d.xrcSRQs[s.number] = s
		xrcd.users++
		cq.srqs++
	}
	d.srqs++
	p.users++
	if detector.Enabled {
		d.tellQueue(queue, detector.SharedQueue)
	}
	return s, nil
}

// srqType returns the type of shared receive queues that attr asks for.
func srqType(attr *libibverbs.SrqInitAttrEx) libibverbs.SrqType {
	if attr.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_TYPE != 0 {
		return attr.SrqType
	}
	return libibverbs.IBV_SRQT_BASIC
}

// newSRQN returns an unused number of a shared receive queue, chosen at random:
// peers must not guess it. It is not 0.
func (d *Device) newSRQN() uint32 {
	for {
		n := d.config.Random.Uint32N(1 << 24)
		if n != 0 && d.xrcSRQs[n] == nil {
			return n
		}
	}
}

// Number returns the number by which peers name a shared receive queue for XRC.
// It is 0 for others.
func (s *SRQ) Number() uint32 { return s.number }

// CheckSRQ returns the error with which CreateSRQ would reject attr.
func (d *Device) CheckSRQ(attr *libibverbs.SrqInitAttrEx) error {
	if err := d.check(); err != nil {
		return err
	}
	const forXRC = libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ
	mask, kind := attr.CompMask, srqType(attr)
	xrc, tags := kind == libibverbs.IBV_SRQT_XRC, kind == libibverbs.IBV_SRQT_TM
	switch a := &attr.Attr; {
	case kind > libibverbs.IBV_SRQT_TM || mask >= libibverbs.IBV_SRQ_INIT_ATTR_RESERVED:
		return syscall.EINVAL
	case d.limits.SRQs == 0, !tags && mask&libibverbs.IBV_SRQ_INIT_ATTR_TM != 0,
		xrc && !d.limits.xrc(), !xrc && !tags && mask&forXRC != 0:
		return syscall.EOPNOTSUPP
	case xrc && mask&forXRC != forXRC:
		return syscall.EINVAL
	case a.MaxWr == 0 || a.MaxWr > d.limits.SRQWR || a.MaxSge > d.limits.SGE:
		return syscall.EINVAL
	}
	if tags {
		return d.limits.checkTags(attr)
	}
	return nil
}

// Attr returns what ibv_query_srq returns.
func (s *SRQ) Attr() (libibverbs.SrqAttr, error) {
	if err := s.pd.device.check(); err != nil {
		return libibverbs.SrqAttr{}, err
	}
	return libibverbs.SrqAttr{MaxWr: s.queue.Max, MaxSge: s.queue.MaxSGE, SrqLimit: s.limit}, nil
}

// Modify sets the limit if mask has IBV_SRQ_LIMIT. If mask has IBV_SRQ_MAX_WR,
// Modify moves the receives to a new ring at slots, of which at most attr.MaxWr
// slots may be in use. size is the number of slots, a power of two. For that,
// the caller must hold the lock of the threads that post.
//
// If Modify fails, nothing changes. It fails with EINVAL for unknown
// attributes, for a limit above the size, and for a size that is 0, above the
// device's limit, or less than the number of posted receives.
func (s *SRQ) Modify(attr libibverbs.SrqAttr, mask libibverbs.SrqAttrMask, slots unsafe.Pointer, size uint32) error {
	if err := s.pd.device.check(); err != nil {
		return err
	}
	q, maxWR, limit := s.queue, s.queue.Max, s.limit
	if mask&libibverbs.IBV_SRQ_MAX_WR != 0 {
		maxWR = attr.MaxWr
	}
	if mask&libibverbs.IBV_SRQ_LIMIT != 0 {
		limit = attr.SrqLimit
	}
	if mask&^(libibverbs.IBV_SRQ_MAX_WR|libibverbs.IBV_SRQ_LIMIT) != 0 ||
		maxWR == 0 || maxWR > s.pd.device.limits.SRQWR || limit > maxWR || q.posted()-q.Freed > maxWR {
		return syscall.EINVAL
	}
	s.limit = limit
	if mask&libibverbs.IBV_SRQ_MAX_WR != 0 {
		to := WorkQueue{Slots: slots, Size: size, Stride: q.Stride}
		for n := q.Freed; n != q.Posted; n++ {
			copy(to.words(n), q.words(n))
		}
		q.Slots, q.Size, q.Max = slots, size, maxWR
	}
	return nil
}

// words returns the slot of request n as 8-byte words.
func (q *WorkQueue) words(n uint32) []uint64 {
	return unsafe.Slice((*uint64)(q.slot(n)), q.Stride/8)
}

// Destroy removes the queue. It fails with EBUSY while queue pairs were created
// with it. For XRC, peers may be sending to the queue: Destroy drops the
// receives that messages have taken, and the queue's completions. For a queue
// that matches tags, it drops the completions of operations. The caller must
// hold the lock of the threads that poll the completion queue.
func (s *SRQ) Destroy() error {
	if s.users > 0 {
		return syscall.EBUSY
	}
	if detector.Enabled {
		tellQueueGone(s.queue)
	}
	d := s.pd.device
	if s.xrcd != nil {
		delete(d.xrcSRQs, s.number)
		for _, q := range d.qps {
			q.leave(s)
		}
		s.cq.remove(func(c *Completion) bool { return c.srq() == s.number })
		s.cq.srqs--
		s.xrcd.users--
	}
	if l := s.tags; l != nil {
		l.cq.remove(func(c *Completion) bool { return c.Queue == l.ops })
		l.cq.srqs--
		if detector.Enabled {
			l.told.Drop()
		}
	}
	d.srqs--
	s.pd.users--
	return nil
}

// next returns the oldest receive, which stays in the queue until took is
// called. It returns false if the queue is empty.
func (s *SRQ) next() (*RecvSlot, bool) {
	freed := s.queue.Freed
	if s.queue.waiting(freed, freed) == 0 {
		return nil, false
	}
	return s.queue.recv(freed), true
}

// took removes the receive that next returned. Its slot is free at once, since
// the receives of a shared queue complete in any order. limitReached reports
// whether the event of the limit is to be reported.
func (s *SRQ) took() (limitReached bool) {
	freed := s.queue.Freed + 1
	atomic.StoreUint32(&s.queue.Freed, freed)
	if s.queue.waiting(freed, freed) >= s.limit {
		return false
	}
	s.limit = 0
	return true
}
