// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// window is the default limit of packets that are not acknowledged yet.
	window = 256
	// acksOfWindow is the number of acknowledgements that a long message
	// requests per window.
	acksOfWindow = 4
	// maxReadPackets limits the response packets of a READ, so that all
	// PSNs that are not acknowledged fit into half of the number space.
	maxReadPackets = 1<<23 - 1 - window
)

// requester is the sending half of a queue pair. Each request has the number
// that it has in the send queue. The requester works with three of these
// numbers:
//
//	head: the oldest request that is not complete
//	send: the request whose packets are sent next; a timeout or NAK sets it back
//	next: the next request to take from the send queue
type requester struct {
	head, send, next uint32
	awaited          uint32    // number after the last signaled request that was taken
	requests         []request // requests from head to next; request n has the index n % len(requests)

	psn   wire.PSN // first PSN of the next request
	acked wire.PSN // oldest PSN that is not acknowledged; belongs to the request head
	sent  wire.PSN // next PSN to send; belongs to the request send
	high  wire.PSN // PSN after the highest that was ever sent

	reads      int           // number of READs and atomics from head to next
	retries    uint8         // number of retransmissions that may follow until there is progress
	rnrRetries uint8         // number of RNR NAKs that may follow until there is progress; 7: no limit
	pause      time.Duration // pause that the peer's RNR NAK demands; 0: none
	nakHandled bool          // whether a NAK has caused a retransmission since the last progress
	timer      timer         // runs until the acknowledgement timeout, or until the pause ends

	allowed allowance // limit of the packets in flight
}

// request is a request that was taken from the send queue. It has a copy of
// what the requester needs later, since the program may overwrite the slot.
type request struct {
	opcode  libibverbs.WrOpcode
	flags   libibverbs.SendFlags
	status  libibverbs.WcStatus // success, or the status with which the request will fail as soon as it is the oldest
	length  uint32
	psn     wire.PSN // PSN of the first packet
	packets int      // number of PSNs; 0: the request was executed without packets
	asked   wire.PSN // for a READ, first PSN of the part that was requested last; the part ends at a multiple of readPackets
}

// request returns the request with the number n, which must be at least head
// and less than next.
func (r *requester) request(n uint32) *request { return &r.requests[n&uint32(len(r.requests)-1)] }

// end returns the PSN after the request's last PSN.
func (r *request) end() wire.PSN { return r.psn.Add(r.packets) }

// hasAnswer reports whether the request gets a response that is not an ACK.
func (r *request) hasAnswer() bool {
	switch r.opcode {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD,
		libibverbs.IBV_WR_FLUSH, libibverbs.IBV_WR_ATOMIC_WRITE:
		return true
	}
	return false
}

// hasEmptyAnswer reports whether the response is a READ response without data.
func (r *request) hasEmptyAnswer() bool {
	return r.opcode == libibverbs.IBV_WR_FLUSH || r.opcode == libibverbs.IBV_WR_ATOMIC_WRITE
}

// wcOpcodes has, for each opcode of a work request, the opcode of its
// completion and the types of queue pairs that support it.
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
	libibverbs.IBV_WR_FLUSH:                {libibverbs.IBV_WC_FLUSH, true, false, false},
	libibverbs.IBV_WR_ATOMIC_WRITE:         {libibverbs.IBV_WC_ATOMIC_WRITE, true, false, false},
}

// takes reports whether queue pairs of q's type support an opcode.
func (q *QP) takes(op libibverbs.WrOpcode) bool {
	if int(op) >= len(wcOpcodes) {
		return false
	}
	o := wcOpcodes[op]
	switch q.kind {
	case libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_XRC_SEND:
		return o.rc
	case libibverbs.IBV_QPT_UC:
		return o.uc
	}
	return o.ud
}

// sendRequests sends up to budget packets of requests. more reports whether it
// stopped only because of the budget.
func (q *QP) sendRequests(budget int) (more bool) {
	r := &q.requester
	if q.reliable && r.sent != r.acked && !q.room() {
		return false // if the peer never makes room, the timer that runTimer starts expires
	}
	for ; budget > 0; budget-- {
		if q.attr.QpState == libibverbs.IBV_QPS_ERR {
			return true // turn must be called again, to flush the requests
		}
		if r.pause != 0 {
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
			q.completeOldest()
		case req.packets == 0:
			r.send++
			q.completeOldest()
		case q.limit.rate != 0 && q.limited():
			return false
		case q.kind == libibverbs.IBV_QPT_UD:
			q.sendDatagram(req)
		case req.opcode == libibverbs.IBV_WR_RDMA_READ && r.sent != req.psn && r.sent != r.acked:
			return false // earlier answers come first, since the peer limits the READs in progress
		case q.reliable && r.sent.Diff(r.acked) >= r.allowed.limit(q.device.config.Window):
			return false // the next ACK schedules the queue pair again
		case !req.hasAnswer() && q.held():
			return false
		default:
			budget -= q.sendPacket(req, budget) - 1
		}
	}
	return true
}

// begin takes the next work request from the send queue and checks it. If the
// request needs no packets, begin executes it. begin returns false if there is
// no request or it may not start yet.
func (q *QP) begin() bool {
	r := &q.requester
	if q.attr.QpState != libibverbs.IBV_QPS_RTS || q.send.waiting(r.head, r.next) == 0 {
		return false
	}
	if r.head != r.next && r.request(r.next-1).status != libibverbs.IBV_WC_SUCCESS {
		return false // no request may follow one that has failed
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
	if q.outside && (q.signalAll || req.flags&libibverbs.IBV_SEND_SIGNALED != 0) {
		r.awaited = r.next + 1
		q.awaitAcks(true) // before the peer can acknowledge the request
	}
	switch req.opcode {
	case libibverbs.IBV_WR_LOCAL_INV:
		if r.head != r.next {
			return false // earlier requests may still use the window
		}
		if !q.invalidate(s.Imm, s.Ticket) {
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

// measure sets the request's length and number of packets. If the request
// cannot be sent, measure returns the status with which it fails.
func (q *QP) measure(req *request, s *SendSlot) libibverbs.WcStatus {
	if q.responder.unheard {
		return libibverbs.IBV_WC_LOC_QP_OP_ERR
	}
	var length uint64
	answer, emptyAnswer := req.hasAnswer(), req.hasEmptyAnswer()
	switch {
	case emptyAnswer:
		length = 8
		if req.opcode == libibverbs.IBV_WR_FLUSH {
			if length = s.CompareAdd; s.Swap>>16 != 0 || !validFlush(uint8(s.Swap), uint8(s.Swap>>8)) {
				return libibverbs.IBV_WC_LOC_QP_OP_ERR
			}
		}
	case req.flags&libibverbs.IBV_SEND_INLINE != 0:
		length = uint64(s.InlineLen)
		if length > uint64(q.send.Inline) || answer {
			return libibverbs.IBV_WC_LOC_QP_OP_ERR
		}
	default:
		segments, ok := q.send.sendSegments(s)
		if !ok {
			return libibverbs.IBV_WC_LOC_QP_OP_ERR
		}
		for _, sge := range segments {
			if !answer && sge.Length > 0 && q.device.local(q.pd, sge.Addr, uint64(sge.Length), sge.Lkey, 0) == nil {
				return libibverbs.IBV_WC_LOC_PROT_ERR
			}
			length += uint64(sge.Length)
		}
	}
	if length > maxMessage {
		return libibverbs.IBV_WC_LOC_LEN_ERR
	}
	req.length = uint32(length)
	req.packets = 1
	if q.kind != libibverbs.IBV_QPT_UD && !emptyAnswer {
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
	if answer && q.attr.MaxRdAtomic == 0 {
		return libibverbs.IBV_WC_LOC_QP_OP_ERR // the request would wait forever
	}
	return libibverbs.IBV_WC_SUCCESS
}

// packets returns the number of packets for a message of that length.
func (q *QP) packets(length uint32) int {
	return max(1, int((int64(length)+int64(q.mtu)-1)/int64(q.mtu)))
}

// sendPacket sends the packet with the PSN q.requester.sent. It belongs to the
// request q.requester.send, which is req. sendPacket returns the number of
// packets for which the packet stands, which is at most limit.
func (q *QP) sendPacket(req *request, limit int) (stands int) {
	r := &q.requester
	s := q.send.send(r.send)
	i := r.sent.Diff(req.psn)
	if stands = 1; i+1 < req.packets && q.merges() {
		stands = q.merged(req, i, limit)
	}
	last := i+stands == req.packets
	p := q.packet(req.operation(i, last), r.sent)
	p.SRQ, p.More = s.RemoteQPN, uint16(stands-1)
	offset := uint32(i * q.mtu)
	end := r.sent.Add(stands)
	switch req.opcode {
	case libibverbs.IBV_WR_RDMA_READ:
		end = q.endOfRead(req, i)
		p.Addr, p.RKey = s.RemoteAddr+uint64(offset), s.RKey
		p.Length = min(req.length-offset, uint32(end.Diff(r.sent)*q.mtu))
		p.AckReq = true
		req.asked = r.sent
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		p.Addr, p.RKey, p.Compare, p.SwapAdd = s.RemoteAddr, s.RKey, s.CompareAdd, s.Swap
		p.AckReq = true
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		p.Addr, p.RKey, p.SwapAdd = s.RemoteAddr, s.RKey, s.CompareAdd
		p.AckReq = true
	case libibverbs.IBV_WR_FLUSH:
		p.Addr, p.RKey, p.Length = s.RemoteAddr, s.RKey, req.length
		p.FlushType, p.FlushLevel = uint8(s.Swap), uint8(s.Swap>>8)
		p.AckReq = true
	case libibverbs.IBV_WR_ATOMIC_WRITE:
		p.Addr, p.RKey, p.Length = s.RemoteAddr, s.RKey, req.length
		p.Payload = append(p.Payload, s.word())
		p.AckReq = true
	default:
		q.paced()
		if p.Opcode.HasRETH() {
			p.Addr, p.RKey, p.Length = s.RemoteAddr, s.RKey, req.length
		}
		p.Imm, p.InvKey = s.Imm, s.Imm
		p.Solicited = last && req.flags&libibverbs.IBV_SEND_SOLICITED != 0 && (p.Opcode.IsSend() || p.Opcode.HasImm())
		// With a limited or reduced rate, the timeout must not expire
		// between two packets.
		slow := q.limit.rate != 0 || q.congestion.gap != 0
		p.AckReq = q.reliable && (last || (i+stands)%q.ackInterval() < stands || slow)
		if !q.gather(p, req, s, offset, min(req.length-offset, uint32(stands*q.mtu))) {
			// begin has checked the memory: since then, the program
			// has deregistered it or, if it is paged on demand,
			// unmapped it.
			q.device.config.Packets.Put(p)
			req.status = libibverbs.IBV_WC_LOC_PROT_ERR
			return stands
		}
	}
	r.sent = end
	if r.sent.After(r.high) {
		r.high = r.sent
	} else {
		q.retries.PacketsSentAgain += uint64(stands)
	}
	finished := r.sent == req.end()
	if finished {
		r.send++
	}
	if q.limit.rate != 0 {
		q.spend(p.PayloadLen())
	}
	q.device.transmit(p)
	if q.kind == libibverbs.IBV_QPT_UC && finished {
		r.acked = r.sent
		q.complete(libibverbs.IBV_WC_SUCCESS, q.way)
	}
	return stands
}

// merged returns the number of packets for which the packet i of a request may
// stand, at most limit.
func (q *QP) merged(req *request, i, limit int) int {
	if req.hasAnswer() {
		return 1
	}
	window := q.requester.allowed.limit(q.device.config.Window) - q.inFlight()
	if left := min(req.packets-i, window, longMerged); q.leavesCopies() && req.isWrite() && left*q.mtu >= minLater {
		return left
	}
	return min(req.packets-i, limit, window, q.maxMerged())
}

// isWrite reports whether the request is an RDMA write.
func (r *request) isWrite() bool {
	return r.opcode == libibverbs.IBV_WR_RDMA_WRITE || r.opcode == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
}

// maxMerged returns the number of packets for which a packet of q may stand at
// most, if merges returns true.
func (q *QP) maxMerged() int {
	if q.outside {
		return max(1, q.device.config.LongPacket/q.mtu)
	}
	return turnPackets
}

// merges reports whether packets of q may stand for several: their rate is not
// limited, and nothing but the peer sees them.
func (q *QP) merges() bool {
	c := &q.device.config
	return c.Merges != nil && (!q.outside || c.LongPacket != 0) && q.kind == libibverbs.IBV_QPT_RC &&
		q.limit.rate == 0 && q.congestion.gap == 0 && c.Merges()
}

// endOfRead returns the PSN after a part of a READ response. The part is that
// to which the READ's packet i belongs.
func (q *QP) endOfRead(req *request, i int) wire.PSN {
	part := q.device.readPackets
	return req.psn.Add(min(i-i%part+part, req.packets))
}

// ackInterval returns the number of packets of a long message after which an
// acknowledgement is requested.
func (q *QP) ackInterval() int {
	return max(1, q.requester.allowed.limit(q.device.config.Window)/acksOfWindow)
}

// messageOpcodes has, for each opcode of a work request that sends a message,
// the opcodes of the message's packets on a reliable connection.
var messageOpcodes = [...]struct{ first, middle, last, only wire.Opcode }{
	libibverbs.IBV_WR_SEND:                {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly},
	libibverbs.IBV_WR_SEND_WITH_IMM:       {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm, wire.RCSendOnlyImm},
	libibverbs.IBV_WR_SEND_WITH_INV:       {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastInv, wire.RCSendOnlyInv},
	libibverbs.IBV_WR_RDMA_WRITE:          {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly},
	libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM: {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm, wire.RCWriteOnlyImm},
}

// operation returns the opcode, of a reliable connection, of the packet i of a
// request. last says whether it is, or stands for, the last one.
func (r *request) operation(i int, last bool) wire.Opcode {
	switch r.opcode {
	case libibverbs.IBV_WR_RDMA_READ:
		return wire.RCReadRequest
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		return wire.RCCompareSwap
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return wire.RCFetchAdd
	case libibverbs.IBV_WR_FLUSH:
		return wire.RCFlush
	case libibverbs.IBV_WR_ATOMIC_WRITE:
		return wire.RCAtomicWrite
	}
	of := &messageOpcodes[r.opcode]
	switch {
	case i == 0 && last:
		return of.only
	case i == 0:
		return of.first
	case last:
		return of.last
	}
	return of.middle
}

// packet returns a new packet with the addresses of the peer. op is the opcode
// of a reliable connection for the packet's operation.
func (q *QP) packet(op wire.Opcode, psn wire.PSN) *wire.Packet {
	p := q.device.config.Packets.Get()
	p.Opcode, p.PSN, p.DestQP = op.Of(q.transport), psn, q.attr.DestQpNum
	q.path.address(p)
	if q.markable() {
		p.TrafficClass = p.TrafficClass&^ecnBits | ecnCapable
	}
	return p
}

// address sets a packet's addresses, IP header fields and P_Key.
func (a *path) address(p *wire.Packet) {
	p.SGID, p.DGID, p.FlowLabel, p.TrafficClass, p.HopLimit = a.sgid, a.dgid, a.flowLabel, a.trafficClass, a.hopLimit
	p.PKey = defaultPKey
}

// gather sets p's payload to n bytes of the request's data, from offset on. It
// returns false if the work request has too many segments or may not read one
// of them.
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

// slices appends n bytes of the data in segments, from offset on, to list.
// access is 0 for bytes to read, or the access that writing needs. slices
// returns false if the segments have fewer bytes, if one of them does not
// belong to pd or does not permit access, or if it is paged on demand and
// cannot be read now.
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
		addr, ok := sge.Addr+uint64(offset), true
		switch m := d.local(pd, addr, uint64(part), sge.Lkey, access); {
		case m == nil:
			return list, false
		case m.memory != nil:
			list = append(list, m.part(addr, uint64(part)))
		case access != 0:
			list = m.target(list, addr, uint64(part))
		default:
			if list, ok = m.source(list, addr, uint64(part)); !ok {
				return list, false
			}
		}
		offset, n = 0, n-part
	}
	return list, n == 0
}

// runTimer starts the timer if it is not running, and either a packet is not
// acknowledged or the peer's RNR NAK demands a pause. It must be called during
// Advance, which sets d.now; when a packet arrives, d.now may be out of date.
//
// The specification permits a timeout of up to four times the configured one.
// The first timeout is the configured one, so that recovery from a lost packet
// is fast. Later ones are longer, as the peer may only be waiting for a
// processor.
func (q *QP) runTimer() {
	r, d := &q.requester, q.device
	switch timeout := wire.AckTimeout(q.attr.Timeout); {
	case r.timer.at != 0:
	case r.pause != 0:
		d.schedule.timers.set(&r.timer, d.now+r.pause)
	case r.sent != r.acked && timeout != 0:
		d.schedule.timers.set(&r.timer, d.now+timeout<<min(q.attr.RetryCnt-r.retries, 2))
	}
}

// restartTimer restarts the acknowledgement timer with the configured timeout.
func (q *QP) restartTimer() {
	if r := &q.requester; r.pause == 0 {
		r.timer.stop()
		q.device.schedule.add(q)
	}
}

// progress records that the peer has acknowledged more packets. It permits all
// retries again.
func (q *QP) progress() {
	r := &q.requester
	r.retries, r.rnrRetries = q.attr.RetryCnt, q.attr.RnrRetry
	r.nakHandled, r.pause = false, 0
	r.timer.stop()
	q.device.schedule.add(q)
}

// expired handles the expiry of t, a timer of q.
func (q *QP) expired(t *timer) {
	r := &q.requester
	if t == &q.congestion.timer || t == &q.limit.timer {
		q.device.schedule.add(q)
		return
	}
	if r.pause != 0 {
		r.pause = 0
		q.device.schedule.add(q)
		return
	}
	if q.peerCopies() { // the packets have arrived
		q.device.schedule.add(q)
		return
	}
	r.nakHandled = false
	q.retries.Timeouts++
	r.allowed.reduceForTimeout(q.inFlight())
	q.retry()
}

// inFlight returns the number of packets that were sent and not acknowledged.
func (q *QP) inFlight() int { return q.requester.sent.Diff(q.requester.acked) }

// retry retransmits all packets that are not acknowledged. It fails the queue
// pair if no retries are left.
func (q *QP) retry() {
	r := &q.requester
	if r.retries == 0 {
		q.failHead(libibverbs.IBV_WC_RETRY_EXC_ERR)
		return
	}
	r.retries--
	q.goBack()
}

// goBack continues sending at the oldest packet that is not acknowledged.
func (q *QP) goBack() {
	r := &q.requester
	r.send, r.sent = r.head, r.acked
	r.timer.stop()
	q.device.schedule.add(q)
}

// takeNak reports whether a NAK causes a retransmission, and records that it
// does. After a NAK, no other causes one until there is progress or a timeout.
// Further NAKs may be about the same loss: the network may duplicate a NAK, and
// each of several responses may show that the same response is missing.
func (r *requester) takeNak() bool {
	if r.nakHandled || r.pause != 0 {
		return false
	}
	r.nakHandled = true
	return true
}

// impliedNak handles a response that shows that an earlier response, to a READ
// or atomic, was lost. The effect is that of a NAK.
func (q *QP) impliedNak() {
	if r := &q.requester; r.sent != r.acked && r.takeNak() {
		q.retries.MissedAnswers++
		q.retry()
	}
}

// receiveResponse handles a response: it calls takeResponse, and then adapts
// the limit of packets in flight.
func (q *QP) receiveResponse(p *wire.Packet) {
	acked := q.requester.acked
	q.takeResponse(p)
	q.requester.allowed.acknowledged(q.requester.acked.Diff(acked), q.device.config.Window)
}

// takeResponse handles a response: an ACK, a NAK, or the result of a READ or
// atomic.
func (q *QP) takeResponse(p *wire.Packet) {
	r := &q.requester
	if p.PSN.Before(r.acked) || !p.PSN.Before(r.high) {
		return // a duplicate, or the packet that it acknowledges was never sent
	}
	switch {
	case p.Opcode.Operation() == wire.RCAck && p.Syndrome.IsAck():
		if !q.acknowledge(p.PSN.Add(1)) {
			q.impliedNak()
		}
		return
	case p.Opcode.Operation() == wire.RCAck && !p.Syndrome.IsRNR() && !p.Syndrome.IsNak():
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
	case p.Opcode.Operation() == wire.RCAtomicAck:
		q.receiveAtomic(p)
	case p.Syndrome.IsRNR():
		q.receiveRNR(p.Syndrome)
	case p.Syndrome == wire.NakSequence:
		if r.takeNak() {
			q.retries.SequenceErrors++
			r.allowed.reduceForLoss(q.inFlight())
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

// acknowledge records that the peer has all packets before psn. It returns
// false if such a packet belongs to a READ or atomic whose response is missing.
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

// passHead completes the oldest request, and the requests after it that need no
// packets or have failed.
func (q *QP) passHead() {
	r := &q.requester
	r.acked = r.request(r.head).end()
	q.complete(libibverbs.IBV_WC_SUCCESS, nil)
	q.caughtUp()
	q.completeOldest()
}

// caughtUp handles that all packets before r.acked are acknowledged. If a
// retransmission has not reached r.acked, it continues there.
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

// completeOldest completes the oldest requests, up to the first that needs
// packets. If one has failed, completeOldest puts the queue pair into the error
// state.
func (q *QP) completeOldest() {
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

// receiveRNR handles an RNR NAK: the requester pauses for the time that the
// peer demands. During the pause, it ignores a further RNR NAK as a duplicate.
// It permits all retries again, as the peer has received the request: otherwise
// losses would add up for as long as the peer is not ready.
func (q *QP) receiveRNR(s wire.Syndrome) {
	r := &q.requester
	if r.pause != 0 {
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
	r.retries, r.nakHandled = q.attr.RetryCnt, false
	r.pause = wire.RNRDelay(s.RNRTimer())
	q.goBack()
}

// receiveRead handles a packet of the response to the oldest request: a READ, a
// FLUSH or an ATOMIC WRITE.
func (q *QP) receiveRead(p *wire.Packet) {
	r := &q.requester
	req := r.request(r.head)
	if req.hasEmptyAnswer() {
		if p.Opcode.Operation() != wire.RCReadOnly || p.PayloadLen() != 0 {
			q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
			return
		}
		r.reads--
		q.passHead()
		return
	}
	if req.opcode != libibverbs.IBV_WR_RDMA_READ {
		q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
		return
	}
	offset := uint32(p.PSN.Diff(req.psn) * q.mtu)
	n := min(req.length-offset, uint32((1+int(p.More))*q.mtu))
	i, part := p.PSN.Diff(req.psn), q.device.readPackets
	next, end := p.PSN.Add(1+int(p.More)), q.endOfRead(req, i)
	// A response begins with the packet that was requested. If a retransmission
	// has requested a packet in the middle of a part, packets of an earlier
	// response, which began before it, may still arrive.
	begins, ends := p.Opcode.Begins(), p.Opcode.Ends()
	mustBegin := i%part == 0
	mayBegin := mustBegin || p.PSN == req.asked
	if next.After(end) || ends != (next == end) || begins && !mayBegin || !begins && mustBegin || p.PayloadLen() != int(n) {
		q.failHead(libibverbs.IBV_WC_BAD_RESP_ERR)
		return
	}
	if !q.storeAnswer(p.Payload, offset, n) {
		return
	}
	r.acked = next
	if r.acked == req.end() {
		r.reads--
		q.passHead()
		return
	}
	q.caughtUp()
}

// receiveAtomic handles the response to the oldest request, an atomic.
func (q *QP) receiveAtomic(p *wire.Packet) {
	r := &q.requester
	req := r.request(r.head)
	if !req.hasAnswer() || req.hasEmptyAnswer() || req.opcode == libibverbs.IBV_WR_RDMA_READ {
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

// storeAnswer writes n bytes, from offset on, to the memory for the response to
// the oldest request. If it returns false, there are two cases. If this
// program's memory is the cause, storeAnswer has failed the request. If the
// memory of the peer's program is the cause, the response counts as lost.
func (q *QP) storeAnswer(src [][]byte, offset, n uint32) bool {
	d, s := q.device, q.send.send(q.requester.head)
	if offset == 0 {
		d.noteWrites(s.Ticket)
	}
	segments, ok := q.send.sendSegments(s)
	if ok {
		pd := q.pd
		if q.offload != nil {
			pd = q.recvPD
		}
		d.target, ok = d.slices(d.target[:0], pd, segments, offset, n, q.answerAccess())
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

// answerAccess returns the access that the memory for responses needs. On
// iWARP, the peer names the memory in its response to an RDMA read, as it does
// in a write.
func (q *QP) answerAccess() libibverbs.AccessFlags {
	if q.device.limits.IWARP {
		return libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_REMOTE_WRITE
	}
	return libibverbs.IBV_ACCESS_LOCAL_WRITE
}

// complete completes the oldest request. If way is not nil, the completion
// waits until the packets of the request have left the process on way. way is
// nil if the peer has acknowledged the request, or if the request's packets
// stay in the process.
func (q *QP) complete(status libibverbs.WcStatus, way Way) {
	r := &q.requester
	req := r.request(r.head)
	var told detector.Account
	if q.counters != nil { // before the program can use the slot again
		told = q.toldOf(q.send.send(r.head).Ticket)
	}
	if status != libibverbs.IBV_WC_SUCCESS || q.signalAll || req.flags&libibverbs.IBV_SEND_SIGNALED != 0 {
		c := q.sendCompletion(r.head, status)
		if status == libibverbs.IBV_WC_SUCCESS {
			c.Opcode, c.ByteLen = wcOpcodes[req.opcode].opcode, req.length
		}
		q.completeSend(&c, way)
	}
	if q.counters != nil {
		q.countRequest(req.opcode, status, req.length, way, told)
	}
	r.head++
}

// waitsForAcks reports whether the program or a later request waits for
// acknowledgements. The program learns of those of its signaled requests.
func (q *QP) waitsForAcks() bool {
	r := &q.requester
	return r.head != r.next && (int32(r.awaited-r.head) > 0 || q.waitsForEarlier())
}

// waitsForEarlier reports whether the acknowledgements of requests that are not
// signaled are awaited, too. The program learns of those if it counts
// completions.
func (q *QP) waitsForEarlier() bool {
	r := &q.requester
	return r.send != r.next || q.counters != nil || q.offload != nil ||
		q.attr.QpState != libibverbs.IBV_QPS_RTS || q.send.waiting(r.head, r.next) > 0
}

// awaitAcks records whether q waits for acknowledgements.
func (q *QP) awaitAcks(awaits bool) {
	acks := q.device.config.Acks
	if acks == nil || awaits == q.awaitsAcks {
		return
	}
	q.awaitsAcks = awaits
	if awaits {
		acks.Await(1)
	} else {
		acks.Await(-1)
	}
}

// settleAcks records whether q waits for acknowledgements after a turn. before
// is whether it did when the turn began. If not, one of an earlier request may
// have come unheard.
func (q *QP) settleAcks(before bool) {
	acks := q.device.config.Acks
	if acks == nil {
		return
	}
	awaits := q.waitsForAcks()
	q.awaitAcks(awaits)
	switch {
	case awaits && !before && q.waitsForEarlier():
		q.device.unheard = true
	case !awaits && q.inFlight() > 0:
		acks.Spare()
	}
}

// sendCompletion returns the completion for the request n of the send queue.
func (q *QP) sendCompletion(n uint32, status libibverbs.WcStatus) Completion {
	c := Completion{Queue: q.send, Count: n + 1}
	s := q.send.send(n)
	c.WrId, c.Status, c.QpNum = s.ID, status, q.number
	c.Ticket = s.Ticket
	return c
}

// failHead completes the oldest request with status, and puts the queue pair
// into the error state.
func (q *QP) failHead(status libibverbs.WcStatus) {
	q.device.settle()
	q.complete(status, nil)
	q.fail()
}
