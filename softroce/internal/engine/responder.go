// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// iwarpRNR is the timer code of RNR NAKs of a device that uses iWARP, for 0.64
// ms. TCP delivers a message soon after there is a receive, and no program sets
// a timer.
const iwarpRNR = 12

// responder is the receiving half of a queue pair.
type responder struct {
	psn wire.PSN // next PSN that is expected
	msn uint32   // number of completed messages, modulo 1<<24

	nak         bool // whether a NAK for the expected PSN was sent
	established bool // whether IBV_EVENT_COMM_EST was reported
	unheard     bool // whether the queue pair may not send yet, as no request has arrived
	refused     bool // whether a request of the peer has failed the queue pair; nothing is sent after the NAK for that request

	srq     *SRQ // for XRC, the shared receive queue that the current message names
	message message
	receive receive
	copy    *LateCopy      // copy that is left to the owner, for the expected packet; nil: none
	held    []*wire.Packet // requests that wait until the copy has ended
	owned   int            // number of them, from the first on, whose payload is not memory of the program
	next    uint32         // number of the next receive to take; unused with a shared receive queue

	// answered is a ring of the answers to the latest READs and atomics, as
	// the peer may request them again. Its length is the number of READs
	// and atomics that the peer may have in flight. The program may change
	// that number in the state SQD.
	answered    []answer
	nextAnswer  int // index in answered of the entry that is written next
	outstanding int // number of answers to READs and atomics that are being sent for the first time
	repeats     int // number of answers that are being sent again
	empty       int // number of empty answers that are being sent, for the first time or again

	answers []answer // answers to send, from index first on, in the order of their PSNs
	first   int      // index in answers of the answer that is sent next

	added, sent uint32        // numbers of the answer that was added last and of the one that was sent last
	overdue     time.Duration // time at which the next answer has waited for room for stagedTimeout; 0: not known yet
}

// message is a SEND or WRITE of which some packets have arrived.
type message struct {
	kind   messageKind
	addr   uint64 // for a WRITE, address to which the next packet is written
	rkey   uint32 // for a WRITE, the key
	left   uint32 // for a WRITE, number of bytes that have not arrived
	length uint32 // number of bytes that have arrived
}

// messageKind is the kind of the message that is arriving.
type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// receive is the posted receive that the current message uses.
type receive struct {
	taken    bool       // whether the message uses a posted receive; otherwise the other fields are not valid
	id       uint64     // ID of the work request
	queue    *WorkQueue // receive queue in which the receive's completion frees a slot; nil: the slot is already free
	count    uint32     // number that is stored in queue.Freed when the completion is polled
	ticket   uint32     // ticket of the work request
	segments []libibverbs.Sge
	room     uint64   // number of bytes in all segments
	match    tagMatch // with a shared receive queue that matches tags, what the message is
}

// answer is an ACK or NAK to send, or a response to a READ or atomic.
type answer struct {
	kind     answerKind
	repeated bool   // whether the peer has requested the answer again
	count    uint32 // number of the answer, in the order in which answers were added
	syndrome wire.Syndrome
	msn      uint32   // number of messages that were completed when the answer was added
	psn      wire.PSN // PSN of the next packet
	packets  int      // number of remaining packets
	addr     uint64   // for a READ, address of the next packet's payload
	rkey     uint32   // for a READ, the key
	pd       *PD      // for a READ, the protection domain to which the key must belong
	length   uint32   // for a READ, the number of remaining bytes
	total    uint32   // for a READ, the number of all bytes
	begun    bool     // for a READ, whether the first packet was sent
	value    uint64   // for an atomic, the word's old value
}

type answerKind uint8

const (
	ackAnswer answerKind = iota
	readAnswer
	atomicAnswer
	emptyAnswer // to a FLUSH or an ATOMIC WRITE: a READ response without data
)

// refusal says what happens when a request of the peer cannot be executed.
type refusal struct {
	syndrome wire.Syndrome        // syndrome of the NAK that answers the request
	status   libibverbs.WcStatus  // status with which the receive of the message completes, if the message uses one
	event    libibverbs.EventType // asynchronous event to report
	silent   bool                 // whether no event is reported, as the completion of the receive shows the failure
}

var (
	// lost is the refusal of a packet that is treated as lost.
	lost = &refusal{}
	// notReady is the refusal of a packet that needs a receive when none is
	// posted.
	notReady = &refusal{}
	// pretendedNotReady is the refusal of a packet by a receiver in hostile
	// mode that pretends that no receive is posted.
	pretendedNotReady = &refusal{}

	// copying is the refusal of a packet that is executed once its payload
	// is copied.
	copying = &refusal{}

	// noReceive is notReady on a device that does not wait for a receive.
	noReceive = &refusal{syndrome: wire.NakRemoteOperation, silent: true}

	badRequest = &refusal{
		syndrome: wire.NakInvalidRequest, status: libibverbs.IBV_WC_REM_INV_REQ_ERR, event: libibverbs.IBV_EVENT_QP_REQ_ERR,
	}
	tooLong = &refusal{
		syndrome: wire.NakInvalidRequest, status: libibverbs.IBV_WC_LOC_LEN_ERR, event: libibverbs.IBV_EVENT_QP_REQ_ERR,
	}
	badAccess = &refusal{
		syndrome: wire.NakRemoteAccess, status: libibverbs.IBV_WC_LOC_ACCESS_ERR, event: libibverbs.IBV_EVENT_QP_ACCESS_ERR,
	}
	badReceive = &refusal{
		syndrome: wire.NakRemoteOperation, status: libibverbs.IBV_WC_LOC_PROT_ERR, silent: true,
	}
)

// Receive handles a packet from the network, and takes ownership of it.
// Completions get the time of the last Advance.
func (d *Device) Receive(p *wire.Packet) {
	d.receive(p)
	d.config.Packets.Put(p)
}

// receive handles a packet from the network. It drops a packet that is not for
// a queue pair of the device.
func (d *Device) receive(p *wire.Packet) {
	if d.gone || d.down || !p.Opcode.Valid() || p.PKey&0x7FFF != defaultPKey&0x7FFF {
		return
	}
	d.counters.PacketsReceived += 1 + uint64(p.More)
	p.PSN = p.PSN.Add(0) // 24 bits
	if p.DestQP == multicastQPN {
		d.receiveMulticast(p)
		return
	}
	q := d.qps[p.DestQP]
	if q == nil || p.Opcode.Transport() != q.transport && (p.Opcode != wire.CNP || !q.markable()) {
		return
	}
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_RTR:
		if p.Opcode.IsResponse() {
			return
		}
	case libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
	default:
		return
	}
	if q.kind == libibverbs.IBV_QPT_UD {
		if d.addresses[p.DGID] {
			q.receiveDatagram(p)
		}
		return
	}
	if p.SGID != q.path.dgid || p.DGID != q.path.sgid {
		return
	}
	if q.markable() && p.TrafficClass&ecnBits == ecnMarked {
		d.counters.PacketsMarked++
		q.notify()
	}
	switch {
	case p.Opcode == wire.CNP:
		q.receiveNotification()
	case p.Opcode.IsResponse():
		if q.kind != libibverbs.IBV_QPT_XRC_RECV { // which has sent no request
			q.receiveResponse(p)
		}
	case q.kind == libibverbs.IBV_QPT_XRC_SEND: // which takes no request
	case q.reliable:
		q.receiveRequest(p)
	default:
		q.receiveUnreliable(p)
	}
}

// transportOf returns the transport of packets for queue pairs of a type.
func transportOf(kind libibverbs.QpType) wire.Transport {
	switch kind {
	case libibverbs.IBV_QPT_RC:
		return wire.RC
	case libibverbs.IBV_QPT_UC:
		return wire.UC
	case libibverbs.IBV_QPT_XRC_SEND, libibverbs.IBV_QPT_XRC_RECV:
		return wire.XRC
	}
	return wire.UD
}

// noteFirst reports IBV_EVENT_COMM_EST if a packet arrives before the program
// has taken the queue pair to RTS.
func (q *QP) noteFirst() {
	r := &q.responder
	if q.attr.QpState == libibverbs.IBV_QPS_RTR && !r.established {
		r.established = true
		q.event(libibverbs.IBV_EVENT_COMM_EST, q)
	}
}

// receiveRequest handles a packet for the responder of a reliable connection:
// it executes a request, or answers a duplicate or a gap.
func (q *QP) receiveRequest(p *wire.Packet) {
	r := &q.responder
	if r.copy != nil {
		q.hold(p)
		return
	}
	q.noteFirst()
	switch ahead := p.PSN.Diff(r.psn); {
	case ahead < 0:
		q.receiveDuplicate(p)
		return
	case ahead > 0:
		if !r.nak {
			r.nak = true
			q.offerAck(wire.NakSequence, r.psn)
		}
		return
	}
	packets := 1
	refused := q.aim(p)
	message := p.Opcode.IsMessage()
	switch {
	case refused != nil:
	case message:
		packets += int(p.More)
		refused = q.doMessage(p)
	case p.Opcode.Operation() == wire.RCReadRequest:
		packets = q.packets(p.Length)
		refused = q.doRead(p, packets)
	case p.Opcode.IsAtomic():
		refused = q.doAtomic(p)
	case p.Opcode.Operation() == wire.RCFlush:
		refused = q.doFlush(p)
	default: // an ATOMIC WRITE
		refused = q.doAtomicWrite(p)
	}
	q.executed(p, packets, refused)
}

// executed does what follows the execution of the request p, or its refusal.
// packets is the number of PSNs that p uses.
func (q *QP) executed(p *wire.Packet, packets int, refused *refusal) {
	r := &q.responder
	if refused == notReady && !q.device.limits.RNR {
		refused = noReceive
	}
	switch refused {
	case nil:
		r.nak, r.unheard = false, false
		r.psn = r.psn.Add(packets)
		switch {
		case p.Opcode.IsMessage():
			if p.AckReq {
				q.addAck(wire.Ack, r.psn.Add(-1))
			}
		case (p.Opcode.IsAtomic() || p.Opcode.Operation() == wire.RCAtomicWrite) && q.outside:
			// The program may see the change of the word, and exit,
			// at once.
			q.answerNow()
			q.device.config.Outgoing.Flush()
		}
	case copying:
	case lost: // some of the packet may have been stored, and the peer may send another one instead
		q.noteOverwritten(r.message.length)
	case notReady:
		r.nak = true
		timer := q.attr.MinRnrTimer
		if q.device.limits.IWARP {
			timer = iwarpRNR
		}
		q.offerAck(wire.RNRNak(timer), p.PSN)
	case pretendedNotReady:
		r.nak = true
		q.offerAck(wire.RNRNak(shortestRNR), p.PSN)
	default:
		q.addAck(refused.syndrome, p.PSN)
		q.countRefused(p.Opcode)
		q.refuse(refused)
	}
}

// countRefused counts a READ or WRITE of the peer that was refused. op is the
// opcode of its packet.
func (q *QP) countRefused(op wire.Opcode) {
	switch {
	case q.counters == nil:
	case op.Operation() == wire.RCReadRequest:
		q.count(libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ, libibverbs.IBV_WC_REM_ACCESS_ERR, 0, q.dependency(), q.toldOfPeer())
	case op.IsWrite():
		q.count(libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE, libibverbs.IBV_WC_REM_ACCESS_ERR, 0, q.dependency(), q.toldOfPeer())
	}
}

// refuse fails the queue pair, because of a request of the peer, as f says.
func (q *QP) refuse(f *refusal) {
	r := &q.responder
	if r.receive.taken {
		q.failReceive(f.status)
	}
	if q.reliable && !f.silent && !r.refused {
		q.event(f.event, q)
	}
	r.refused = true
	q.fail()
}

// doMessage executes the next packet of a SEND or WRITE. It returns nil on
// success.
func (q *QP) doMessage(p *wire.Packet) *refusal {
	r, m, op := &q.responder, &q.responder.message, p.Opcode
	begins, ends := op.Begins(), op.Ends()
	kind := sendMessage
	if op.IsWrite() {
		kind = writeMessage
	}
	switch {
	case begins && m.kind != noMessage, !begins && m.kind != kind:
		return badRequest
	case kind == writeMessage && !q.permits(libibverbs.IBV_ACCESS_REMOTE_WRITE):
		return badRequest
	}
	next := *m // takes effect when the packet is accepted
	if begins {
		next = message{kind: kind}
		if kind == writeMessage {
			next.addr, next.rkey, next.left = p.Addr, p.RKey, p.Length
		}
	}
	n := uint32(p.PayloadLen())
	switch {
	case !q.rightLength(p, n, begins, ends), n > maxMessage-next.length:
		return badRequest
	case kind == writeMessage && (next.left > maxMessage || n > next.left || ends != (n == next.left)):
		return badRequest
	}
	if (kind == sendMessage && begins || op.HasImm()) && !r.receive.taken {
		if q.overrun() {
			return badReceive
		}
		if q.device.config.Hostile != nil && q.pretendsNotReady() {
			return pretendedNotReady
		}
		if kind == sendMessage && q.srq != nil && q.srq.tags != nil {
			if refused := q.takeTagged(p, n); refused != nil {
				return refused
			}
		} else if !q.takeReceive() {
			return notReady
		}
	}
	var refused *refusal
	switch {
	case kind == writeMessage:
		refused = q.write(p, &next, n)
	case r.receive.match.kind == rendezvous:
		refused = q.storeMatch()
	case begins && r.receive.match.kind == eager:
		refused = q.fillMatched(p.Payload, n)
	default:
		refused = q.fill(p.Payload, next.length-r.receive.match.skip(), n)
	}
	if refused != nil {
		return refused
	}
	return q.arrived(p, &next, n)
}

// arrived records that the n bytes of p's payload are in memory. next is what
// the message is without them. arrived returns nil on success.
func (q *QP) arrived(p *wire.Packet, next *message, n uint32) *refusal {
	r, m, op := &q.responder, &q.responder.message, p.Opcode
	begins, kind := op.Begins(), next.kind
	next.length += n
	if kind == writeMessage {
		next.addr += uint64(n)
		next.left -= n
	}
	if !op.Ends() {
		*m = *next
		if begins && r.receive.match.kind == eager {
			q.completeMatch()
		}
		return nil
	}
	if op.HasInv() && !q.invalidate(p.InvKey, r.receive.ticket) {
		return badAccess
	}
	*m = message{}
	q.completeMessage()
	if kind == writeMessage && q.counters != nil {
		q.count(libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE, libibverbs.IBV_WC_SUCCESS, next.length, q.dependencyOf(p), q.toldOfPeer())
	}
	if kind == sendMessage || op.HasImm() {
		c := q.receiveCompletion(libibverbs.IBV_WC_SUCCESS)
		c.Opcode, c.ByteLen, c.SrcQp = libibverbs.IBV_WC_RECV, next.length, q.attr.DestQpNum
		if kind == writeMessage {
			c.Opcode = libibverbs.IBV_WC_RECV_RDMA_WITH_IMM
		}
		if kind == sendMessage && r.receive.match.kind != notTagged {
			whole := begins && p.More == 0
			if begins && !whole && r.receive.match.kind == eager {
				q.completeMatch()
			}
			q.setTagged(&c, whole)
		}
		c.setHeaders(p)
		dep := q.dependencyOf(p)
		dep.solicited = p.Solicited
		q.completeReceive(&c, dep)
		if r.receive.match.kind == rendezvous && r.receive.match.read {
			q.fetch()
		}
	}
	return nil
}

// dependency returns what a completion or event of q waits for: all answers
// that were added so far.
func (q *QP) dependency() dependency { return q.dependencyOn(q.responder.added) }

// dependencyOn returns what waits for the answers of q up to the one with that
// number.
func (q *QP) dependencyOn(answers uint32) dependency {
	if !q.outside {
		return dependency{}
	}
	return dependency{qp: q, answers: answers, way: q.way}
}

// dependencyOf returns what the completion of a message or the end of a WRITE
// waits for. p is the last packet of the message. The result has all answers
// that were added so far and, if p requests an acknowledgement, also that one,
// which is added next.
func (q *QP) dependencyOf(p *wire.Packet) dependency {
	dep := q.dependency()
	if p.AckReq {
		dep.answers++
	}
	return dep
}

// rightLength reports whether a payload of n bytes fits a packet of a message.
// begins and ends say whether it is the first and the last one.
func (q *QP) rightLength(p *wire.Packet, n uint32, begins, ends bool) bool {
	end := int(n) - int(p.More)*q.mtu // bytes of the last packet for which p stands
	if !ends {
		return end == q.mtu
	}
	return 0 < end && end <= q.mtu || n == 0 && begins && p.More == 0
}

// permits reports whether the queue pair permits remote access of that kind.
func (q *QP) permits(access libibverbs.AccessFlags) bool {
	return q.attr.QpAccessFlags&access != 0
}

// write writes the n bytes of p's payload to the memory of the WRITE m.
func (q *QP) write(p *wire.Packet, m *message, n uint32) *refusal {
	// The key may have been invalidated since the previous packet.
	at, status := q.device.remote(q, q.memoryPD(), m.addr, uint64(m.left), m.rkey, libibverbs.IBV_ACCESS_REMOTE_WRITE)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	d, b := q.device, at.bytes(uint64(n))
	if detector.Enabled && m.length == 0 {
		q.tellRemote(p, detector.RemoteWrite, at, uint64(m.left), m.rkey)
	}
	var refused *refusal
	if q.outside && n == m.left && n > 0 && len(p.Payload) == 1 {
		refused = q.writeLast(b, p.Payload[0], q.dependencyOf(p))
	} else {
		if len(d.staged.writes) > 0 {
			if d.unstageOverlap(b); q.responder.refused {
				return lost
			}
		}
		if n >= minLater && q.mayLeave(at.mr) {
			q.leaveCopy(p, m, b)
			return copying
		}
		d.target = append(d.target[:0], b)
		refused = refusalOf(scatter(d.target, p.Payload), badAccess)
	}
	return refused
}

// refusalOf returns the refusal for a fault of a copy, or nil for no fault.
// target is the refusal if the memory of this program is at fault.
func refusalOf(f fault, target *refusal) *refusal {
	switch f {
	case sourceFault:
		return lost
	case targetFault:
		return target
	}
	return nil
}

// fill writes the n bytes of src to the current receive, from offset on.
func (q *QP) fill(src [][]byte, offset, n uint32) *refusal {
	d, r := q.device, &q.responder.receive
	if uint64(offset)+uint64(n) > r.room {
		return tooLong
	}
	var ok bool
	if d.target, ok = d.slices(d.target[:0], q.receivesPD(), r.segments, offset, n, libibverbs.IBV_ACCESS_LOCAL_WRITE); !ok {
		return badReceive
	}
	if len(d.staged.writes) > 0 {
		for _, b := range d.target {
			d.unstageOverlap(b)
		}
		if q.responder.refused {
			return lost
		}
	}
	return refusalOf(scatter(d.target, src), badReceive)
}

// takeReceive makes the next posted receive the current one. It returns false
// if no receive is posted.
func (q *QP) takeReceive() bool {
	r := &q.responder
	v := &r.receive
	var s *RecvSlot
	w, srq := q.recv, q.source()
	if srq != nil {
		var ok bool
		if s, ok = srq.next(); !ok {
			return false
		}
		w = srq.queue
		v.queue = nil
	} else {
		if w.waiting(r.next, r.next) == 0 {
			return false
		}
		s = w.recv(r.next)
		r.next++
		v.queue, v.count = w, r.next
	}
	v.taken, v.id, v.match.kind, v.ticket = true, s.ID, notTagged, s.Ticket
	q.device.noteWrites(v.ticket)
	segments, _ := w.recvSegments(s)
	v.segments = append(v.segments[:0], segments...)
	v.measure()
	if srq != nil && srq.took() {
		q.event(libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED, srq)
	}
	return true
}

// measure sets the number of bytes in all segments.
func (v *receive) measure() {
	v.room = 0
	for _, sge := range v.segments {
		v.room += uint64(sge.Length)
	}
}

// receiveCompletion returns a completion of the current receive, with that
// status.
func (q *QP) receiveCompletion(status libibverbs.WcStatus) Completion {
	v := &q.responder.receive
	c := Completion{Queue: v.queue, Count: v.count}
	c.WrId, c.Status, c.QpNum = v.id, status, q.number
	c.Ticket = v.ticket
	if q.xrcd != nil {
		c.Count = q.responder.srq.number
	}
	return c
}

// completeReceive adds the completion c of the current receive, which is used
// up.
func (q *QP) completeReceive(c *Completion, dep dependency) {
	q.responder.receive.taken = false
	if detector.Enabled {
		q.told.Next(c.Ticket)
	}
	told := q.toldOf(c.Ticket)
	q.device.staged.noteCompletion(q)
	q.receivesCQ().add(c, dep)
	if q.counters != nil {
		q.count(libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV, c.Status, c.ByteLen, dep, told)
	}
	if q.overrun() { // the completion queue does not know q
		q.device.failing = append(q.device.failing, q)
	}
}

// failReceive completes the current receive, which has failed, with status.
func (q *QP) failReceive(status libibverbs.WcStatus) {
	q.forgetUnexpected()
	c := q.receiveCompletion(status)
	q.completeReceive(&c, q.dependency())
}

// setHeaders copies the immediate data or the invalidated key from a message's
// last packet to its completion.
func (c *Completion) setHeaders(p *wire.Packet) {
	switch {
	case p.Opcode.HasImm():
		c.WcFlags |= libibverbs.IBV_WC_WITH_IMM
		*c.ImmData() = libibverbs.Be32(p.Imm)
	case p.Opcode.HasInv():
		c.WcFlags |= libibverbs.IBV_WC_WITH_INV
		*c.InvalidatedRkey() = p.InvKey
	}
}

// doRead queues the response to a READ. packets is the number of the response's
// packets.
func (q *QP) doRead(p *wire.Packet, packets int) *refusal {
	r := &q.responder
	switch {
	case r.message.kind != noMessage, !q.permits(libibverbs.IBV_ACCESS_REMOTE_READ), p.Length > maxMessage,
		p.PayloadLen() != 0, packets > maxReadPackets, r.outstanding >= int(q.attr.MaxDestRdAtomic):
		return badRequest
	}
	pd := q.memoryPD()
	at, status := q.device.remote(q, pd, p.Addr, uint64(p.Length), p.RKey, libibverbs.IBV_ACCESS_REMOTE_READ)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	if detector.Enabled {
		q.tellRemote(p, detector.RemoteRead, at, uint64(p.Length), p.RKey)
	}
	q.remember(answer{kind: readAnswer, psn: p.PSN, packets: packets, addr: p.Addr, rkey: p.RKey, pd: pd, length: p.Length, total: p.Length})
	return nil
}

// doAtomic executes an atomic operation and queues its response.
func (q *QP) doAtomic(p *wire.Packet) *refusal {
	r := &q.responder
	switch {
	case r.message.kind != noMessage, !q.permits(libibverbs.IBV_ACCESS_REMOTE_ATOMIC), p.Addr%8 != 0,
		p.PayloadLen() != 0, r.outstanding >= int(q.attr.MaxDestRdAtomic):
		return badRequest
	}
	at, status := q.device.remote(q, q.memoryPD(), p.Addr, 8, p.RKey, libibverbs.IBV_ACCESS_REMOTE_ATOMIC)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	b := at.bytes(8)
	word, ok := wordOf(b)
	if !ok {
		return badRequest
	}
	if q.unstageBefore(b); r.refused {
		return lost
	}
	if detector.Enabled {
		q.tellRemote(p, detector.RemoteAtomic, at, 8, p.RKey)
	}
	var old uint64
	if p.Opcode.Operation() == wire.RCCompareSwap {
		old, ok = compareAndSwap(word, p.Compare, p.SwapAdd)
	} else {
		old, ok = fetchAndAdd(word, p.SwapAdd)
	}
	if !ok {
		return badAccess
	}
	q.remember(answer{kind: atomicAnswer, psn: p.PSN, packets: 1, value: old})
	return nil
}

// maxEmptyAnswers limits the empty answers that wait to be sent. A peer's
// FLUSHes and ATOMIC WRITEs in flight may be more than MaxDestRdAtomic, as
// their answers need no resources.
const maxEmptyAnswers = 2 * window

// mayAnswerEmpty reports whether q can execute a FLUSH or an ATOMIC WRITE in
// its state.
func (q *QP) mayAnswerEmpty() bool {
	r := &q.responder
	return r.message.kind == noMessage && q.attr.MaxDestRdAtomic > 0 && r.empty < maxEmptyAnswers
}

// validFlush reports whether a FLUSH has a known type and level.
func validFlush(kind, level uint8) bool {
	const known = libibverbs.IBV_FLUSH_GLOBAL | libibverbs.IBV_FLUSH_PERSISTENT
	return kind != 0 && libibverbs.PlacementType(kind)&^known == 0 && libibverbs.SelectivityLevel(level) <= libibverbs.IBV_FLUSH_MR
}

// doFlush executes a FLUSH and queues its response. Earlier WRITEs are in
// memory already, apart from bytes that are staged.
func (q *QP) doFlush(p *wire.Packet) *refusal {
	d := q.device
	var access libibverbs.AccessFlags
	persistent := libibverbs.PlacementType(p.FlushType)&libibverbs.IBV_FLUSH_PERSISTENT != 0
	if persistent {
		access |= libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	}
	if libibverbs.PlacementType(p.FlushType)&libibverbs.IBV_FLUSH_GLOBAL != 0 {
		access |= libibverbs.IBV_ACCESS_FLUSH_GLOBAL
	}
	switch {
	case !q.mayAnswerEmpty(), !validFlush(p.FlushType, p.FlushLevel), access&^q.attr.QpAccessFlags != 0,
		access&^d.FlushAccess() != 0, p.PayloadLen() != 0, p.Length > maxMessage:
		return badRequest
	}
	at, length, ok := d.flushed(q, p, access)
	if !ok {
		return badAccess
	}
	if d.hasStagedAt(at.mr.address(at.addr), length) {
		if d.answerAndUnstage(); q.responder.refused {
			return lost
		}
	}
	if persistent && length > 0 && d.config.Persist(at.bytes(length)) != nil {
		return badAccess
	}
	q.completeMessage()
	q.addEmptyAnswer(p.PSN)
	return nil
}

// doAtomicWrite executes an ATOMIC WRITE and queues its response.
func (q *QP) doAtomicWrite(p *wire.Packet) *refusal {
	d := q.device
	switch {
	case !d.limits.has(libibverbs.IBV_WR_ATOMIC_WRITE), !q.mayAnswerEmpty(), !q.permits(libibverbs.IBV_ACCESS_REMOTE_WRITE),
		p.Addr%8 != 0, p.Length != 8, p.PayloadLen() != 8:
		return badRequest
	}
	at, status := d.remote(q, q.memoryPD(), p.Addr, 8, p.RKey, libibverbs.IBV_ACCESS_REMOTE_WRITE)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	b := at.bytes(8)
	word, ok := wordOf(b)
	if !ok {
		return badRequest
	}
	d.target = append(d.target[:0], d.word[:])
	if refused := refusalOf(scatter(d.target, p.Payload), badAccess); refused != nil {
		return refused
	}
	if q.unstageBefore(b); q.responder.refused {
		return lost
	}
	if detector.Enabled {
		q.tellRemote(p, detector.RemoteAtomic, at, 8, p.RKey)
	}
	n := binary.NativeEndian.Uint64(d.word[:])
	if _, ok := change(word, func(uint64) uint64 { return n }); !ok {
		return badAccess
	}
	q.completeMessage()
	q.addEmptyAnswer(p.PSN)
	return nil
}

// completeMessage counts a request of the peer as completed.
func (q *QP) completeMessage() { q.responder.msn = (q.responder.msn + 1) & 0xFFFFFF }

// addEmptyAnswer queues the empty answer to the request with that PSN.
func (q *QP) addEmptyAnswer(psn wire.PSN) {
	r := &q.responder
	r.empty++
	q.addAnswer(answer{kind: emptyAnswer, syndrome: wire.Ack, msn: r.msn, psn: psn, packets: 1})
}

// remember queues the answer to a new READ or atomic. It also keeps a copy of
// the answer, since the peer may request it again.
func (q *QP) remember(a answer) {
	r := &q.responder
	q.completeMessage()
	a.syndrome, a.msn = wire.Ack, r.msn
	if n := int(q.attr.MaxDestRdAtomic); len(r.answered) != n {
		r.keep(n)
	}
	r.answered[r.nextAnswer] = a
	r.nextAnswer = (r.nextAnswer + 1) % len(r.answered)
	r.outstanding++
	q.addAnswer(a)
}

// keep changes the length of r.answered to n, and keeps the newest answers.
func (r *responder) keep(n int) {
	answers := slices.Concat(r.answered[r.nextAnswer:], r.answered[:r.nextAnswer]) // from the oldest on
	answers = slices.DeleteFunc(answers, func(a answer) bool { return a.packets == 0 })
	answers = answers[max(0, len(answers)-n):]
	r.answered = make([]answer, n)
	r.nextAnswer = copy(r.answered, answers) % n
}

// receiveDuplicate answers a request that has been executed already.
func (q *QP) receiveDuplicate(p *wire.Packet) {
	r := &q.responder
	if p.Opcode.IsMessage() {
		q.offerAck(wire.Ack, r.psn.Add(-1))
		return
	}
	if op := p.Opcode.Operation(); op == wire.RCFlush || op == wire.RCAtomicWrite {
		if r.empty < maxEmptyAnswers {
			q.addEmptyAnswer(p.PSN)
		}
		return
	}
	if r.repeats >= len(r.answered) {
		return // enough answers are being repeated already
	}
	for i := range r.answered {
		a := r.answered[i]
		offset := p.PSN.Diff(a.psn)
		if a.packets == 0 || offset < 0 || offset >= a.packets {
			continue
		}
		if p.Opcode.Operation() == wire.RCReadRequest {
			skip := uint64(offset) * uint64(q.mtu)
			if a.kind != readAnswer || p.RKey != a.rkey || p.Addr != a.addr+skip || skip+uint64(p.Length) > uint64(a.length) {
				return
			}
			a.psn, a.addr, a.length = p.PSN, p.Addr, p.Length
			a.packets = q.packets(p.Length)
		} else if a.kind != atomicAnswer {
			return
		}
		a.repeated = true
		r.repeats++
		q.addAnswer(a)
		return
	}
}

// maxAnswers limits the number of queued answers to which offerAck adds. The
// requests that a peer may have in flight need fewer.
const maxAnswers = 4 * window

// offerAck queues an ACK or NAK for a packet that executes no request, unless
// many answers are queued already. To the peer, the ACK or NAK is then lost.
func (q *QP) offerAck(s wire.Syndrome, psn wire.PSN) {
	if r := &q.responder; len(r.answers)-r.first < maxAnswers {
		q.addAck(s, psn)
	}
}

// addAck queues an ACK or NAK. If the answer that was queued last is an ACK,
// the new one replaces it.
func (q *QP) addAck(s wire.Syndrome, psn wire.PSN) {
	r := &q.responder
	a := answer{kind: ackAnswer, syndrome: s, msn: r.msn, psn: psn}
	if n := len(r.answers); n > r.first {
		if last := &r.answers[n-1]; last.kind == ackAnswer && last.syndrome == wire.Ack {
			r.added++
			a.count = r.added
			*last = a
			return
		}
	}
	q.addAnswer(a)
}

// addAnswer queues an answer.
func (q *QP) addAnswer(a answer) {
	r := &q.responder
	if r.first == len(r.answers) {
		r.first, r.answers = 0, r.answers[:0]
	} else if r.first >= 32 && r.first >= len(r.answers)/2 {
		r.answers = r.answers[:copy(r.answers, r.answers[r.first:])]
		r.first = 0
	}
	r.added++
	a.count = r.added
	r.answers = append(r.answers, a)
	if q.outside {
		q.device.staged.queuedAnswers++
	}
	q.device.schedule.add(q)
}

// answerNow sends queued answers at once, before Advance serves q.
func (q *QP) answerNow() {
	if q.answer(turnPackets) {
		q.device.schedule.add(q)
	}
}

// answer sends up to budget packets of queued answers. more reports whether it
// stopped only because of the budget.
func (q *QP) answer(budget int) (more bool) {
	r := &q.responder
	room := false // whether q.room was called and returned true
	for ; budget > 0; budget-- {
		if r.first == len(r.answers) {
			return false
		}
		a := &r.answers[r.first]
		var p *wire.Packet
		switch a.kind {
		case ackAnswer:
			p = q.packet(wire.RCAck, a.psn)
		case atomicAnswer:
			p = q.packet(wire.RCAtomicAck, a.psn)
			p.Orig = a.value
		case emptyAnswer:
			p = q.packet(wire.RCReadOnly, a.psn)
		case readAnswer:
			if room = room || q.room(); !room || q.held() {
				return false
			}
			q.paced()
			if p = q.readResponse(a, budget); p == nil {
				q.refuseRead(a)
				continue
			}
		}
		p.Syndrome, p.MSN = a.syndrome, a.msn
		budget -= int(p.More)
		if a.packets -= 1 + int(p.More); a.packets <= 0 {
			q.answerSent(a)
		}
		q.device.transmit(p)
	}
	return r.first != len(r.answers)
}

// answerSent removes the first queued answer, as its last packet is about to be
// sent.
func (q *QP) answerSent(a *answer) {
	r := &q.responder
	switch {
	case a.kind == ackAnswer:
	case a.kind == emptyAnswer:
		r.empty--
	case a.repeated:
		r.repeats--
	default:
		r.outstanding--
		if a.kind == readAnswer && q.counters != nil {
			q.count(libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ, libibverbs.IBV_WC_SUCCESS, a.total, q.dependencyOn(a.count), q.toldOfPeer())
		}
	}
	r.sent, r.overdue = a.count, 0
	r.first++
	if q.outside {
		q.device.staged.queuedAnswers--
	}
}

// readResponse returns the next packet of a READ response. It returns nil if
// the key is not valid any more, or if the memory is paged on demand and cannot
// be read now. The packet stands for at most limit packets.
func (q *QP) readResponse(a *answer, limit int) *wire.Packet {
	d := q.device
	at, status := d.remote(q, a.pd, a.addr, uint64(a.length), a.rkey, libibverbs.IBV_ACCESS_REMOTE_READ)
	if status != libibverbs.IBV_WC_SUCCESS {
		return nil
	}
	stands := 1
	if a.packets > 1 && q.merges() {
		stands = min(a.packets, limit, q.maxMerged())
	}
	op := wire.RCReadMiddle
	switch ends := a.packets == stands; {
	case !a.begun && ends:
		op = wire.RCReadOnly
	case !a.begun:
		op = wire.RCReadFirst
	case ends:
		op = wire.RCReadLast
	}
	p := q.packet(op, a.psn)
	p.More = uint16(stands - 1)
	n := min(a.length, uint32(stands*q.mtu))
	if n > 0 {
		if d.hasStagedAt(at.mr.address(at.addr), uint64(n)) {
			d.unstageWrites() // the answers to the earlier WRITEs were sent before this one
		}
		var ok bool
		if p.Payload, ok = at.mr.source(p.Payload, at.addr, uint64(n)); !ok {
			d.config.Packets.Put(p)
			return nil
		}
	}
	a.begun, a.psn = true, a.psn.Add(stands)
	a.addr += uint64(n)
	a.length -= n
	return p
}

// refuseRead handles a READ whose key or memory has become invalid before the
// response was sent completely. The queue pair fails, unless the response is a
// repetition: the peer may have the response already, and the repeated request
// may be a late duplicate.
func (q *QP) refuseRead(a *answer) {
	nak := badAccess
	if a.repeated {
		q.responder.repeats--
		*a = answer{kind: ackAnswer, count: a.count, syndrome: nak.syndrome, msn: a.msn, psn: a.psn}
		return
	}
	psn := a.psn
	q.dropAnswers()
	q.countRefused(wire.RCReadRequest)
	q.addAck(nak.syndrome, psn)
	q.refuse(nak)
}

// dropAnswers drops all queued answers.
func (q *QP) dropAnswers() {
	r := &q.responder
	if q.outside {
		q.device.staged.queuedAnswers -= len(r.answers) - r.first
	}
	r.answers, r.first, r.outstanding, r.repeats, r.empty = r.answers[:0], 0, 0, 0, 0
	r.sent, r.overdue = r.added, 0
}

// sendAcks sends the queued answers up to the first READ response, and drops
// the others. It is called when the queue pair fails or is destroyed. The
// messages that the queue pair has completed must still be acknowledged, as
// hardware would already have done.
func (q *QP) sendAcks() {
	r := &q.responder
	for r.first != len(r.answers) && r.answers[r.first].kind != readAnswer {
		q.answer(1)
	}
	q.dropAnswers()
}
