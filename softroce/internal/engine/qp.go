// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// QP is a queue pair. Its attributes are those that ibv_query_qp returns.
type QP struct {
	device         *Device
	pd             *PD   // nil for the type XRC_RECV
	recvPD         *PD   // protection domain of the receives: that of the shared receive queue, if there is one; nil for XRC
	xrcd           *XRCD // for the type XRC_RECV, the domain of the shared receive queues that the peer can name
	number         uint32
	kind           libibverbs.QpType
	transport      wire.Transport // transport of its packets
	reliable       bool           // whether the transport is reliable: RC or XRC
	sendCQ, recvCQ *CQ            // XRC_SEND has no recvCQ, and XRC_RECV has neither
	givenCQ        *CQ            // if srq matches tags, the receive completion queue of the program, which is not used; otherwise nil
	lateSend       uint32         // number of the first request that was posted in the error state; see Limits.Late
	lateRecv       uint32         // the same for receives
	srq            *SRQ           // shared receive queue that the queue pair was created with, or nil
	send, recv     *WorkQueue     // recv is nil with a shared receive queue, and for XRC; XRC_RECV has an empty send queue
	signalAll      bool           // whether every work request makes a completion
	groups         int            // number of multicast groups that the queue pair is in
	windows        map[*MW]bool   // windows of type 2 that the queue pair has bound

	attr   libibverbs.QpAttr // attributes set by Modify; attr.QpState is the state
	path   path              // path to the peer, for connected queue pairs
	mtu    int               // number of payload bytes in a full packet
	queued bool              // whether the queue pair is in schedule.ready

	blocked bool // whether the queue pair is in schedule.blocked

	way     Way  // way to the peer; nil: packets do not leave the process
	outside bool // whether answers to the peer leave the process: the type is RC, and way is not nil

	awaitsAcks bool // whether the queue pair waits for acknowledgements; see Acks

	offload *offload // what the device does with its own send queue; nil: the send queue is the program's

	orphan    bool          // whether the peer's process has ended
	peerLasts time.Duration // time from which requests fail because the peer's process has ended; 0: it has not ended

	requester requester
	responder responder
	retries   Retries
	counters  *counters // completion counters, or nil

	congestion congestion
	limit      rateLimit

	told detector.Order // for the race detector, accesses of the peer by a key
}

// QPConfig configures a queue pair. Its fields replace the context, queues and
// protection domain in Attr.
type QPConfig struct {
	Attr           libibverbs.QpInitAttrEx
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ       // shared receive queue, or nil
	Send, Recv     *WorkQueue // Recv is not used with a shared receive queue, and not for XRC
}

// CreateQP creates a queue pair in the reset state, and stores its number in
// the Owner field of its queues. A queue pair of the type XRC_SEND has no
// receives, and so uses neither c.RecvCQ nor c.Recv. XRCD.CreateQP creates
// those of the type XRC_RECV.
//
// CreateQP fails like CheckQP, with EINVAL if a completion queue is missing or
// an object belongs to another device, and with ENOMEM if there are too many
// queue pairs.
func (p *PD) CreateQP(c QPConfig) (*QP, error) {
	d := p.device
	if err := d.CheckQP(&c.Attr); err != nil {
		return nil, err
	}
	kind := c.Attr.QpType
	if kind == libibverbs.IBV_QPT_XRC_SEND {
		c.RecvCQ, c.Recv = c.SendCQ, nil // checked, but not used
	}
	if kind == libibverbs.IBV_QPT_XRC_RECV || kind == libibverbs.IBV_QPT_XRC_SEND && c.SRQ != nil ||
		c.SendCQ == nil || c.RecvCQ == nil || c.SendCQ.device != d || c.RecvCQ.device != d ||
		c.SRQ != nil && (c.SRQ.pd.device != d || c.SRQ.xrcd != nil) {
		return nil, syscall.EINVAL
	}
	tags := c.SRQ != nil && c.SRQ.tags != nil
	if tags && kind != libibverbs.IBV_QPT_RC {
		return nil, syscall.EINVAL
	}
	q := &QP{
		device: d, pd: p, recvPD: p, kind: kind, mtu: mtuBytes(d.config.MTU),
		sendCQ: c.SendCQ, recvCQ: c.RecvCQ, srq: c.SRQ, send: c.Send, recv: c.Recv, signalAll: c.Attr.SqSigAll != 0,
	}
	if err := d.addQP(q); err != nil {
		return nil, err
	}
	if tags {
		q.recvCQ, q.givenCQ = q.srq.tags.cq, q.recvCQ
		if q.send.Max == 0 {
			q.offload, q.send = newOffload(d.limits.SGE)
		}
	}
	p.users++
	if kind == libibverbs.IBV_QPT_XRC_SEND {
		q.recvCQ, q.recvPD = nil, nil
	}
	for _, c := range q.cqs() {
		c.qps[q] = true
	}
	if q.srq != nil {
		q.recvPD, q.recv = q.srq.pd, nil
		q.srq.users++
	}
	for _, w := range q.queues() {
		w.Owner = uint64(q.number)
	}
	if detector.Enabled {
		d.tellQueue(q.send, detector.SendQueue)
		if q.recv != nil {
			d.tellQueue(q.recv, detector.ReceiveQueue)
		}
	}
	return q, nil
}

// addQP gives a new queue pair its number, and sets what follows from its type.
// It fails with ENOMEM if there are too many queue pairs.
func (d *Device) addQP(q *QP) error {
	if len(d.qps) == int(d.limits.QPs) {
		return syscall.ENOMEM
	}
	q.number, q.transport = d.newQPN(), transportOf(q.kind)
	q.reliable = q.transport.Reliable()
	d.qps[q.number] = q
	return nil
}

// Operations that ibv_wr_* functions may post to each type of queue pair.
const (
	udOps = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM
	ucOps = udOps | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
		libibverbs.IBV_QP_EX_WITH_BIND_MW | libibverbs.IBV_QP_EX_WITH_LOCAL_INV
	rcOps = ucOps | libibverbs.IBV_QP_EX_WITH_RDMA_READ | libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | libibverbs.IBV_QP_EX_WITH_SEND_WITH_INV |
		libibverbs.IBV_QP_EX_WITH_FLUSH | libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE
)

// CheckQP returns EINVAL if a has an unknown type or sizes above the device's
// limits. It returns EOPNOTSUPP for types, attributes, flags and operations
// that the device does not support.
func (d *Device) CheckQP(a *libibverbs.QpInitAttrEx) error {
	if err := d.check(); err != nil {
		return err
	}
	l := &d.limits
	ops, err := l.sendOps(a.QpType)
	if err != nil {
		return err
	}
	mask := a.CompMask
	known := libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
	if a.QpType == libibverbs.IBV_QPT_XRC_RECV {
		known |= libibverbs.IBV_QP_INIT_ATTR_XRCD
	}
	if mask&^known != 0 || mask&libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && a.CreateFlags != 0 ||
		mask&libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && libibverbs.QpCreateSendOpsFlags(a.SendOpsFlags)&^ops != 0 {
		return syscall.EOPNOTSUPP
	}
	c := &a.Cap
	if c.MaxSendWr > l.WR || c.MaxRecvWr > l.WR || c.MaxSendSge > l.SGE || c.MaxRecvSge > l.SGE || c.MaxInlineData > l.Inline {
		return syscall.EINVAL
	}
	return nil
}

// newQPN returns an unused queue pair number, chosen at random. While it can,
// it avoids recently freed numbers, as peers may still send to them.
func (d *Device) newQPN() uint32 {
	spare := d.config.QPNs-uint32(len(d.qps)) > uint32(len(d.recentQPNs))
	n := d.config.Random.Uint32N(d.config.QPNs)
	for tries := 1; ; tries++ {
		number := d.config.FirstQPN + n
		if d.qps[number] == nil && !(spare && slices.Contains(d.recentQPNs, number)) {
			return number
		}
		if tries < randomTries {
			n = d.config.Random.Uint32N(d.config.QPNs)
		} else {
			n = (n + 1) % d.config.QPNs // after so many tries, most numbers must be in use
		}
	}
}

const (
	// randomTries is the number of random choices before newQPN searches
	// for the next unused number.
	randomTries = 64
	// maxRecentQPNs limits the number of recently freed numbers that newQPN
	// avoids.
	maxRecentQPNs = 64
)

// released records that the number of a queue pair has become free.
func (d *Device) released(number uint32) {
	d.recentQPNs = append(d.recentQPNs, number)
	if len(d.recentQPNs) > min(maxRecentQPNs, int(d.config.QPNs/4)) {
		d.recentQPNs = slices.Delete(d.recentQPNs, 0, 1)
	}
}

// FindQP returns the device's queue pair with that number, or nil.
func (d *Device) FindQP(number uint32) *QP { return d.qps[number] }

// find returns the queue pair of the process with that number, or nil.
func (d *Device) find(number uint32) *QP {
	if d.config.FindQP == nil {
		return d.qps[number]
	}
	return d.config.FindQP(number)
}

// Number returns the queue pair's number.
func (q *QP) Number() uint32 { return q.number }

// Destroy removes the queue pair and its completions. The caller must hold the
// locks of the threads that post to it and that poll its completion queues,
// including that of a shared receive queue that matches tags.
// Destroy fails with EBUSY while the queue pair is in multicast groups.
func (q *QP) Destroy() error {
	if q.groups > 0 {
		return syscall.EBUSY
	}
	d := q.device
	q.reset()
	q.detachCounters()
	if detector.Enabled {
		for _, w := range q.queues() {
			tellQueueGone(w)
		}
	}
	for _, c := range q.cqs() {
		delete(c.qps, q)
	}
	delete(d.qps, q.number)
	d.released(q.number)
	d.counters.Retries.add(q.retries)
	if q.xrcd != nil {
		q.xrcd.users--
	} else {
		q.pd.users--
	}
	if q.srq != nil {
		q.srq.users--
	}
	return nil
}

// queues returns the work queues that belong to the queue pair alone.
func (q *QP) queues() []*WorkQueue {
	if q.recv == nil {
		return []*WorkQueue{q.send}
	}
	return []*WorkQueue{q.send, q.recv}
}

// cqs returns the completion queues of the queue pair. Those of the shared
// receive queues to which the type XRC_RECV delivers are not among them.
func (q *QP) cqs() (all []*CQ) {
	for _, c := range []*CQ{q.sendCQ, q.recvCQ, q.givenCQ} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// reset puts the queue pair into the reset state and clears its attributes. It
// drops posted requests and completions, and unbinds the windows that the queue
// pair has bound. Completions of shared receive queues for XRC stay: they are
// those of the queue.
func (q *QP) reset() {
	for w := range q.windows {
		w.unbind()
	}
	if r := &q.responder.receive; r.taken {
		q.device.noteDropped(r.ticket)
	}
	if detector.Enabled {
		for _, w := range q.queues() {
			tellDropped(w)
		}
		q.told.Acquire()
	}
	for _, c := range q.cqs() {
		c.remove(func(c *Completion) bool {
			gone := c.QpNum == q.number && c.srq() == 0
			if gone && c.unexpected() {
				q.srq.tags.arrived-- // the program will not handle the message
			}
			return gone
		})
	}
	if q.srq != nil && q.srq.tags != nil {
		q.srq.tags.activate()
	}
	for _, w := range q.queues() {
		atomic.StoreUint32(&w.Posted, 0)
		atomic.StoreUint32(&w.Freed, 0)
	}
	q.setState(libibverbs.IBV_QPS_RESET)
	q.attr, q.path, q.mtu = libibverbs.QpAttr{}, path{}, mtuBytes(q.device.config.MTU)
}

// setState changes the state. It first sets the copies of the state that
// posting threads read, and then calls entered for what the protocol requires.
func (q *QP) setState(state libibverbs.QpState) {
	from := q.attr.QpState
	q.attr.QpState = state
	switch {
	case state != libibverbs.IBV_QPS_SQD:
		q.attr.SqDraining = 0
	case from != state:
		q.attr.SqDraining = 1
	}
	for _, w := range q.queues() {
		// Swap rather than Store, as in CQ.show: this thread must then see all
		// requests that were posted before the new state became visible.
		atomic.SwapUint32(&w.State, uint32(state))
	}
	if state == libibverbs.IBV_QPS_ERR && from != state {
		q.lateSend = q.send.posted()
		if q.recv != nil {
			q.lateRecv = q.recv.posted()
		}
	}
	q.entered(from)
	if state == libibverbs.IBV_QPS_ERR && from != state && (q.srq != nil || q.xrcd != nil) {
		q.event(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, q)
	}
}

// fail puts the queue pair into the error state because of a failure, unless it
// is in the reset state. Posted requests are flushed.
func (q *QP) fail() {
	if s := q.attr.QpState; s != libibverbs.IBV_QPS_RESET && s != libibverbs.IBV_QPS_ERR {
		q.setState(libibverbs.IBV_QPS_ERR)
	}
}

// drained records that no work request is in progress. If the queue pair is in
// the state SQD, that completes draining, and drained reports an event if the
// program has asked for one.
func (q *QP) drained() {
	if q.attr.SqDraining == 0 {
		return
	}
	q.attr.SqDraining = 0
	if q.attr.EnSqdAsyncNotify != 0 {
		q.event(libibverbs.IBV_EVENT_SQ_DRAINED, q)
	}
}
