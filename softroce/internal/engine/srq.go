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
	limit uint32 // number of posted receives below which an event is reported, once; 0: no event is reported
	users int    // number of queue pairs with the shared receive queue
}

// CreateSRQ creates a shared receive queue on the given ring. It fails with
// EINVAL for sizes of 0 or above the device's limits, with EOPNOTSUPP for types
// other than basic and if the device has none, and with ENOMEM if there are too
// many shared receive queues.
func (p *PD) CreateSRQ(attr *libibverbs.SrqInitAttrEx, queue *WorkQueue) (*SRQ, error) {
	d := p.device
	if err := d.CheckSRQ(attr); err != nil {
		return nil, err
	}
	if d.srqs == int(d.limits.SRQs) {
		return nil, syscall.ENOMEM
	}
	d.srqs++
	p.users++
	if detector.Enabled {
		d.tellQueue(queue, detector.SharedQueue)
	}
	return &SRQ{pd: p, queue: queue}, nil
}

// CheckSRQ returns the error with which CreateSRQ would reject attr.
func (d *Device) CheckSRQ(attr *libibverbs.SrqInitAttrEx) error {
	if err := d.check(); err != nil {
		return err
	}
	const other = libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM
	mask := attr.CompMask
	kind := libibverbs.IBV_SRQT_BASIC
	if mask&libibverbs.IBV_SRQ_INIT_ATTR_TYPE != 0 {
		kind = attr.SrqType
	}
	switch a := &attr.Attr; {
	case kind > libibverbs.IBV_SRQT_TM || mask >= libibverbs.IBV_SRQ_INIT_ATTR_RESERVED:
		return syscall.EINVAL
	case d.limits.SRQs == 0 || kind != libibverbs.IBV_SRQT_BASIC || mask&other != 0:
		return syscall.EOPNOTSUPP
	case a.MaxWr == 0 || a.MaxWr > d.limits.SRQWR || a.MaxSge > d.limits.SGE:
		return syscall.EINVAL
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

// Destroy removes the queue. It fails with EBUSY while queue pairs use it.
func (s *SRQ) Destroy() error {
	if s.users > 0 {
		return syscall.EBUSY
	}
	if detector.Enabled {
		tellQueueGone(s.queue)
	}
	s.pd.device.srqs--
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
