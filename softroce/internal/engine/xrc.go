// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// XRCD is a domain of extended reliable connections (XRC). Each request on such
// a connection names a shared receive queue, and the receiving queue pair takes
// receives from any such queue of its domain. The request may use the memory of
// the protection domain of the queue that it names.
type XRCD struct {
	device *Device
	users  int // number of queue pairs and shared receive queues in the domain
}

// CreateXRCD creates a domain. It fails with EOPNOTSUPP if the device has none,
// and with ENOMEM if there are too many.
func (d *Device) CreateXRCD() (*XRCD, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if !d.limits.xrc() {
		return nil, syscall.EOPNOTSUPP
	}
	if d.xrcds == maxXRCDs {
		return nil, syscall.ENOMEM
	}
	d.xrcds++
	return &XRCD{device: d}, nil
}

// Destroy removes the domain. It fails with EBUSY while objects belong to it.
func (x *XRCD) Destroy() error {
	if x.users > 0 {
		return syscall.EBUSY
	}
	x.device.xrcds--
	return nil
}

// CreateQP creates a queue pair of the type XRC_RECV, which has no queues of
// its own. It fails like PD.CreateQP.
func (x *XRCD) CreateQP(attr *libibverbs.QpInitAttrEx) (*QP, error) {
	d := x.device
	if err := d.CheckQP(attr); err != nil {
		return nil, err
	}
	if attr.QpType != libibverbs.IBV_QPT_XRC_RECV {
		return nil, syscall.EINVAL
	}
	q := &QP{device: d, xrcd: x, kind: attr.QpType, mtu: mtuBytes(d.config.MTU), send: &WorkQueue{}}
	if err := d.addQP(q); err != nil {
		return nil, err
	}
	x.users++
	return q, nil
}

// XRCQP returns the queue pair of the type XRC_RECV with that number. It
// returns nil if the domain has none.
func (x *XRCD) XRCQP(number uint32) *QP {
	if q := x.device.qps[number]; q != nil && q.xrcd == x {
		return q
	}
	return nil
}

// aim sets the current message's shared receive queue to the one that the
// request p names. It refuses p if the domain has no such queue, or if an
// earlier packet of the message named another one.
func (q *QP) aim(p *wire.Packet) *refusal {
	if q.kind != libibverbs.IBV_QPT_XRC_RECV {
		return nil
	}
	r := &q.responder
	s := q.device.xrcSRQs[p.SRQ]
	if s == nil || s.xrcd != q.xrcd || r.busy() && s != r.srq {
		return badAccess
	}
	r.srq = s
	return nil
}

// busy reports whether a message is arriving.
func (r *responder) busy() bool { return r.message.kind != noMessage || r.receive.taken }

// leave makes q forget s, which is being destroyed. Further packets of a
// message to s are refused.
func (q *QP) leave(s *SRQ) {
	r := &q.responder
	if r.srq != s {
		return
	}
	if r.receive.taken {
		q.device.noteDropped(r.receive.ticket)
	}
	r.srq, r.receive.taken = nil, false
}

// source returns the shared receive queue from which the current message takes
// its receive, or nil.
func (q *QP) source() *SRQ {
	if q.xrcd != nil {
		return q.responder.srq
	}
	return q.srq
}

// receivesCQ returns the queue for the completion of the current message.
func (q *QP) receivesCQ() *CQ {
	if q.xrcd != nil {
		return q.responder.srq.cq
	}
	return q.recvCQ
}

// receivesPD returns the protection domain of the current message's receive.
func (q *QP) receivesPD() *PD {
	if q.xrcd != nil {
		return q.responder.srq.pd
	}
	return q.recvPD
}

// memoryPD returns the protection domain whose memory the current request may
// use by its remote keys.
func (q *QP) memoryPD() *PD {
	if q.xrcd != nil {
		return q.responder.srq.pd
	}
	return q.pd
}

// overrun reports whether the completion queue of the current message's shared
// receive queue is broken.
func (q *QP) overrun() bool {
	return q.xrcd != nil && atomic.LoadUint32(&q.responder.srq.cq.ring.Overrun) != 0
}
