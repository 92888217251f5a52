// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"
	"unsafe"
)

// A program may exit as soon as it sees that a message has arrived. The answers
// that the device owes the peer would then be lost. So completions, and the
// last bytes that a peer has written to memory, are staged first. Publish shows
// them when the answers that they depend on have left the process.

// Outgoing is the way of packets out of the process.
type Outgoing interface {
	// Flush hands on the packets that Config.Send has buffered.
	Flush()
	// Mark remembers the packets that are still in the process. It returns true
	// if there are none.
	Mark() (left bool)
	// Left reports whether the packets that Mark remembered have left the
	// process or are lost.
	Left() bool
	// GiveUp makes Mark ignore the ways on which remembered packets are stuck,
	// until they move again.
	GiveUp()
	// Outside reports whether the peer of a queue pair is in another process.
	Outside(p *QP) bool
}

const (
	// patience limits the time that staged data waits for a peer that takes no
	// packets.
	patience = time.Second
	// tailBytes is the number of bytes at the end of a WRITE that are written
	// last.
	tailBytes = 64
	// maxTails limits the number of staged ends of WRITEs.
	maxTails = 16
)

// duty is the answer that something staged waits for.
type duty struct {
	qp        *QP    // nil if there is no answer to wait for
	answers   uint32 // the value of qp's responder.sent at which the answer has been sent
	solicited bool   // whether a completion is of a message with the solicited bit
}

// tail is the staged end of a WRITE.
type tail struct {
	duty
	cleared bool // see publication
	told    bool // whether a completion that was staged later announces it
	dst     []byte
	data    [tailBytes]byte
}

// publication has everything that is staged.
type publication struct {
	cqs   []*CQ  // queues with staged completions
	tails []tail // without common bytes
	owed  int    // number of unsent answers to other processes

	// Staged data that needs no further answer is cleared. It is shown when the
	// packets that were marked at that time have left.
	cleared  bool          // whether anything is cleared: see tail.cleared and CQ.cleared
	deadline time.Duration // the time at which cleared data is shown in any case
}

// Publish shows the program the staged data whose answers have left the
// process. It returns when to call it next at the latest, or Never; any Advance
// may make an earlier call due. With Config.Outgoing, the owner calls it after
// Advance and Receive, once their packets are flushed. Without, nothing is
// staged.
func (d *Device) Publish() (next time.Duration) {
	s, out := &d.staged, d.config.Outgoing
	next = Never
	for len(s.cqs) > 0 || len(s.tails) > 0 {
		if s.cleared {
			if !out.Left() {
				if d.now < s.deadline {
					next = s.deadline
					break
				}
				out.GiveUp()
			}
			d.show()
			continue
		}
		if next = d.clear(); !s.cleared {
			break
		}
		if out.Mark() {
			d.show()
		} else {
			s.deadline = d.now + patience
		}
	}
	if event := d.advanceEvents(); event != 0 {
		next = min(next, event)
	}
	return next
}

// clear clears the staged data that needs no further answer. It returns when
// the rest will have waited for too long.
func (d *Device) clear() (next time.Duration) {
	s := &d.staged
	next = Never
	all := s.owed == 0
	// A completion must not be cleared before the tails of its queue pair that
	// precede it. So no tail waits for tails of other queue pairs.
	for i := range s.tails {
		t := &s.tails[i]
		t.cleared = t.cleared || all || d.met(&t.duty, &next)
		s.cleared = s.cleared || t.cleared
	}
	for _, q := range s.cqs {
		if all {
			q.cleared = len(q.staged)
		}
		for q.cleared < len(q.staged) && d.met(&q.staged[q.cleared], &next) {
			q.cleared++
		}
		s.cleared = s.cleared || q.cleared > 0
	}
	return next
}

// met reports whether a duty is done: the answer was sent, or has found no room
// for too long. If not, it lowers next to the time when that will be too long.
func (d *Device) met(y *duty, next *time.Duration) bool {
	if y.qp == nil {
		return true
	}
	r := &y.qp.responder
	if int32(r.sent-y.answers) >= 0 {
		return true
	}
	if r.overdue == 0 {
		r.overdue = d.now + patience
	}
	if r.overdue <= d.now {
		return true
	}
	*next = min(*next, r.overdue)
	return false
}

// show shows the cleared data: memory first, then completions.
func (d *Device) show() {
	s := &d.staged
	s.cleared = false
	d.writeTails(func(t *tail) bool { return t.cleared })
	kept := s.cqs[:0]
	for _, q := range s.cqs {
		q.show(q.cleared)
		if q.listed = len(q.staged) > 0; q.listed {
			kept = append(kept, q)
		}
	}
	clear(s.cqs[len(kept):])
	s.cqs = kept
}

// writeLast writes the last payload of a WRITE to b. It stages the last bytes.
func (q *QP) writeLast(b, payload []byte, y duty) fault {
	d := q.device
	s := &d.staged
	body, end := b[:max(0, len(b)-tailBytes)], b[max(0, len(b)-tailBytes):]
	t := s.last(q, end)
	if t == nil {
		d.settle(end)
	}
	d.settle(body)
	if f := scatter([][]byte{body}, [][]byte{payload[:len(body)]}); f != noFault {
		return f
	}
	if len(s.tails) == 0 || t == nil {
		if !writable(end) {
			return targetFault
		}
		if len(s.tails) == maxTails {
			d.settleAll()
		}
		s.tails = append(s.tails, tail{dst: end})
		t = &s.tails[len(s.tails)-1]
	}
	t.duty = y
	copy(t.data[:], payload[len(body):])
	return noFault
}

// last returns the newest tail if it belongs to q and has the same destination.
// The new tail may replace it: no completion announces it, so no program could
// rely on seeing it.
func (s *publication) last(q *QP, end []byte) *tail {
	if len(s.tails) == 0 {
		return nil
	}
	t := &s.tails[len(s.tails)-1]
	if t.told || t.qp != q || len(t.dst) != len(end) || &t.dst[0] != &end[0] {
		return nil
	}
	return t
}

// tell records that a completion of q is staged, which announces what q has
// written before.
func (s *publication) tell(q *QP) {
	if n := len(s.tails); n > 0 && s.tails[n-1].qp == q { // last checks only this one
		s.tails[n-1].told = true
	}
}

// settle shows the staged ends of WRITEs if one of them is in b, which a
// request is about to use.
func (d *Device) settle(b []byte) {
	if d.hasTail(b) {
		d.settleAll()
	}
}

// hasTail reports whether a staged end of a WRITE overlaps b.
func (d *Device) hasTail(b []byte) bool {
	for i := range d.staged.tails {
		if overlap(d.staged.tails[i].dst, b) {
			return true
		}
	}
	return false
}

// settleAll sends the answers that ends of WRITEs wait for, as far as there is
// room, and shows all of them.
func (d *Device) settleAll() {
	for i := range d.staged.tails {
		t := &d.staged.tails[i]
		if int32(t.qp.responder.sent-t.answers) < 0 {
			t.qp.answerNow()
		}
	}
	d.showTails()
}

// showTails shows all staged ends of WRITEs.
func (d *Device) showTails() {
	if len(d.staged.tails) > 0 {
		d.config.Outgoing.Flush()
		d.writeTails(func(*tail) bool { return true })
	}
}

// writeTails writes the staged ends of WRITEs for which due returns true.
func (d *Device) writeTails(due func(t *tail) bool) {
	s := &d.staged
	kept := s.tails[:0]
	for i := range s.tails {
		t := &s.tails[i]
		if !due(t) {
			kept = append(kept, *t)
			continue
		}
		// The program may have unmapped the memory meanwhile.
		_ = scatter([][]byte{t.dst}, [][]byte{t.data[:len(t.dst)]})
	}
	clear(s.tails[len(kept):])
	s.tails = kept
}

// overlap reports whether a and b have a byte in common.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	p, q := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return p < q+uintptr(len(b)) && q < p+uintptr(len(a))
}

// writable reports whether b, which is at most a page long, can be written.
func writable(b []byte) bool {
	first := uintptr(unsafe.Pointer(&b[0]))
	last := first + uintptr(len(b)) - 1
	return probe(b, first) && (first/pageSize == last/pageSize || probe(b, last))
}

// probe reports whether the word that contains the byte at an address can be
// written. It does not change the word.
func probe(b []byte, addr uintptr) bool {
	offset := int(addr&^7) - int(uintptr(unsafe.Pointer(&b[0])))
	_, ok := fetchAndAdd((*uint64)(unsafe.Add(unsafe.Pointer(&b[0]), offset)), 0)
	return ok
}
