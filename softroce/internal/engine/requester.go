// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// window limits the PSNs without an answer.
	window = 256
	// acksOfWindow is the number of ACKs per window that a long message asks
	// for.
	acksOfWindow = 4
	// maxReadPackets keeps all PSNs without an answer within half of the number
	// space, less one.
	maxReadPackets = 1<<23 - 1 - window
)

// requester is the sending half of a queue pair. It counts work requests as the
// send queue does. They go through three stages:
//
//	head: the oldest incomplete one
//	send: the one whose packets are being sent; the timer or a NAK moves it back towards head
//	next: the one to begin next
type requester struct {
	head, send, next uint32
	requests         []request // the requests from head to next; request n is at index n % len

	psn   wire.PSN // PSN of the next request
	acked wire.PSN // oldest PSN without an answer; within the request at head
	sent  wire.PSN // next PSN to send; within the request at send
	high  wire.PSN // the PSN after the last that was ever sent

	reads      int   // number of READs and atomics from head to next
	retries    uint8 // number of remaining retries until there is progress
	rnrRetries uint8
	rest       time.Duration // if not 0, the pause that an RNR NAK asked for
	obeyed     bool          // whether a NAK took effect since the last progress
	timer      timer

	allowed allowance
}

// request is a work request that was begun. The requester does not read the
// slot again for these facts, since the program may have changed it.
type request struct {
	opcode  libibverbs.WrOpcode
	flags   libibverbs.SendFlags
	status  libibverbs.WcStatus // if not success, the status to fail with once the request is the oldest
	length  uint32
	psn     wire.PSN // PSN of its first packet
	packets int      // number of PSNs; 0 if the request is done without packets
	asked   wire.PSN // for a READ, the start of the response requested last; it ends at a multiple of readPackets
}

func (r *requester) request(n uint32) *request { return &r.requests[n&uint32(len(r.requests)-1)] }

func (r *request) end() wire.PSN { return r.psn.Add(r.packets) }

// hasAnswer reports whether the request needs an answer other than an ACK.
func (r *request) hasAnswer() bool {
	switch r.opcode {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return true
	}
	return false
}

// wcOpcodes maps a work request's opcode to its completion opcode and to the
// types of queue pairs that accept it.
var wcOpcodes = [...]struct {
	opcode     libibverbs.WcOpcode
	rc, uc, ud bool
}{
	libibverbs.IBV_WR_RDMA_WRITE:           {libibverbs.IBV_WC_RDMA_WRITE, true, true, false},
	libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:  {libibverbs.IBV_WC_RDMA_WRITE, true, true, false},
	libibverbs.IBV_WR_SEND:                 {libibverbs.IBV_WC_SEND, true, true, true},
	libibverbs.IBV_WR_SEND_WITH_IMM:        {libibverbs.IBV_WC_SEND, true, true, true},
	libibverbs.IBV_WR_RDMA_READ:            {libibverbs.IBV_WC_RDMA_READ, true, false, false},
	libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:   {libibverbs.IBV_WC_COMP_SWAP, true, false, false},
	libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD: {libibverbs.IBV_WC_FETCH_ADD, true, false, false},
	libibverbs.IBV_WR_LOCAL_INV:            {libibverbs.IBV_WC_LOCAL_INV, true, true, false},
	libibverbs.IBV_WR_BIND_MW:              {libibverbs.IBV_WC_BIND_MW, true, true, false},
	libibverbs.IBV_WR_SEND_WITH_INV:        {libibverbs.IBV_WC_SEND, true, false, false},
}

// takes reports whether queue pairs of q's type accept an opcode.
func (q *QP) takes(op libibverbs.WrOpcode) bool {
	if int(op) >= len(wcOpcodes) {
		return false
	}
	o := wcOpcodes[op]
	switch q.kind {
	case libibverbs.IBV_QPT_RC:
		return o.rc
	case libibverbs.IBV_QPT_UC:
		return o.uc
	}
	return o.ud
}

// sendRequests sends up to budget packets. It reports whether there is more to
// do.
func (q *QP) sendRequests(budget int) (more bool) {
	r := &q.requester
	if q.kind == libibverbs.IBV_QPT_RC && r.sent != r.acked && !q.room() {
		return false // the timer continues if the peer does not
	}
	for range budget {
		if q.attr.QpState == libibverbs.IBV_QPS_ERR {
			return true // to flush
		}
		if r.rest != 0 {
			return false
		}
		if r.send == r.next && !q.begin() {
			return false
		}
		req := r.request(r.send)
		switch {
		case req.status != libibverbs.IBV_WC_SUCCESS:
			if r.head != r.send {
				return false // earlier requests are not complete
			}
			q.settle()
		case req.packets == 0:
			r.send++
			q.settle()
		case q.kind == libibverbs.IBV_QPT_UD:
			q.sendDatagram(req)
		case req.opcode == libibverbs.IBV_WR_RDMA_READ && r.sent != req.psn && r.sent != r.acked:
			return false // earlier answers come first, since the peer limits the READs in progress
		case q.kind == libibverbs.IBV_QPT_RC && r.sent.Diff(r.acked) >= r.allowed.of(q.device.config.Window):
			return false // the next ACK resumes it
		case !req.hasAnswer() && q.held():
			return false
		default:
			q.sendPacket(req)
		}
	}
	return true
}

// begin takes the next work request from the send queue and checks it. It
// executes a request that needs no packets. It returns false if there is none
// or it may not begin yet.
func (q *QP) begin() bool {
	r := &q.requester
	if q.attr.QpState != libibverbs.IBV_QPS_RTS || q.send.waiting(r.head, r.next) == 0 {
		return false
	}
	if r.head != r.next && r.request(r.next-1).status != libibverbs.IBV_WC_SUCCESS {
		return false // nothing may follow a failure
	}
	if r.requests == nil {
		r.requests = make([]request, q.send.Size)
	}
	s := q.send.send(r.next)
	req := r.request(r.next)
	*req = request{opcode: s.Opcode, flags: libibverbs.SendFlags(s.Flags), psn: r.psn}
	if !q.takes(req.opcode) {
		req.status = libibverbs.IBV_WC_LOC_QP_OP_ERR
		r.next++
		return true
	}
	if req.flags&libibverbs.IBV_SEND_FENCE != 0 && r.reads > 0 {
		return false
	}
	switch req.opcode {
	case libibverbs.IBV_WR_LOCAL_INV:
		if r.head != r.next {
			return false // earlier requests may still use the window
		}
		if !q.invalidate(s.Imm) {
			req.status = libibverbs.IBV_WC_MW_BIND_ERR
		}
	case libibverbs.IBV_WR_BIND_MW:
		req.status = q.bind(s)
	default:
		if req.hasAnswer() && r.reads > 0 && r.reads >= int(q.attr.MaxRdAtomic) {
			return false
		}
		if req.status = q.measure(req, s); q.orphan && req.status == libibverbs.IBV_WC_SUCCESS {
			req.status = libibverbs.IBV_WC_RETRY_EXC_ERR
		}
	}
	if req.status == libibverbs.IBV_WC_SUCCESS {
		r.psn = req.end()
		if req.hasAnswer() {
			r.reads++
		}
	}
	r.next++
	return true
}

// measure computes a request's length and number of packets. It returns an
// error status if the request cannot be sent.
func (q *QP) measure(req *request, s *SendSlot) libibverbs.WcStatus {
	var length uint64
	if req.flags&libibverbs.IBV_SEND_INLINE != 0 {
		length = uint64(s.InlineLen)
		if length > uint64(q.send.Inline) || req.hasAnswer() {
			return libibverbs.IBV_WC_LOC_QP_OP_ERR
		}
	} else {
		segments, ok := q.send.sendSegments(s)
		if !ok {
			return libibverbs.IBV_WC_LOC_QP_OP_ERR
		}
		for _, sge := range segments {
			if !req.hasAnswer() {
				if _, status := q.device.slice(q.pd, sge.Addr, uint64(sge.Length), sge.Lkey, 0); status != libibverbs.IBV_WC_SUCCESS {
					return status
				}
			}
			length += uint64(sge.Length)
		}
	}
	if length > maxMessage {
		return libibverbs.IBV_WC_LOC_LEN_ERR
	}
	req.length = uint32(length)
	req.packets = 1
	if q.kind != libibverbs.IBV_QPT_UD {
		req.packets = q.packets(req.length)
	}
	switch req.opcode {
	case libibverbs.IBV_WR_RDMA_READ:
		if req.packets > maxReadPackets {
			return libibverbs.IBV_WC_LOC_LEN_ERR
		}
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		if length != 8 {
			return libibverbs.IBV_WC_LOC_LEN_ERR
		}
	}
	if req.hasAnswer() && q.attr.MaxRdAtomic == 0 {
		return libibverbs.IBV_WC_LOC_QP_OP_ERR // it would wait forever
	}
	return libibverbs.IBV_WC_SUCCESS
}

// packets returns the number of packets of a message.
func (q *QP) packets(length uint32) int {
	return max(1, int((int64(length)+int64(q.mtu)-1)/int64(q.mtu)))
}

// sendPacket sends packet r.sent of the request at r.send.
func (q *QP) sendPacket(req *request) {
	r := &q.requester
	s := q.send.send(r.send)
	i := r.sent.Diff(req.psn)
	p := q.packet(0, r.sent)
	offset := uint32(i * q.mtu)
	end := r.sent.Add(1)
	switch req.opcode {
	case libibverbs.IBV_WR_RDMA_READ:
		p.Opcode = wire.RCReadRequest
		end = q.endOfRead(req, i)
		p.Addr, p.RKey = s.RemoteAddr+uint64(offset), s.RKey
		p.Length = min(req.length-offset, uint32(end.Diff(r.sent)*q.mtu))
		p.AckReq = true
		req.asked = r.sent
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		p.Opcode = wire.RCCompareSwap
		p.Addr, p.RKey, p.Compare, p.SwapAdd = s.RemoteAddr, s.RKey, s.CompareAdd, s.Swap
		p.AckReq = true
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		p.Opcode = wire.RCFetchAdd
		p.Addr, p.RKey, p.SwapAdd = s.RemoteAddr, s.RKey, s.CompareAdd
		p.AckReq = true
	default:
		q.paced()
		last := i == req.packets-1
		p.Opcode = messageOpcode(req.opcode, i == 0, last)
		if q.kind == libibverbs.IBV_QPT_UC {
			p.Opcode += wire.UCSendFirst - wire.RCSendFirst
		}
		if p.Opcode.HasRETH() {
			p.Addr, p.RKey, p.Length = s.RemoteAddr, s.RKey, req.length
		}
		p.Imm, p.InvKey = s.Imm, s.Imm
		p.Solicited = last && req.flags&libibverbs.IBV_SEND_SOLICITED != 0 && (p.Opcode.IsSend() || p.Opcode.HasImm())
		p.AckReq = q.kind == libibverbs.IBV_QPT_RC && (last || (i+1)%q.ackInterval() == 0)
		if !q.gather(p, req, s, offset, min(req.length-offset, uint32(q.mtu))) {
			// The memory was mapped when the request began.
			q.device.config.Packets.Put(p)
			req.status = libibverbs.IBV_WC_LOC_PROT_ERR
			return
		}
	}
	r.sent = end
	if r.sent.After(r.high) {
		r.high = r.sent
	} else {
		q.retries.PacketsSentAgain++
	}
	finished := r.sent == req.end()
	if finished {
		r.send++
	}
	q.device.transmit(p)
	if q.kind == libibverbs.IBV_QPT_UC && finished {
		r.acked = r.sent
		q.complete(libibverbs.IBV_WC_SUCCESS, q.way)
	}
}

// endOfRead returns the end of the response that is requested for packet i of a
// READ.
func (q *QP) endOfRead(req *request, i int) wire.PSN {
	part := q.device.readPackets
	return req.psn.Add(min(i-i%part+part, req.packets))
}

// ackInterval returns the number of packets of a long message per requested
// ACK.
func (q *QP) ackInterval() int {
	return max(1, q.requester.allowed.of(q.device.config.Window)/acksOfWindow)
}

// messageOpcode returns the opcode of a packet of a SEND or WRITE.
func messageOpcode(op libibverbs.WrOpcode, first, last bool) wire.Opcode {
	write := op == libibverbs.IBV_WR_RDMA_WRITE || op == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
	imm := op == libibverbs.IBV_WR_SEND_WITH_IMM || op == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
	switch {
	case first && last && write && imm:
		return wire.RCWriteOnlyImm
	case first && last && write:
		return wire.RCWriteOnly
	case first && last && imm:
		return wire.RCSendOnlyImm
	case first && last && op == libibverbs.IBV_WR_SEND_WITH_INV:
		return wire.RCSendOnlyInv
	case first && last:
		return wire.RCSendOnly
	case first && write:
		return wire.RCWriteFirst
	case first:
		return wire.RCSendFirst
	case last && write && imm:
		return wire.RCWriteLastImm
	case last && write:
		return wire.RCWriteLast
	case last && imm:
		return wire.RCSendLastImm
	case last && op == libibverbs.IBV_WR_SEND_WITH_INV:
		return wire.RCSendLastInv
	case last:
		return wire.RCSendLast
	case write:
		return wire.RCWriteMiddle
	}
	return wire.RCSendMiddle
}

// packet returns a new packet to the peer of a connected queue pair.
func (q *QP) packet(op wire.Opcode, psn wire.PSN) *wire.Packet {
	p := q.device.config.Packets.Get()
	p.Opcode, p.PSN, p.DestQP = op, psn, q.attr.DestQpNum
	q.path.address(p)
	if q.markable() {
		p.TrafficClass = p.TrafficClass&^ecnBits | ecnCapable
	}
	return p
}

// address sets a packet's addresses from the path.
func (a *path) address(p *wire.Packet) {
	p.SGID, p.DGID, p.FlowLabel, p.TrafficClass, p.HopLimit = a.sgid, a.dgid, a.flowLabel, a.trafficClass, a.hopLimit
	p.PKey = defaultPKey
}

// gather sets p's payload to the n bytes at offset of the request's data. It
// returns false if they are missing or may not be read.
func (q *QP) gather(p *wire.Packet, req *request, s *SendSlot, offset, n uint32) bool {
	if n == 0 {
		return true
	}
	if req.flags&libibverbs.IBV_SEND_INLINE != 0 {
		p.Payload = append(p.Payload, s.inlineBytes(req.length)[offset:][:n])
		return true
	}
	segments, ok := q.send.sendSegments(s)
	if !ok {
		return false
	}
	p.Payload, ok = q.device.slices(p.Payload, q.pd, segments, offset, n, 0)
	return ok
}

// slices appends to list the memory of the n bytes at offset of segments. It
// returns false if some of it is missing, does not belong to pd or does not
// permit access.
func (d *Device) slices(
	list [][]byte, pd *PD, segments []libibverbs.Sge, offset, n uint32, access libibverbs.AccessFlags,
) ([][]byte, bool) {
	for _, sge := range segments {
		if n == 0 {
			break
		}
		if offset >= sge.Length {
			offset -= sge.Length
			continue
		}
		part := min(n, sge.Length-offset)
		b, status := d.slice(pd, sge.Addr+uint64(offset), uint64(part), sge.Lkey, access)
		if status != libibverbs.IBV_WC_SUCCESS {
			return list, false
		}
		list = append(list, b)
		offset, n = 0, n-part
	}
	return list, n == 0
}

// runTimer starts the timer if it is not running, and an answer is missing or
// the peer has asked for a pause. It is called in q's turn, when Advance has
// just set d.now. When a packet arrives, d.now may be long past.
//
// The specification allows up to four times the timeout. The first timeout is
// exact, so that a lost packet costs little. Later ones take longer, as the
// peer may only be waiting for a processor.
func (q *QP) runTimer() {
	r, d := &q.requester, q.device
	switch timeout := wire.AckTimeout(q.attr.Timeout); {
	case r.timer.at != 0:
	case r.rest != 0:
		d.schedule.timers.set(&r.timer, d.now+r.rest)
	case r.sent != r.acked && timeout != 0:
		d.schedule.timers.set(&r.timer, d.now+timeout<<min(q.attr.RetryCnt-r.retries, 2))
	}
}

// restartTimer gives the packets in flight the current timeout.
func (q *QP) restartTimer() {
	if r := &q.requester; r.rest == 0 {
		r.timer.stop()
		q.device.schedule.add(q)
	}
}

// progress records that the peer has answered something new.
func (q *QP) progress() {
	r := &q.requester
	r.retries, r.rnrRetries = q.attr.RetryCnt, q.attr.RnrRetry
	r.obeyed, r.rest = false, 0
	r.timer.stop()
	q.device.schedule.add(q)
}

// expired runs when a timer of q expires.
func (q *QP) expired(t *timer) {
	r := &q.requester
	if t == &q.congestion.timer {
		q.device.schedule.add(q)
		return
	}
	if r.rest != 0 {
		r.rest = 0
		q.device.schedule.add(q)
		return
	}
	r.obeyed = false
	q.retries.Timeouts++
	r.allowed.silence(q.inFlight())
	q.retry()
}

// inFlight returns the number of packets without an answer.
func (q *QP) inFlight() int { return q.requester.sent.Diff(q.requester.acked) }

// retry resends all packets without an answer, or fails the queue pair if no
// retries remain.
func (q *QP) retry() {
	r := &q.requester
	if r.retries == 0 {
		q.failHead(libibverbs.IBV_WC_RETRY_EXC_ERR)
		return
	}
	r.retries--
	q.goBack()
}

// goBack makes the oldest packet without an answer the next to send.
func (q *QP) goBack() {
	r := &q.requester
	r.send, r.sent = r.head, r.acked
	r.timer.stop()
	q.device.schedule.add(q)
}

// obeys reports whether a NAK starts a retry. Only one NAK does until there is
// progress or a timeout: a burst of answers has many implied NAKs, the network
// may duplicate a NAK, and the packets that follow one that has to wait are all
// out of sequence.
func (r *requester) obeys() bool {
	if r.obeyed || r.rest != 0 {
		return false
	}
	r.obeyed = true
	return true
}

// impliedNak handles an answer that follows a READ or atomic whose own answer
// is missing: it was lost.
func (q *QP) impliedNak() {
	if r := &q.requester; r.sent != r.acked && r.obeys() {
		q.retries.MissedAnswers++
		q.retry()
	}
}

// receiveResponse handles a packet for the requester.
func (q *QP) receiveResponse(p *wire.Packet) {
	acked := q.requester.acked
	q.takeResponse(p)
	q.requester.allowed.answered(q.requester.acked.Diff(acked), q.device.config.Window)
}

func (q *QP) takeResponse(p *wire.Packet) {
	r := &q.requester
	if p.PSN.Before(r.acked) || !p.PSN.Before(r.high) {
		return // a duplicate, or an answer to a packet that was not sent
	}
	switch {
	case p.Opcode == wire.RCAck && p.Syndrome.IsAck():
		if !q.acknowledge(p.PSN.Add(1)) {
			q.impliedNak()
		}
		return
	case p.Opcode == wire.RCAck && !p.Syndrome.IsRNR() && !p.Syndrome.IsNak():
		return
	}
	// Any other response is about the request with this PSN, and acknowledges
	// those before it.
	if !q.acknowledge(p.PSN) {
		q.impliedNak()
		return
	}
	if r.head == r.next || q.attr.QpState == libibverbs.IBV_QPS_ERR {
		return
	}
	switch {
	case p.Opcode.IsReadResponse():
		q.receiveRead(p)
	case p.Opcode == wire.RCAtomicAck:
		q.receiveAtomic(p)
	case p.Syndrome.IsRNR():
		q.receiveRNR(p.Syndrome)
	case p.Syndrome == wire.NakSequence:
		if r.obeys() {
			q.retries.SequenceErrors++
			r.allowed.loss(q.inFlight())
			q.retry()
		}
	case p.Syndrome == wire.NakInvalidRequest:
		q.failHead(libibverbs.IBV_WC_REM_INV_REQ_ERR)
	case p.Syndrome == wire.NakRemoteAccess:
		q.failHead(libibverbs.IBV_WC_REM_ACCESS_ERR)
	case p.Syndrome == wire.NakRemoteOperation:
		q.failHead(libibverbs.IBV_WC_REM_OP_ERR)
	case p.Syndrome == wire.NakInvalidRD:
		q.failHead(libibverbs.IBV_WC_REM_INV_RD_REQ_ERR)
	}
}

// acknowledge records that everything before psn has arrived. It returns false
// if the answer to a READ or atomic before psn is missing.
func (q *QP) acknowledge(psn wire.PSN) bool {
	r := &q.requester
	answered := true
	for r.head != r.next && psn.After(r.acked) && q.attr.QpState != libibverbs.IBV_QPS_ERR {
		req := r.request(r.head)
		if req.hasAnswer() {
			answered = false
			break
		}
		if psn.Before(req.end()) {
			r.acked = psn
			q.caughtUp()
			break
		}
		q.passHead()
	}
	return answered
}

// passHead completes the oldest request, and those after it that need no
// answer.
func (q *QP) passHead() {
	r := &q.requester
	r.acked = r.request(r.head).end()
	q.complete(libibverbs.IBV_WC_SUCCESS, nil)
	q.caughtUp()
	q.settle()
}

// caughtUp records progress up to r.acked. A retransmission may not have got
// that far.
func (q *QP) caughtUp() {
	r := &q.requester
	if r.sent.Before(r.acked) {
		r.sent = r.acked
	}
	if int32(r.send-r.head) < 0 {
		r.send = r.head
	}
	q.progress()
}

// settle completes the requests at head that needed no packets or have failed.
func (q *QP) settle() {
	r := &q.requester
	for r.head != r.next {
		req := r.request(r.head)
		switch {
		case req.status != libibverbs.IBV_WC_SUCCESS:
			q.failHead(req.status)
			return
		case req.packets != 0:
			return
		}
		q.complete(libibverbs.IBV_WC_SUCCESS, nil)
		if int32(r.send-r.head) < 0 {
			r.send = r.head
		}
	}
}

// receiveRNR pauses as the peer asked to, since it has no receive. A further
// RNR NAK during the pause counts as a copy.
func (q *QP) receiveRNR(s wire.Syndrome) {
	r := &q.requester
	if r.rest != 0 {
		return
	}
	q.retries.ReceiversNotReady++
	switch {
	case q.attr.RnrRetry == 7: // without limit
	case r.rnrRetries == 0:
		q.failHead(libibverbs.IBV_WC_RNR_RETRY_EXC_ERR)
		return
	default:
		r.rnrRetries--
	}
	r.rest = wire.RNRDelay(s.RNRTimer())
	q.goBack()
}

// receiveRead handles a packet of the response to the READ at head.
func (q *QP) receiveRead(p *wire.Packet) {
	r := &q.requester
	req := r.request(r.head)
	if req.opcode != libibverbs.IBV_WR_RDMA_READ {
		q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
		return
	}
	offset := uint32(p.PSN.Diff(req.psn) * q.mtu)
	n := min(req.length-offset, uint32(q.mtu))
	i, part := p.PSN.Diff(req.psn), q.device.readPackets
	last := p.PSN.Add(1) == q.endOfRead(req, i)
	// A response starts at the requested packet. If that was in the middle of a
	// part, an earlier response may still arrive.
	begins := p.Opcode.IsFirst() || p.Opcode.IsOnly()
	ends := p.Opcode.IsLast() || p.Opcode.IsOnly()
	mustBegin := i%part == 0
	mayBegin := mustBegin || p.PSN == req.asked
	if ends != last || begins && !mayBegin || !begins && mustBegin || p.PayloadLen() != int(n) {
		q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
		return
	}
	if !q.storeAnswer(p.Payload, offset, n) {
		return
	}
	r.acked = p.PSN.Add(1)
	if r.acked == req.end() {
		r.reads--
		q.passHead()
		return
	}
	q.caughtUp()
}

// receiveAtomic handles the response to the atomic at head.
func (q *QP) receiveAtomic(p *wire.Packet) {
	r := &q.requester
	req := r.request(r.head)
	if !req.hasAnswer() || req.opcode == libibverbs.IBV_WR_RDMA_READ {
		q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
		return
	}
	d := q.device
	binary.NativeEndian.PutUint64(d.word[:], p.Orig)
	d.source = append(d.source[:0], d.word[:])
	if q.storeAnswer(d.source, 0, 8) {
		r.reads--
		q.passHead()
	}
}

// storeAnswer writes n bytes at offset of the response to the request at head.
// It returns false if it could not; it has then failed the request if that was
// this side's fault.
func (q *QP) storeAnswer(src [][]byte, offset, n uint32) bool {
	d := q.device
	segments, ok := q.send.sendSegments(q.send.send(q.requester.head))
	if ok {
		d.target, ok = d.slices(d.target[:0], q.pd, segments, offset, n, libibverbs.IBV_ACCESS_LOCAL_WRITE)
	}
	f := targetFault
	if ok {
		f = scatter(d.target, src)
	}
	if f == targetFault {
		q.failHead(libibverbs.IBV_WC_LOC_PROT_ERR)
	}
	return f == noFault
}

// complete completes the oldest request, whose packets no peer acknowledges if
// there is a way, on which they leave the process.
func (q *QP) complete(status libibverbs.WcStatus, way Way) {
	r := &q.requester
	req := r.request(r.head)
	if status != libibverbs.IBV_WC_SUCCESS || q.signalAll || req.flags&libibverbs.IBV_SEND_SIGNALED != 0 {
		c := q.sendCompletion(r.head, status)
		if status == libibverbs.IBV_WC_SUCCESS {
			c.Opcode, c.ByteLen = wcOpcodes[req.opcode].opcode, req.length
		}
		q.sendCQ.add(c, duty{way: way})
	}
	r.head++
}

// sendCompletion returns the completion of a request of the send queue.
func (q *QP) sendCompletion(n uint32, status libibverbs.WcStatus) Completion {
	c := Completion{Queue: q.send, Count: n + 1}
	c.WrId, c.Status, c.QpNum = q.send.send(n).ID, status, q.number
	return c
}

// failHead completes the oldest request with an error, and fails the queue
// pair.
func (q *QP) failHead(status libibverbs.WcStatus) {
	q.complete(status, nil)
	q.fail()
}
