// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A program may exit as soon as it sees that a message has arrived. The answers
// that the device owes the peer would then be lost. So completions, events of
// queue pairs, and the last bytes that a peer has written to memory, are staged
// first. Publish shows each when the answers that it depends on have left the
// process.

// Outgoing is the way of packets out of the process.
type Outgoing interface {
	// Flush hands on the packets that Config.Send has buffered.
	Flush()
	// Idle reports whether no packet is in the process any more.
	Idle() bool
	// Way returns the way of packets from an address to a queue pair. It
	// returns nil if they stay in the process.
	Way(src, dst wire.GID, qpn uint32) Way
}

// Way is the way of packets to one other process, or to several.
type Way interface {
	// Mark returns a number for the packets that were sent so far. It returns 0
	// if none of them is in the process any more.
	Mark() (mark uint64)
	// Left reports whether the packets that were sent on the way before Mark
	// returned mark have left the process or are lost. It is also true of a way
	// that was given up.
	Left(mark uint64) bool
	// GiveUp gives up the way until a packet leaves on it.
	GiveUp()
}

const (
	// patience limits the time that staged data waits for a peer that takes no
	// packets: until its answer is sent, and from then on until that has left.
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

	way      Way           // the way of the answer; nil if there is nothing to wait for
	mark     uint64        // the way's, after the answer was sent
	deadline time.Duration // the time at which the wait for mark ends; 0 until there is a mark
}

// tail is the staged end of a WRITE.
type tail struct {
	duty
	left bool // whether its duty is done; valid only during Publish
	told bool // whether a completion that was staged later announces it
	dst  []byte
	data [tailBytes]byte
}

// stagedEvent is an event that waits for the answers that a queue pair owes at
// the next call of Publish.
type stagedEvent struct {
	AsyncEvent
	by   *QP // the queue pair that owes the answers; nil once duty is set
	duty duty
}

// publication has everything that is staged.
type publication struct {
	cqs    []*CQ  // queues with staged completions
	tails  []tail // without common bytes
	events []stagedEvent
	owed   int // number of unsent answers to other processes
}

// Publish shows the program the staged data whose answers have left the
// process. It returns when to call it next at the latest, or Never; any Advance
// may make an earlier call due. With Config.Outgoing, the owner calls it after
// Advance and Receive, once their packets are flushed. Without, nothing is
// staged.
func (d *Device) Publish() (next time.Duration) {
	s := &d.staged
	next = Never
	if len(s.cqs) > 0 || len(s.tails) > 0 || len(s.events) > 0 {
		p := publishing{d, d.config.Outgoing.Idle(), Never}
		p.showAll()
		next = p.next
	}
	if event := d.advanceEvents(); event != 0 {
		next = min(next, event)
	}
	return next
}

// publishing is a call of Publish.
type publishing struct {
	device *Device
	idle   bool          // whether no packet was in the process at its beginning
	next   time.Duration // the time at which some duty will have waited for too long
}

// showAll shows all data whose duties are done: memory first, then completions,
// then events. It checks their duties in the opposite order: a packet may leave
// between two checks, and a completion must not be shown before the tails of
// its queue pair that precede it.
func (p *publishing) showAll() {
	s := &p.device.staged
	events := p.readyEvents()
	for _, q := range s.cqs {
		p.look(q)
	}
	for i := range s.tails {
		t := &s.tails[i]
		t.left = p.answered(&t.duty) && p.left(&t.duty)
	}
	p.device.writeTails(func(t *tail) bool { return t.left })
	kept := s.cqs[:0]
	for _, q := range s.cqs {
		q.show(q.ready)
		if q.listed = len(q.staged) > 0; q.listed {
			kept = append(kept, q)
		}
	}
	clear(s.cqs[len(kept):])
	s.cqs = kept
	for _, e := range s.events[:events] {
		p.device.config.AsyncEvent(e.AsyncEvent)
	}
	s.events = slices.Delete(s.events, 0, events)
}

// readyEvents returns the number of events, from the first on, whose duties are
// done.
func (p *publishing) readyEvents() (n int) {
	s := &p.device.staged
	for i := range s.events {
		s.events[i].resolve()
	}
	for n < len(s.events) && p.answered(&s.events[n].duty) && p.left(&s.events[n].duty) {
		n++
	}
	return n
}

// event makes an event of a queue pair. If the peer is in another process, the
// event is staged until the answers that the peer is owed have left.
func (q *QP) event(t libibverbs.EventType, object any) {
	d := q.device
	switch {
	case d.config.AsyncEvent == nil:
	case !q.outside:
		d.event(t, object)
	default:
		d.staged.events = append(d.staged.events, stagedEvent{AsyncEvent: AsyncEvent{Type: t, Object: object}, by: q})
	}
}

// resolve finds out which duty the event has.
func (e *stagedEvent) resolve() {
	if e.by != nil {
		e.duty, e.by = e.by.duty(), nil
	}
}

// forgetAnswers ends the wait of events for further answers of a queue pair.
func (s *publication) forgetAnswers(q *QP) {
	for i := range s.events {
		e := &s.events[i]
		if e.by == q {
			e.resolve()
		}
		if e.duty.qp == q {
			e.duty.qp = nil
		}
	}
}

// look finds out how many of a queue's completions can be shown.
func (p *publishing) look(q *CQ) {
	if p.idle && p.device.staged.owed == 0 {
		q.ready = len(q.staged)
		return
	}
	for q.answered < len(q.staged) && p.answered(&q.staged[q.answered]) {
		p.mark(&q.staged[q.answered])
		q.answered++
	}
	for q.ready = 0; q.ready < q.answered && p.left(&q.staged[q.ready]); {
		q.ready++
	}
}

// answered reports whether the answer of a duty was sent, or has found no room
// for too long. If not, it lowers next to the time when that will be too long.
func (p *publishing) answered(y *duty) bool {
	if y.qp == nil || p.device.staged.owed == 0 {
		return true
	}
	r := &y.qp.responder
	if int32(r.sent-y.answers) >= 0 {
		return true
	}
	now := p.device.now
	if r.overdue == 0 {
		r.overdue = now + patience
	}
	if r.overdue <= now {
		return true
	}
	p.next = min(p.next, r.overdue)
	return false
}

// mark notes which packets y waits for. The answer of y must have been sent.
func (p *publishing) mark(y *duty) {
	if y.way != nil && !p.idle && y.deadline == 0 {
		y.mark, y.deadline = y.way.Mark(), p.device.now+patience
	}
}

// left reports whether the wait for y's packets is over: they have left the
// process, or the deadline has passed. The answer of y must have been sent.
func (p *publishing) left(y *duty) bool {
	if y.way == nil || p.idle {
		return true
	}
	p.mark(y)
	if y.way.Left(y.mark) {
		return true
	}
	if y.deadline <= p.device.now {
		y.way.GiveUp()
		return true
	}
	p.next = min(p.next, y.deadline)
	return false
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
