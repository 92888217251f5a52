// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A program may exit as soon as it sees that a message has arrived.
// Acknowledgements that the device has not sent by then would be lost. So the
// device holds back, or stages, completions, asynchronous events of queue
// pairs, and the last bytes of a peer's WRITE. Publish makes each visible once
// the answers to the peer that precede it have left the process.

// Outgoing knows when packets leave the process.
type Outgoing interface {
	// Flush sends the packets that Config.Send has buffered.
	Flush()
	// Idle reports whether all packets have left the process.
	Idle() bool
	// Way returns the way of packets from the address src to the queue pair
	// qpn at dst. It returns nil if they do not leave the process.
	Way(src, dst wire.GID, qpn uint32) Way
}

// Way is the path of packets to another process, or to several.
type Way interface {
	// Mark returns a number that stands for the packets sent so far. It
	// returns 0 if all of them have left the process.
	Mark() (mark uint64)
	// Left reports whether the packets that were sent before Mark returned
	// mark have left the process or are lost. It also returns true after
	// GiveUp.
	Left(mark uint64) bool
	// GiveUp makes Left return true until a packet leaves on the way again.
	GiveUp()
}

const (
	// patience limits the time that staged data waits because a peer takes
	// no packets: the time until its answer is sent, and then the time
	// until that has left the process.
	patience = time.Second
	// tailBytes is the number of bytes at the end of a WRITE that are
	// staged.
	tailBytes = 64
	// maxTails limits the number of WRITEs whose last bytes are staged.
	maxTails = 16
)

// duty says for which answers to the peer a staged completion, event or end of
// a WRITE waits.
type duty struct {
	qp        *QP    // queue pair that sends the answers; nil: none
	answers   uint32 // value that qp's responder.sent reaches when the answers have been sent
	solicited bool   // for a completion, whether its message had the solicited bit

	way      Way           // path on which the answers leave; nil: they stay in the process
	mark     uint64        // result of way.Mark after the answers were sent
	deadline time.Duration // time at which the wait for mark ends; 0: Mark was not called yet
}

// tail is the staged end of a WRITE.
type tail struct {
	duty
	left bool   // whether the wait for the answers is over; valid only during Publish
	told bool   // whether a completion that follows the WRITE is staged
	dst  []byte // memory of the program to which data belongs
	data [tailBytes]byte
}

// stagedEvent is an asynchronous event that waits for the answers that a queue
// pair has queued by the next call of Publish.
type stagedEvent struct {
	AsyncEvent
	by   *QP // queue pair with the answers; nil once duty is set
	duty duty
}

// publication has all staged data of a device.
type publication struct {
	cqs    []*CQ         // queues that have staged completions
	tails  []tail        // staged ends of WRITEs, which do not overlap
	events []stagedEvent // staged events, in order
	owed   int           // number of queued answers to other processes
}

// Publish makes the staged data visible whose answers have left the process.
// next is the time at which it must be called again at the latest, or Never.
// With Config.Outgoing, the caller must also call it after Advance and Receive,
// once their packets were flushed. Without Config.Outgoing, nothing is staged.
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

// publishing is the state of one call of Publish.
type publishing struct {
	device *Device
	idle   bool          // whether all packets had left the process when the call began
	next   time.Duration // earliest time at which staged data will have waited for too long
}

// showAll makes all data visible that need not wait any more: memory first,
// then completions, then events. It checks them in the opposite order, since a
// packet may leave between two checks, and a completion must not become visible
// before the end of an earlier WRITE on its queue pair.
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

// readyEvents returns the number of leading staged events that need not wait
// any more.
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

// event reports an asynchronous event of the queue pair. If the peer is in
// another process, the event is staged until the answers to the peer have left.
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

// resolve sets the duty of the event, unless it is set.
func (e *stagedEvent) resolve() {
	if e.by != nil {
		e.duty, e.by = e.by.duty(), nil
	}
}

// forgetAnswers makes staged events wait for no further answers of the queue
// pair.
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

// look sets q.ready, the number of staged completions that can be made visible.
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

// answered reports whether the answers that y names were sent, or have had to
// wait for room for too long. If not, answered lowers p.next to the time at
// which that will be too long.
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

// mark records which packets y waits for. The answers that y names must have
// been sent.
func (p *publishing) mark(y *duty) {
	if y.way != nil && !p.idle && y.deadline == 0 {
		y.mark, y.deadline = y.way.Mark(), p.device.now+patience
	}
}

// left reports whether the packets that y waits for have left the process, or
// y's deadline has passed. The answers that y names must have been sent.
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

// writeLast writes the payload of the last packet of a WRITE to b, and stages
// the last bytes.
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

// last returns the newest tail if it belongs to q and its memory is end. A new
// WRITE may replace that tail: no completion follows the old one, so no program
// can rely on seeing it.
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

// tell records that a completion of q is staged. It announces q's earlier
// WRITEs to the program.
func (s *publication) tell(q *QP) {
	if n := len(s.tails); n > 0 && s.tails[n-1].qp == q { // last checks only this one
		s.tails[n-1].told = true
	}
}

// settle writes all staged ends of WRITEs if one of them overlaps b, which a
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

// settleAll sends the answers for which staged ends of WRITEs wait, as far as
// there is room, and then writes the ends to memory.
func (d *Device) settleAll() {
	for i := range d.staged.tails {
		t := &d.staged.tails[i]
		if int32(t.qp.responder.sent-t.answers) < 0 {
			t.qp.answerNow()
		}
	}
	d.showTails()
}

// showTails writes all staged ends of WRITEs to memory.
func (d *Device) showTails() {
	if len(d.staged.tails) > 0 {
		d.config.Outgoing.Flush()
		d.writeTails(func(*tail) bool { return true })
	}
}

// writeTails writes the staged ends of WRITEs for which due returns true to
// memory.
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

// overlap reports whether a and b have bytes in common.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	p, q := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return p < q+uintptr(len(b)) && q < p+uintptr(len(a))
}

// writable reports whether the program has mapped b writable. b is at most a
// page long.
func writable(b []byte) bool {
	first := uintptr(unsafe.Pointer(&b[0]))
	last := first + uintptr(len(b)) - 1
	return probe(b, first) && (first/pageSize == last/pageSize || probe(b, last))
}

// probe reports whether the 8-byte word around the address addr, which is in b,
// can be written. It does not change the word.
func probe(b []byte, addr uintptr) bool {
	offset := int(addr&^7) - int(uintptr(unsafe.Pointer(&b[0])))
	_, ok := fetchAndAdd((*uint64)(unsafe.Add(unsafe.Pointer(&b[0]), offset)), 0)
	return ok
}
