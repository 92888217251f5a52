// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// entered does what the protocol requires when the queue pair has entered the
// state q.attr.QpState. from is the previous state.
func (q *QP) entered(from libibverbs.QpState) {
	r, s := &q.requester, &q.responder
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_RESET:
		q.halt()
		return
	case libibverbs.IBV_QPS_RTR:
		s.psn = wire.PSN(q.attr.RqPsn).Add(0)
		if out := q.device.config.Outgoing; out != nil && q.kind != libibverbs.IBV_QPT_UD {
			q.way = out.Way(q.path.sgid, q.path.dgid, q.attr.DestQpNum)
			q.outside = q.way != nil && q.reliable
		}
	case libibverbs.IBV_QPS_RTS:
		if from == libibverbs.IBV_QPS_RTR {
			psn := wire.PSN(q.attr.SqPsn).Add(0)
			r.psn, r.acked, r.sent, r.high = psn, psn, psn, psn
			r.timer.qp = q
		}
	case libibverbs.IBV_QPS_ERR:
		q.awaitAcks(false)
		q.device.settle()
		q.dropHeld()
		q.device.schedule.timers.remove(&r.timer)
		q.forgetCongestion()
		q.forgetRate()
		if !s.refused {
			q.sendAcks()
		}
		if s.receive.taken {
			q.failReceive(libibverbs.IBV_WC_WR_FLUSH_ERR)
		}
	}
	q.device.schedule.add(q)
}

// halt stops everything that is in progress, and clears the state of the
// protocol.
func (q *QP) halt() {
	q.device.settle()
	q.dropHeld()
	q.sendAcks()
	q.forgetUnexpected()
	if q.offload != nil {
		q.offload.drop()
	}
	q.device.unstageWrites()
	q.device.staged.forgetAnswers(q)
	q.awaitAcks(false)
	q.way, q.outside, q.orphan, q.peerLasts = nil, false, false, 0
	q.device.schedule.timers.remove(&q.requester.timer)
	q.forgetCongestion()
	q.forgetRate()
	q.device.schedule.remove(q)
	// Allocated memory is kept for later use.
	q.requester = requester{requests: q.requester.requests}
	s := &q.responder
	*s = responder{answers: s.answers[:0], held: s.held, receive: receive{segments: s.receive.segments[:0]}}
}

// flush completes up to budget work requests of a queue pair in the error
// state. more reports whether it stopped only because of the budget.
func (q *QP) flush(budget int) (more bool) {
	r := &q.requester
	for ; budget > 0 && q.send.waiting(r.head, r.head) > 0 && !q.forgets(r.head, q.lateSend); budget-- {
		op, told := q.send.send(r.head).Opcode, q.toldOf(q.send.send(r.head).Ticket) // before the program can use the slot again
		c := q.sendCompletion(r.head, libibverbs.IBV_WC_WR_FLUSH_ERR)
		q.completeSend(&c, nil)
		if q.counters != nil {
			q.countRequest(op, libibverbs.IBV_WC_WR_FLUSH_ERR, 0, nil, told)
		}
		r.head++
	}
	r.send, r.next = r.head, r.head
	if q.recv != nil {
		budget -= q.flushReceives(budget)
	}
	return budget == 0
}

// flushReceives completes up to most receives of a queue pair in the error
// state, and returns how many. Unlike takeReceive and failReceive, it does not
// look at their memory: a connection that ends has hundreds of receives.
func (q *QP) flushReceives(most int) (n int) {
	w, next := q.recv, &q.responder.next
	c := Completion{Queue: w}
	c.Status, c.QpNum = libibverbs.IBV_WC_WR_FLUSH_ERR, q.number
	for dep := q.dependency(); n < most && w.waiting(*next, *next) > 0 && !q.forgets(*next, q.lateRecv); n++ {
		s := w.recv(*next)
		*next++
		c.WrId, c.Ticket, c.Count = s.ID, s.Ticket, *next
		q.device.noteWrites(c.Ticket)
		q.completeReceive(&c, dep)
	}
	return n
}

// forgets reports whether the device never completes request number n, as it
// was posted in the error state. late is the number of the first such request.
func (q *QP) forgets(n, late uint32) bool {
	return q.device.limits.Late == 1 && int32(n-late) >= 0
}
