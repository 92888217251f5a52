// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"
	"unsafe"
)

// A program may end as soon as it sees that a message has arrived. So completions, and the last bytes of what a peer has
// written into memory, are staged first. Publish shows them when the answers that the device owes the peer for them have
// left the process.

// Outgoing is the way of the device's packets out of the process.
type Outgoing interface {
	// Flush hands on what Config.Send has kept.
	Flush()
	// Mark remembers which packets are still in the process, and reports whether there are none.
	Mark() (left bool)
	// Left reports whether the packets that Mark remembered have left the process or are lost.
	Left() bool
	// GiveUp makes Mark ignore the ways on which packets that it remembered are still, until these go on.
	GiveUp()
	// Outside reports whether a queue pair is another process's.
	Outside(p *QP) bool
}

const (
	// patience is how long something that is staged waits at most for a peer that takes nothing.
	patience = time.Second
	// tailBytes is how many bytes of a WRITE are written last.
	tailBytes = 64
	// maxTails is how many ends of WRITEs are staged at most.
	maxTails = 16
)

// duty is what something that is staged waits for.
type duty struct {
	qp        *QP    // nil: for no answer
	answers   uint32 // of qp that must have been sent, as responder.sent counts them
	solicited bool   // of a completion
}

// tail is the end of a WRITE.
type tail struct {
	duty
	cleared bool // as in publication
	told    bool // a completion that was staged later tells the program of it
	dst     []byte
	data    [tailBytes]byte
}

// publication is what is staged.
type publication struct {
	cqs   []*CQ  // with staged completions
	tails []tail // no two of which have a byte in common
	owed  int    // answers to other processes that were not sent

	// What needs no answer any more is cleared. It waits until the packets have left that were marked then.
	cleared  bool          // something is: tail.cleared and CQ.cleared say what
	deadline time.Duration // when it waits no longer
}

// Publish shows the program what is staged, as far as the packets that are owed for it have left. It returns when it is to be called
// next, after Advance, at the latest; or Never. If there is Config.Outgoing, the owner calls it after Advance and Receive, when what they have sent
// is flushed. Else nothing is staged.
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

// clear clears what needs no answer any more. It returns when something will have waited for too long.
func (d *Device) clear() (next time.Duration) {
	s := &d.staged
	next = Never
	all := s.owed == 0
	// A completion must not be cleared before the tails of its queue pair that precede it. So no tail waits for those of others.
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

// met reports whether a duty is done: the answer was sent, or has had no room for too long. If not, next is when it will have been too long.
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

// show shows what is cleared: first memory, then completions.
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

// writeLast writes a payload that ends a WRITE to b. The last bytes of it are staged.
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

// last returns the tail that was staged last if it is one of q's at the same place. The next one may take its place: no
// program could be sure to see it, as no completion tells of it.
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

// tell notes that a completion of q is staged, which tells the program of what q has written.
func (s *publication) tell(q *QP) {
	if n := len(s.tails); n > 0 && s.tails[n-1].qp == q { // last looks at no others
		s.tails[n-1].told = true
	}
}

// settle shows the staged ends of WRITEs before a request uses memory in which one is.
func (d *Device) settle(b []byte) {
	if d.hasTail(b) {
		d.settleAll()
	}
}

// hasTail reports whether a staged end of a WRITE is in b.
func (d *Device) hasTail(b []byte) bool {
	for i := range d.staged.tails {
		if overlap(d.staged.tails[i].dst, b) {
			return true
		}
	}
	return false
}

// settleAll sends the answers for which ends of WRITEs wait, as far as there is room, and shows all of them.
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

// writeTails writes the staged ends of WRITEs that are due.
func (d *Device) writeTails(due func(t *tail) bool) {
	s := &d.staged
	kept := s.tails[:0]
	for i := range s.tails {
		t := &s.tails[i]
		if !due(t) {
			kept = append(kept, *t)
			continue
		}
		// The program may have unmapped the memory since.
		_ = scatter([][]byte{t.dst}, [][]byte{t.data[:len(t.dst)]})
	}
	clear(s.tails[len(kept):])
	s.tails = kept
}

// overlap reports whether some byte is in both.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	p, q := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return p < q+uintptr(len(b)) && q < p+uintptr(len(a))
}

// writable reports whether b, which is not longer than a page, can be written to.
func writable(b []byte) bool {
	first := uintptr(unsafe.Pointer(&b[0]))
	last := first + uintptr(len(b)) - 1
	return probe(b, first) && (first/pageSize == last/pageSize || probe(b, last))
}

// probe writes the word in which the byte at an address is, without a change.
func probe(b []byte, addr uintptr) bool {
	offset := int(addr&^7) - int(uintptr(unsafe.Pointer(&b[0])))
	_, ok := fetchAndAdd((*uint64)(unsafe.Add(unsafe.Pointer(&b[0]), offset)), 0)
	return ok
}
