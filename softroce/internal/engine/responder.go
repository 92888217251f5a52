// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// responder is the receiving half of a queue pair.
type responder struct {
	psn wire.PSN // the expected PSN
	msn uint32   // number of completed messages

	nak         bool // whether the expected PSN was asked for, or must wait for a receive
	established bool // whether COMM_EST was reported
	refused     bool // whether a request of the peer failed the queue pair; the NAK is the last answer

	message message
	receive receive
	next    uint32 // count of the next receive, without a shared receive queue

	// The latest READs and atomics, as many as the peer may have in flight,
	// since it may ask for their answers again. The program may change the
	// number in the state SQD.
	answered    []answer
	nextAnswer  int // index in answered of the entry that is written next
	outstanding int // number of entries of answered whose first answer is still in answers
	repeats     int // number of repeated answers in answers

	answers []answer // the pending answers start at index first, in the order of PSNs
	first   int

	added, sent uint32        // counts of the answers that were added last and sent last
	overdue     time.Duration // if not 0, the time at which the next answer has waited for too long
}

// message is a SEND or WRITE whose packets are arriving.
type message struct {
	kind   messageKind
	addr   uint64 // for a WRITE, the address of the next packet
	rkey   uint32
	left   uint32 // for a WRITE, the number of remaining bytes
	length uint32 // number of bytes so far
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// receive is the receive that the current message uses.
type receive struct {
	taken    bool
	id       uint64
	queue    *WorkQueue // nil if the place is free already
	count    uint32
	segments []libibverbs.Sge
	room     uint64 // number of bytes of all segments
}

// answer is an ACK, a NAK, or the response to a READ or atomic.
type answer struct {
	kind     answerKind
	repeated bool
	count    uint32
	syndrome wire.Syndrome
	msn      uint32
	psn      wire.PSN // PSN of the next packet
	packets  int      // number of remaining packets
	addr     uint64   // for a READ, the address of the next packet's bytes
	rkey     uint32
	length   uint32 // for a READ, the number of remaining bytes
	begun    bool   // for a READ, whether its first packet was sent
	value    uint64 // for an atomic, the old value
}

type answerKind uint8

const (
	ackAnswer answerKind = iota
	readAnswer
	atomicAnswer
)

// A refusal is the consequence of a request that cannot be executed.
type refusal struct {
	syndrome wire.Syndrome
	status   libibverbs.WcStatus // for the receive, if the message has taken one
	event    libibverbs.EventType
	silent   bool // whether the receive's completion replaces the event
}

var (
	// lost stands for a packet that counts as lost.
	lost = &refusal{}
	// notReady stands for a packet that needs a receive when none is posted.
	notReady = &refusal{}
	// unwilling stands for a packet that a hostile receiver answers as if no
	// receive were posted.
	unwilling = &refusal{}

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

// Receive handles a packet from the network, which then belongs to the device.
// The time of resulting completions is that of the last Advance.
func (d *Device) Receive(p *wire.Packet) {
	d.receive(p)
	d.config.Packets.Put(p)
}

func (d *Device) receive(p *wire.Packet) {
	if d.gone || d.down || !p.Opcode.Valid() || p.PKey&0x7FFF != defaultPKey&0x7FFF {
		return
	}
	d.counters.PacketsReceived++
	p.PSN = p.PSN.Add(0) // 24 bits
	if p.DestQP == multicastQPN {
		d.receiveMulticast(p)
		return
	}
	q := d.qps[p.DestQP]
	if q == nil || p.Opcode.Transport() != q.transport() && (p.Opcode != wire.CNP || !q.markable()) {
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
		q.receiveResponse(p)
	case q.kind == libibverbs.IBV_QPT_RC:
		q.receiveRequest(p)
	default:
		q.receiveUnreliable(p)
	}
}

func (q *QP) transport() wire.Transport {
	switch q.kind {
	case libibverbs.IBV_QPT_RC:
		return wire.RC
	case libibverbs.IBV_QPT_UC:
		return wire.UC
	}
	return wire.UD
}

// noteFirst reports the arrival of the first packet if the program has not
// taken the queue pair to RTS yet.
func (q *QP) noteFirst() {
	r := &q.responder
	if q.attr.QpState == libibverbs.IBV_QPS_RTR && !r.established {
		r.established = true
		q.event(libibverbs.IBV_EVENT_COMM_EST, q)
	}
}

// receiveRequest handles a packet for the responder of a reliable connection.
func (q *QP) receiveRequest(p *wire.Packet) {
	r := &q.responder
	q.noteFirst()
	switch ahead := p.PSN.Diff(r.psn); {
	case ahead < 0:
		q.receiveDuplicate(p)
		return
	case ahead > 0:
		if !r.nak {
			r.nak = true
			q.addAck(wire.NakSequence, r.psn)
		}
		return
	}
	packets := 1
	var refused *refusal
	switch {
	case p.Opcode == wire.RCReadRequest:
		packets = q.packets(p.Length)
		refused = q.doRead(p, packets)
	case p.Opcode.IsAtomic():
		refused = q.doAtomic(p)
	default:
		refused = q.doMessage(p)
	}
	switch refused {
	case nil:
		r.nak = false
		r.psn = r.psn.Add(packets)
		switch {
		case p.AckReq && (p.Opcode.IsSend() || p.Opcode.IsWrite()):
			q.addAck(wire.Ack, p.PSN)
		case p.Opcode.IsAtomic() && q.outside: // the program can see its effect
			q.answerNow()
			q.device.config.Outgoing.Flush()
		}
	case lost:
	case notReady:
		r.nak = true
		q.addAck(wire.RNRNak(q.attr.MinRnrTimer), p.PSN)
	case unwilling:
		r.nak = true
		q.addAck(wire.RNRNak(shortestRNR), p.PSN)
	default:
		q.addAck(refused.syndrome, p.PSN)
		q.refuse(refused)
	}
}

// refuse fails the queue pair because of a request of the peer.
func (q *QP) refuse(f *refusal) {
	r := &q.responder
	if r.receive.taken {
		q.completeReceive(q.receiveCompletion(f.status), q.duty())
	}
	if q.kind == libibverbs.IBV_QPT_RC && !f.silent && !r.refused {
		q.event(f.event, q)
	}
	r.refused = true
	q.fail()
}

// doMessage executes the next packet of a SEND or WRITE.
func (q *QP) doMessage(p *wire.Packet) *refusal {
	r, m, op := &q.responder, &q.responder.message, p.Opcode
	begins, ends := op.IsFirst() || op.IsOnly(), op.IsLast() || op.IsOnly()
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
	next := *m // applies once the packet is accepted
	if begins {
		next = message{kind: kind}
		if kind == writeMessage {
			next.addr, next.rkey, next.left = p.Addr, p.RKey, p.Length
		}
	}
	n := uint32(p.PayloadLen())
	switch {
	case !q.rightLength(op, n), n > maxMessage-next.length:
		return badRequest
	case kind == writeMessage && (next.left > maxMessage || n > next.left || ends != (n == next.left)):
		return badRequest
	}
	if (kind == sendMessage && begins || op.HasImm()) && !r.receive.taken {
		if q.stalls() {
			return unwilling
		}
		if !q.takeReceive() {
			return notReady
		}
	}
	var refused *refusal
	if kind == writeMessage {
		refused = q.write(p, &next, n)
	} else {
		refused = q.fill(p.Payload, next.length, n)
	}
	if refused != nil {
		return refused
	}
	next.length += n
	if !ends {
		*m = next
		return nil
	}
	if op.HasInv() && !q.invalidate(p.InvKey) {
		return badAccess
	}
	*m = message{}
	r.msn = (r.msn + 1) & 0xFFFFFF
	if kind == sendMessage || op.HasImm() {
		c := q.receiveCompletion(libibverbs.IBV_WC_SUCCESS)
		c.Opcode, c.ByteLen, c.SrcQp = libibverbs.IBV_WC_RECV, next.length, q.attr.DestQpNum
		if kind == writeMessage {
			c.Opcode = libibverbs.IBV_WC_RECV_RDMA_WITH_IMM
		}
		c.setHeaders(p)
		y := q.dutyOf(p)
		y.solicited = p.Solicited
		q.completeReceive(c, y)
	}
	return nil
}

// duty returns the duty of a completion: to wait until all answers so far have
// been sent.
func (q *QP) duty() duty {
	if !q.outside {
		return duty{}
	}
	return duty{qp: q, answers: q.responder.added, way: q.way}
}

// dutyOf returns the duty of data that waits for the answer to a packet. If the
// packet asks for one, that is the next answer to be added.
func (q *QP) dutyOf(p *wire.Packet) duty {
	y := q.duty()
	if p.AckReq {
		y.answers++
	}
	return y
}

// rightLength reports whether n bytes of payload fit the packet's place in the
// message.
func (q *QP) rightLength(op wire.Opcode, n uint32) bool {
	switch {
	case op.IsOnly():
		return n <= uint32(q.mtu)
	case op.IsLast():
		return 0 < n && n <= uint32(q.mtu)
	}
	return n == uint32(q.mtu)
}

func (q *QP) permits(access libibverbs.AccessFlags) bool {
	return libibverbs.AccessFlags(q.attr.QpAccessFlags)&access != 0
}

// write writes n bytes of a WRITE.
func (q *QP) write(p *wire.Packet, m *message, n uint32) *refusal {
	// The key may have been invalidated since the last packet.
	b, status := q.device.remoteSlice(q, m.addr, uint64(m.left), m.rkey, libibverbs.IBV_ACCESS_REMOTE_WRITE)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	d := q.device
	var f fault
	if q.outside && n == m.left && n > 0 && len(p.Payload) == 1 {
		f = q.writeLast(b, p.Payload[0], q.dutyOf(p))
	} else {
		d.settle(b[:n])
		d.target = append(d.target[:0], b)
		f = scatter(d.target, p.Payload)
	}
	if refused := refusalOf(f, badAccess); refused != nil {
		return refused
	}
	m.addr += uint64(n)
	m.left -= n
	return nil
}

func refusalOf(f fault, target *refusal) *refusal {
	switch f {
	case sourceFault:
		return lost
	case targetFault:
		return target
	}
	return nil
}

// fill writes n bytes into the receive at offset.
func (q *QP) fill(src [][]byte, offset, n uint32) *refusal {
	d, r := q.device, &q.responder.receive
	if uint64(offset)+uint64(n) > r.room {
		return tooLong
	}
	var ok bool
	if d.target, ok = d.slices(d.target[:0], q.recvPD, r.segments, offset, n, libibverbs.IBV_ACCESS_LOCAL_WRITE); !ok {
		return badReceive
	}
	for _, b := range d.target {
		d.settle(b)
	}
	return refusalOf(scatter(d.target, src), badReceive)
}

// takeReceive takes the next receive. It returns false if there is none.
func (q *QP) takeReceive() bool {
	r := &q.responder
	v := &r.receive
	var s *RecvSlot
	w := q.recv
	if q.srq != nil {
		var ok bool
		if s, ok = q.srq.next(); !ok {
			return false
		}
		w = q.srq.queue
		v.queue = nil
	} else {
		if w.waiting(r.next, r.next) == 0 {
			return false
		}
		s = w.recv(r.next)
		r.next++
		v.queue, v.count = w, r.next
	}
	v.taken, v.id, v.room = true, s.ID, 0
	segments, _ := w.recvSegments(s)
	v.segments = append(v.segments[:0], segments...)
	for _, sge := range v.segments {
		v.room += uint64(sge.Length)
	}
	if q.srq != nil {
		if q.srq.took() {
			q.event(libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED, q.srq)
		}
	}
	return true
}

// receiveCompletion returns the completion of the current receive.
func (q *QP) receiveCompletion(status libibverbs.WcStatus) Completion {
	v := &q.responder.receive
	c := Completion{Queue: v.queue, Count: v.count}
	c.WrId, c.Status, c.QpNum = v.id, status, q.number
	return c
}

func (q *QP) completeReceive(c Completion, y duty) {
	q.responder.receive.taken = false
	q.device.staged.tell(q)
	q.recvCQ.add(c, y)
}

// setHeaders copies the immediate data or the invalidated key of a message's
// last packet to a completion.
func (c *Completion) setHeaders(p *wire.Packet) {
	switch {
	case p.Opcode.HasImm():
		c.WcFlags |= uint32(libibverbs.IBV_WC_WITH_IMM)
		*c.ImmData() = libibverbs.Be32(p.Imm)
	case p.Opcode.HasInv():
		c.WcFlags |= uint32(libibverbs.IBV_WC_WITH_INV)
		*c.InvalidatedRkey() = p.InvKey
	}
}

// doRead begins the response to a READ, which has the given number of packets.
func (q *QP) doRead(p *wire.Packet, packets int) *refusal {
	r := &q.responder
	switch {
	case r.message.kind != noMessage, !q.permits(libibverbs.IBV_ACCESS_REMOTE_READ), p.Length > maxMessage,
		p.PayloadLen() != 0, packets > maxReadPackets, r.outstanding >= int(q.attr.MaxDestRdAtomic):
		return badRequest
	}
	_, status := q.device.remoteSlice(q, p.Addr, uint64(p.Length), p.RKey, libibverbs.IBV_ACCESS_REMOTE_READ)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	q.remember(answer{kind: readAnswer, psn: p.PSN, packets: packets, addr: p.Addr, rkey: p.RKey, length: p.Length})
	return nil
}

// doAtomic executes an atomic operation.
func (q *QP) doAtomic(p *wire.Packet) *refusal {
	r := &q.responder
	switch {
	case r.message.kind != noMessage, !q.permits(libibverbs.IBV_ACCESS_REMOTE_ATOMIC), p.Addr%8 != 0,
		p.PayloadLen() != 0, r.outstanding >= int(q.attr.MaxDestRdAtomic):
		return badRequest
	}
	b, status := q.device.remoteSlice(q, p.Addr, 8, p.RKey, libibverbs.IBV_ACCESS_REMOTE_ATOMIC)
	if status != libibverbs.IBV_WC_SUCCESS {
		return badAccess
	}
	word, ok := wordOf(b)
	if !ok {
		return badRequest
	}
	q.device.settle(b)
	var old uint64
	if p.Opcode == wire.RCCompareSwap {
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

// remember adds the answer to a new READ or atomic, and keeps it in case the
// peer asks again.
func (q *QP) remember(a answer) {
	r := &q.responder
	r.msn = (r.msn + 1) & 0xFFFFFF
	a.syndrome, a.msn = wire.Ack, r.msn
	if n := int(q.attr.MaxDestRdAtomic); len(r.answered) != n {
		r.keep(n)
	}
	r.answered[r.nextAnswer] = a
	r.nextAnswer = (r.nextAnswer + 1) % len(r.answered)
	r.outstanding++
	q.addAnswer(a)
}

// keep makes answered n long. The newest answers stay.
func (r *responder) keep(n int) {
	answers := slices.Concat(r.answered[r.nextAnswer:], r.answered[:r.nextAnswer]) // from the oldest on
	answers = slices.DeleteFunc(answers, func(a answer) bool { return a.packets == 0 })
	answers = answers[max(0, len(answers)-n):]
	r.answered = make([]answer, n)
	r.nextAnswer = copy(r.answered, answers) % n
}

// receiveDuplicate answers a request that was executed before.
func (q *QP) receiveDuplicate(p *wire.Packet) {
	r := &q.responder
	if p.Opcode.IsSend() || p.Opcode.IsWrite() {
		q.addAck(wire.Ack, r.psn.Add(-1))
		return
	}
	if r.repeats >= len(r.answered) {
		return // it is busy with repetitions
	}
	for i := range r.answered {
		a := r.answered[i]
		offset := p.PSN.Diff(a.psn)
		if a.packets == 0 || offset < 0 || offset >= a.packets {
			continue
		}
		if p.Opcode == wire.RCReadRequest {
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

// addAck adds an ACK or NAK. It replaces an ACK at the end of the queue.
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
		q.device.staged.owed++
	}
	q.device.schedule.add(q)
}

// answerNow sends answers before q's turn.
func (q *QP) answerNow() {
	if q.answer(turnPackets) {
		q.device.schedule.add(q)
	}
}

// answer sends up to budget packets of answers. It reports whether there are
// more.
func (q *QP) answer(budget int) (more bool) {
	r := &q.responder
	room := false // for READs; true once known
	for range budget {
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
		case readAnswer:
			if room = room || q.room(); !room || q.held() {
				return false
			}
			q.paced()
			if p = q.readResponse(a); p == nil {
				q.refuseRead(a)
				continue
			}
		}
		p.Syndrome, p.MSN = a.syndrome, a.msn
		if a.packets--; a.packets <= 0 {
			q.answerSent(a)
		}
		q.device.transmit(p)
	}
	return r.first != len(r.answers)
}

// answerSent removes the oldest answer, whose packets are all made.
func (q *QP) answerSent(a *answer) {
	r := &q.responder
	switch {
	case a.kind == ackAnswer:
	case a.repeated:
		r.repeats--
	default:
		r.outstanding--
	}
	r.sent, r.overdue = a.count, 0
	r.first++
	if q.outside {
		q.device.staged.owed--
	}
}

// readResponse returns the next packet of a READ response. It returns nil if
// the key has become invalid.
func (q *QP) readResponse(a *answer) *wire.Packet {
	b, status := q.device.remoteSlice(q, a.addr, uint64(a.length), a.rkey, libibverbs.IBV_ACCESS_REMOTE_READ)
	if status != libibverbs.IBV_WC_SUCCESS {
		return nil
	}
	op := wire.RCReadMiddle
	switch {
	case !a.begun && a.packets == 1:
		op = wire.RCReadOnly
	case !a.begun:
		op = wire.RCReadFirst
	case a.packets == 1:
		op = wire.RCReadLast
	}
	p := q.packet(op, a.psn)
	n := min(a.length, uint32(q.mtu))
	if q.device.hasTail(b[:n]) {
		q.device.showTails() // earlier requests were answered
	}
	if n > 0 {
		p.Payload = append(p.Payload, b[:n])
	}
	a.begun, a.psn = true, a.psn.Add(1)
	a.addr += uint64(n)
	a.length -= n
	return p
}

// refuseRead handles a READ whose key became invalid during or after the
// response. If the READ is a repetition, the peer may have the response
// already, and the request is a late copy: the queue pair does not fail then.
func (q *QP) refuseRead(a *answer) {
	nak := badAccess
	if a.repeated {
		q.responder.repeats--
		*a = answer{kind: ackAnswer, count: a.count, syndrome: nak.syndrome, msn: a.msn, psn: a.psn}
		return
	}
	psn := a.psn
	q.dropAnswers()
	q.addAck(nak.syndrome, psn)
	q.refuse(nak)
}

func (q *QP) dropAnswers() {
	r := &q.responder
	if q.outside {
		q.device.staged.owed -= len(r.answers) - r.first
	}
	r.answers, r.first, r.outstanding, r.repeats = r.answers[:0], 0, 0, 0
	r.sent, r.overdue = r.added, 0
}

// sendAcks sends the answers that do not need memory. A queue pair that fails
// or is destroyed has received the messages that it has completed, and a card
// would have acknowledged them by then.
func (q *QP) sendAcks() {
	r := &q.responder
	for r.first != len(r.answers) && r.answers[r.first].kind != readAnswer {
		q.answer(1)
	}
	q.dropAnswers()
}
