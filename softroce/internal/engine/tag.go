// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	maxTags   = 1 << 12 // receives in a tag list
	maxTagOps = 1 << 12 // operations on a tag list in progress

	tagHeaderLen  = 16 // struct ibv_tmh
	rendezvousLen = 32 // struct ibv_tmh and struct ibv_rvh
	// maxRendezvous limits the bytes of a message that requests a
	// rendezvous.
	maxRendezvous = 64
	// maxUnsynced is the number of unexpected messages, not reported as
	// handled, above which the device asks for a report with each further
	// one.
	maxUnsynced = 1<<14 - 1
)

// tagList is what a shared receive queue of type IBV_SRQT_TM has in addition.
//
// A message that matches no receive in the list is unexpected. The program may
// be adding a receive for it at that moment. So that no later message overtakes
// the unexpected one, receives that are added stay inactive until the program
// reports that it has handled all unexpected messages.
type tagList struct {
	cq      *CQ        // takes the completions of messages and operations
	ops     *WorkQueue // counts signaled operations; it has no slots
	max     uint32     // limit of receives
	recvs   []taggedRecv
	newest  uint32          // handle of the newest receive
	told    *detector.Queue // for the race detector, the receives
	arrived uint32          // number of unexpected messages that have arrived, without those whose completions were dropped
	handled uint32          // number of unexpected messages that the program has reported as handled
}

// taggedRecv is a receive in a tag list.
type taggedRecv struct {
	handle    uint32
	active    bool // whether messages can match the receive
	id        uint64
	tag, mask uint64
	segments  []libibverbs.Sge
	ticket    uint32 // for the race detector
}

// CreateTagSRQ creates a shared receive queue that matches tags. queue is the
// ring of its other receives. ops counts its operations; their completions, and
// those of messages, go to cq. CreateTagSRQ fails like CreateSRQ, and with
// EINVAL if cq is missing or belongs to another device.
func (p *PD) CreateTagSRQ(attr *libibverbs.SrqInitAttrEx, queue, ops *WorkQueue, cq *CQ) (*SRQ, error) {
	if cq == nil || cq.device != p.device || attr.SrqType != libibverbs.IBV_SRQT_TM {
		return nil, syscall.EINVAL
	}
	s, err := p.CreateSRQ(attr, queue, nil, nil)
	if err != nil {
		return nil, err
	}
	ops.Max = attr.TmCap.MaxOps
	s.tags = &tagList{cq: cq, ops: ops, max: attr.TmCap.MaxNumTags}
	if detector.Enabled {
		s.tags.told = detector.NewQueue(detector.SharedQueue)
	}
	cq.srqs++
	return s, nil
}

// checkTags returns the error for the attributes of a queue that matches tags,
// or nil.
func (l *Limits) checkTags(a *libibverbs.SrqInitAttrEx) error {
	const needed = libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM
	switch {
	case l.Tags == 0:
		return syscall.EOPNOTSUPP
	case a.CompMask&needed != needed, a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_XRCD != 0,
		a.TmCap.MaxNumTags == 0, a.TmCap.MaxNumTags > l.Tags, a.TmCap.MaxOps == 0, a.TmCap.MaxOps > maxTagOps:
		return syscall.EINVAL
	}
	return nil
}

// tagCaps returns what the device says of tag matching.
func (l *Limits) tagCaps() libibverbs.TmCaps {
	if l.Tags == 0 || l.SRQs == 0 {
		return libibverbs.TmCaps{}
	}
	return libibverbs.TmCaps{
		MaxRndvHdrSize: maxRendezvous, MaxNumTags: l.Tags, MaxOps: maxTagOps, MaxSge: l.SGE, Flags: libibverbs.IBV_TM_CAP_RC,
	}
}

// PostOp executes an operation on the tag list. For a receive that it adds, it
// stores the handle in op. It fails with EOPNOTSUPP if the queue has no list,
// with EINVAL if the opcode or a flag is unknown or there are too many
// segments, and with ENOENT if it deletes the handle 0, which no receive has.
// It fails with ENOMEM if the list is full, or if too many operations have
// completions that were not polled.
func (s *SRQ) PostOp(op *libibverbs.OpsWr, segments []libibverbs.Sge) error {
	if err := s.pd.device.check(); err != nil {
		return err
	}
	l := s.tags
	if l == nil {
		return syscall.EOPNOTSUPP
	}
	const flags = libibverbs.IBV_OPS_SIGNALED | libibverbs.IBV_OPS_TM_SYNC
	signaled := op.Flags&libibverbs.IBV_OPS_SIGNALED != 0
	switch {
	case op.Flags&^flags != 0, op.Opcode > libibverbs.IBV_WR_TAG_SYNC:
		return syscall.EINVAL
	case signaled && l.ops.Posted-atomic.LoadUint32(&l.ops.Freed) >= l.ops.Max:
		return syscall.ENOMEM
	case op.Opcode == libibverbs.IBV_WR_TAG_ADD && len(segments) > int(s.pd.device.limits.SGE):
		return syscall.EINVAL
	case op.Opcode == libibverbs.IBV_WR_TAG_ADD && len(l.recvs) >= int(l.max):
		return syscall.ENOMEM
	case op.Opcode == libibverbs.IBV_WR_TAG_DEL && op.Tm.Handle == 0:
		return syscall.ENOENT
	}
	if op.Flags&libibverbs.IBV_OPS_TM_SYNC != 0 {
		l.handled = op.Tm.UnexpectedCnt
	}
	c := Completion{Queue: l.ops}
	switch op.Opcode {
	case libibverbs.IBV_WR_TAG_ADD:
		c.Opcode = libibverbs.IBV_WC_TM_ADD
		op.Tm.Handle = l.add(op, segments)
		if detector.Enabled {
			l.recvs[len(l.recvs)-1].ticket = s.pd.device.tellTagged(l, segments)
		}
	case libibverbs.IBV_WR_TAG_DEL:
		c.Opcode = libibverbs.IBV_WC_TM_DEL
		if !l.remove(op.Tm.Handle) {
			c.Status = libibverbs.IBV_WC_TM_ERR // a message has matched the receive, or it was deleted before
		}
	case libibverbs.IBV_WR_TAG_SYNC:
		c.Opcode = libibverbs.IBV_WC_TM_SYNC
	}
	l.activate()
	if !signaled {
		return nil
	}
	if l.arrived != l.handled {
		c.WcFlags |= libibverbs.IBV_WC_TM_SYNC_REQ
	}
	l.ops.Posted++
	c.WrId, c.Count = op.WrId, l.ops.Posted
	l.cq.add(&c, dependency{})
	return nil
}

// add adds a receive to the list, and returns its handle.
func (l *tagList) add(op *libibverbs.OpsWr, segments []libibverbs.Sge) (handle uint32) {
	if l.newest++; l.newest == 0 {
		l.newest = 1
	}
	l.recvs = append(l.recvs, taggedRecv{
		handle: l.newest, id: op.Tm.Add.RecvWrId, tag: op.Tm.Add.Tag, mask: op.Tm.Add.Mask, segments: slices.Clone(segments),
	})
	return l.newest
}

// remove removes the receive with that handle. It returns false if the list
// does not have it.
func (l *tagList) remove(handle uint32) bool {
	i := slices.IndexFunc(l.recvs, func(v taggedRecv) bool { return v.handle == handle })
	if i < 0 {
		return false
	}
	if detector.Enabled {
		detector.Completed([]uint32{l.recvs[i].ticket})
	}
	l.recvs = slices.Delete(l.recvs, i, i+1)
	return true
}

// activate lets messages match all receives of the list if the program has
// handled all unexpected messages. Inactive receives are the newest.
func (l *tagList) activate() {
	if l.arrived != l.handled {
		return
	}
	for i := len(l.recvs) - 1; i >= 0 && !l.recvs[i].active; i-- {
		l.recvs[i].active = true
	}
}

// match removes the oldest active receive that a message with the tag matches,
// and returns it.
func (l *tagList) match(tag uint64) (v taggedRecv, ok bool) {
	for i := range l.recvs {
		if v = l.recvs[i]; !v.active {
			break
		}
		if tag&v.mask == v.tag {
			l.recvs = slices.Delete(l.recvs, i, i+1)
			return v, true
		}
	}
	return taggedRecv{}, false
}

// tagMatch says what a message to a queue that matches tags is. Other fields
// than kind are valid only if the message is for the tag list.
type tagMatch struct {
	kind   matchKind
	length uint32              // for a rendezvous, the number of bytes at the peer
	read   bool                // for a rendezvous, whether the device reads these
	header [rendezvousLen]byte // beginning of the message
}

type matchKind uint8

const (
	notTagged  matchKind = iota // the message is not for the tag list: it is an RDMA write, or the queue has none
	noTag                       // the message has no tag
	unexpected                  // no receive in the list matches the message
	eager                       // a receive matches the message, which has the data
	rendezvous                  // a receive matches the message, which says where the data is
)

// tag returns the tag in the header.
func (m *tagMatch) tag() uint64 { return binary.BigEndian.Uint64(m.header[8:]) }

// skip returns the number of bytes at the beginning of the message that are not
// stored.
func (m *tagMatch) skip() uint32 {
	if m.kind == eager {
		return tagHeaderLen
	}
	return 0
}

// takeTagged finds the receive for the message to a queue with a tag list whose
// first packet is p. n is the number of bytes in p. It makes a receive of the
// list the current one or, if none matches, the next posted one.
func (q *QP) takeTagged(p *wire.Packet, n uint32) *refusal {
	d, v, l := q.device, &q.responder.receive, q.srq.tags
	var m tagMatch
	d.target = append(d.target[:0], m.header[:])
	if !firstBytes(d.target, p.Payload, rendezvousLen) {
		return lost
	}
	matchable := false
	m.kind = noTag
	switch op := libibverbs.TmhOp(m.header[0]); {
	case n < tagHeaderLen:
	case op == libibverbs.IBV_TMH_EAGER:
		m.kind, matchable = unexpected, true
	case op == libibverbs.IBV_TMH_RNDV:
		m.kind, matchable = unexpected, p.Opcode.IsOnly() && n >= rendezvousLen && n <= maxRendezvous
	}
	if matchable {
		if recv, ok := l.match(m.tag()); ok {
			m.kind = eager
			if libibverbs.TmhOp(m.header[0]) == libibverbs.IBV_TMH_RNDV {
				m.kind = rendezvous
			}
			*v = receive{taken: true, id: recv.id, segments: append(v.segments[:0], recv.segments...), match: m, ticket: recv.ticket}
			v.measure()
			if m.kind == rendezvous {
				v.match.length = binary.BigEndian.Uint32(m.header[28:])
				v.match.read = q.offload != nil && q.attr.MaxRdAtomic > 0 && uint64(v.match.length) <= v.room
			}
			return nil
		}
	}
	if !q.takeReceive() {
		return notReady
	}
	v.match = m
	if m.kind == unexpected {
		l.arrived++
	}
	return nil
}

// firstBytes copies the first n bytes of src, or all if there are fewer, to
// dst. It returns false if the sender's program has unmapped them.
func firstBytes(dst, src [][]byte, n int) bool {
	var part [4][]byte
	list := part[:0]
	for _, b := range src {
		b = b[:min(n, len(b))]
		n -= len(b)
		list = append(list, b)
	}
	return scatter(dst, list) == noFault
}

// fillMatched writes src, the n bytes of the first packet of a message for
// which a receive of the tag list was found, to that receive, without the
// header. It changes src.
func (q *QP) fillMatched(src [][]byte, n uint32) *refusal {
	if n < tagHeaderLen {
		// The packet that matched was treated as lost, and this is another
		// one with its PSN.
		return badRequest
	}
	for skip := tagHeaderLen; skip > 0; {
		part := min(skip, len(src[0]))
		src[0] = src[0][part:]
		if skip -= part; len(src[0]) == 0 {
			src = src[1:]
		}
	}
	return q.fill(src, 0, n-tagHeaderLen)
}

// forgetUnexpected undoes that the current message was counted, if it is
// unexpected, as it will not arrive.
func (q *QP) forgetUnexpected() {
	if v := &q.responder.receive; v.taken && v.match.kind == unexpected {
		q.srq.tags.arrived--
		q.srq.tags.activate()
	}
}

// storeMatch stores what the first packet of a message that requests a
// rendezvous leaves in the receive: its headers, unless the device reads the
// data.
func (q *QP) storeMatch() *refusal {
	v := &q.responder.receive
	if v.match.read {
		return nil
	}
	n := uint32(min(v.room, rendezvousLen))
	return q.fill([][]byte{v.match.header[:n]}, 0, n)
}

// setMatch sets the fields of the completion c of a message for which a receive
// of the tag list was found.
func (c *Completion) setMatch(m *tagMatch) {
	c.Opcode = libibverbs.IBV_WC_TM_RECV
	c.WcFlags |= libibverbs.IBV_WC_TM_MATCH
	c.Tag, c.TagContext = m.tag(), binary.BigEndian.Uint32(m.header[4:])
}

// completeMatch adds the completion that tells that a receive was found for a
// message that has not arrived completely.
func (q *QP) completeMatch() {
	c := q.receiveCompletion(libibverbs.IBV_WC_SUCCESS)
	c.setMatch(&q.responder.receive.match)
	c.SrcQp, c.Ticket = q.attr.DestQpNum, 0
	q.device.staged.noteCompletion(q)
	q.recvCQ.add(&c, q.dependency())
}

// setTagged changes the completion c of a message that has arrived to what the
// queue's tag list demands. whole is whether the message had one packet.
func (q *QP) setTagged(c *Completion, whole bool) {
	l, m := q.srq.tags, &q.responder.receive.match
	switch m.kind {
	case noTag:
		c.Opcode = libibverbs.IBV_WC_TM_NO_TAG
	case unexpected:
		c.Opcode = libibverbs.IBV_WC_TM_RECV
		if l.arrived-l.handled > maxUnsynced {
			c.WcFlags |= libibverbs.IBV_WC_TM_SYNC_REQ
		}
	case eager:
		if whole {
			c.setMatch(m)
		}
		c.Opcode = libibverbs.IBV_WC_TM_RECV
		c.ByteLen -= tagHeaderLen
		c.WcFlags |= libibverbs.IBV_WC_TM_DATA_VALID
	case rendezvous:
		c.setMatch(m)
		c.ByteLen, c.Ticket = 0, 0
		if !m.read {
			c.Ticket = q.responder.receive.ticket
			c.Status = libibverbs.IBV_WC_TM_RNDV_INCOMPLETE
			c.ByteLen = uint32(min(q.responder.receive.room, rendezvousLen))
		}
	}
}

// unexpected reports whether c tells that an unexpected message has arrived.
func (c *Completion) unexpected() bool {
	const expected = libibverbs.IBV_WC_TM_MATCH | libibverbs.IBV_WC_TM_DATA_VALID
	return c.Status == libibverbs.IBV_WC_SUCCESS && c.Opcode == libibverbs.IBV_WC_TM_RECV && c.WcFlags&expected == 0
}

// offload is a send queue that the device itself uses, of a queue pair that the
// program created without one. With it, the device reads the data of rendezvous
// and tells the peer when each has ended. Each rendezvous has two requests; the
// number of the first is even.
type offload struct {
	running [offloaded]pull
	waiting []pull // rendezvous for which the send queue has no room
}

// offloaded is the number of rendezvous for which an offload's send queue has
// room.
const offloaded = 16

// pull is a rendezvous whose data the device reads.
type pull struct {
	id       uint64 // ID of the receive
	segments []libibverbs.Sge
	match    tagMatch
	ticket   uint32 // for the race detector
}

// newOffload returns an offload and its send queue.
func newOffload(segments uint32) (*offload, *WorkQueue) {
	stride := (uint32(SendSlotSize) + max(segments*uint32(unsafe.Sizeof(libibverbs.Sge{})), rendezvousLen) + 7) / 8 * 8
	slots := make([]uint64, 2*offloaded*stride/8)
	return &offload{}, &WorkQueue{
		Size: 2 * offloaded, Max: 2 * offloaded, Stride: stride, MaxSGE: segments, Inline: rendezvousLen,
		Slots: unsafe.Pointer(unsafe.SliceData(slots)),
	}
}

// fetch starts to read the data of the rendezvous that the current receive is
// for.
func (q *QP) fetch() {
	v := &q.responder.receive
	f := pull{id: v.id, match: v.match, ticket: v.ticket}
	left := v.match.length
	for _, sge := range v.segments {
		sge.Length = min(sge.Length, left)
		left -= sge.Length
		f.segments = append(f.segments, sge)
	}
	q.offload.waiting = append(q.offload.waiting, f)
	q.feed()
}

// feed posts the requests of waiting rendezvous as far as the send queue has
// room.
func (q *QP) feed() {
	o, w := q.offload, q.send
	for len(o.waiting) > 0 && w.Posted-w.Freed <= w.Max-2 {
		f := o.waiting[0]
		o.waiting = slices.Delete(o.waiting, 0, 1)
		o.running[w.Posted/2%offloaded] = f
		h := &f.match.header
		read := w.send(w.Posted)
		*read = SendSlot{
			Opcode: libibverbs.IBV_WR_RDMA_READ, Flags: uint32(libibverbs.IBV_SEND_SIGNALED), NumSGE: uint32(len(f.segments)),
			RemoteAddr: binary.BigEndian.Uint64(h[16:]), RKey: binary.BigEndian.Uint32(h[24:]),
		}
		copy(read.segments(), f.segments)
		fin := w.send(w.Posted + 1)
		*fin = SendSlot{ // the fence makes it wait for the answer to the read
			Opcode: libibverbs.IBV_WR_SEND, InlineLen: rendezvousLen,
			Flags: uint32(libibverbs.IBV_SEND_SIGNALED | libibverbs.IBV_SEND_INLINE | libibverbs.IBV_SEND_FENCE),
		}
		copy(fin.inline(), h[:])
		fin.inline()[0] = uint8(libibverbs.IBV_TMH_FIN)
		w.Posted += 2
	}
	q.device.schedule.add(q)
}

// drop forgets all rendezvous.
func (o *offload) drop() {
	if detector.Enabled {
		for _, f := range slices.Concat(o.running[:], o.waiting) {
			detector.Completed([]uint32{f.ticket})
		}
	}
	*o = offload{}
}

// completeSend adds the completion c of a request of the send queue. It becomes
// visible once the packets that were sent on way have left the process. If the
// queue is the device's own, the program gets a completion of the receive
// instead.
func (q *QP) completeSend(c *Completion, way Way) {
	if q.offload == nil {
		q.sendCQ.add(c, dependency{way: way})
		return
	}
	n := c.Count - 1
	f := &q.offload.running[n/2%offloaded]
	atomic.StoreUint32(&q.send.Freed, c.Count)
	if n%2 != 0 {
		if c.Status != libibverbs.IBV_WC_SUCCESS && c.Status != libibverbs.IBV_WC_WR_FLUSH_ERR {
			q.event(libibverbs.IBV_EVENT_QP_FATAL, q) // no completion tells
		}
		*f = pull{}
		q.feed()
		return
	}
	var done Completion
	done.WrId, done.Status, done.QpNum = f.id, c.Status, q.number
	if detector.Enabled {
		done.Ticket = f.ticket
		q.told.Next(f.ticket)
	}
	if c.Status == libibverbs.IBV_WC_SUCCESS {
		done.Opcode, done.ByteLen, done.SrcQp = libibverbs.IBV_WC_TM_RECV, f.match.length, q.attr.DestQpNum
		done.WcFlags = libibverbs.IBV_WC_TM_DATA_VALID
	}
	q.recvCQ.add(&done, dependency{})
}
