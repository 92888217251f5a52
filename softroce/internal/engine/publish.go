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

// Acks learns for which acknowledgements of other processes this process waits.
// While it waits for none, Device.Receive may be called long after one has
// come.
type Acks interface {
	// Await adds n, which is 1 or -1, to the number of queue pairs that wait
	// for acknowledgements. While there are any, Device.Receive must be
	// called soon after one has come. If Device.Advance then says that work
	// is left, it must first be called for those that have come before.
	Await(n int)
	// Spare is called when a queue pair has sent requests and does not wait
	// for their acknowledgements.
	Spare()
}

// Way is the path of packets to another process, or to several.
type Way interface {
	// Mark returns a number for Left that stands for all packets sent so
	// far. It returns 0 if all of them have left the process.
	Mark() (mark uint64)
	// Left reports whether the packets that were sent before Mark returned
	// mark have left the process or are lost. It also returns true after
	// GiveUp.
	Left(mark uint64) bool
	// GiveUp makes Left return true until another packet leaves the process
	// on this way.
	GiveUp()
}

const (
	// stagedTimeout limits each of the two times for which staged data
	// waits if a peer takes no packets: until the answer to the peer is
	// sent, and from then until the answer has left the process.
	stagedTimeout = time.Second
	// stagedBytes is the number of bytes at the end of a WRITE that are
	// staged.
	stagedBytes = 64
	// maxStagedWrites limits the number of WRITEs whose last bytes are
	// staged.
	maxStagedWrites = 16
)

// dependency names the answers to the peer for which a staged completion, event
// or end of a WRITE waits.
type dependency struct {
	qp        *QP    // queue pair that sends the answers; nil: none
	answers   uint32 // value that qp's responder.sent reaches when the answers have been sent
	solicited bool   // for a completion, whether its message had the solicited bit

	way      Way           // way on which the answers leave the process; nil: they stay in it
	mark     uint64        // result of way.Mark after the answers were sent
	deadline time.Duration // time at which the wait for mark ends; 0: Mark was not called yet
}

// stagedWrite has the staged last bytes of a WRITE.
type stagedWrite struct {
	dependency
	ready     bool   // whether the bytes need not wait any more; valid only during Publish
	completed bool   // whether a completion that was added after the WRITE is staged
	dst       []byte // memory of the program into which the bytes in data are to be written
	data      [stagedBytes]byte
}

// stagedEvent is a staged asynchronous event of a queue pair. It waits for the
// answers that the queue pair has queued when Publish is next called.
type stagedEvent struct {
	AsyncEvent
	by         *QP // queue pair that sends the answers; nil once dependency is set
	dependency dependency
}

// publication has all staged data of a device.
type publication struct {
	cqs           []*CQ         // queues that have staged completions
	writes        []stagedWrite // staged last bytes of WRITEs, which do not overlap
	events        []stagedEvent // staged events, the oldest first
	counts        []stagedCount // staged increases of completion counters
	unused        []dependency  // array for CQ.staged that no queue uses
	closed        []closedWay   // ways on which packets had not left when they were checked; valid only during Publish
	queuedAnswers int           // number of queued answers to other processes
}

// closedWay is a way on which the packets before a mark had not left.
type closedWay struct {
	way  Way
	mark uint64 // lowest mark that was checked
}

// Publish makes those staged completions, events and last bytes of WRITEs
// visible that need not wait for answers any more. next is the time at which
// Publish must be called again at the latest, or Never. With Config.Outgoing,
// the caller must also call Publish after each call of Advance and Receive,
// once the packets that these sent were flushed. Without Config.Outgoing,
// nothing is staged.
func (d *Device) Publish() (next time.Duration) {
	s := &d.staged
	next = Never
	if len(s.cqs) > 0 || len(s.writes) > 0 || len(s.events) > 0 || len(s.counts) > 0 {
		p := publishing{d, d.config.Outgoing.Idle(), Never}
		clear(s.closed)
		s.closed = s.closed[:0]
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

// showAll makes all data visible that need not wait any more: first memory,
// then completions, then events. A completion must not become visible before
// the last bytes of an earlier WRITE on its queue pair, or before an earlier
// completion in another queue. So a packet that leaves between two checks must
// not make the later one of two things visible alone: left sees to that.
func (p *publishing) showAll() {
	s := &p.device.staged
	events := p.readyEvents()
	for _, q := range s.cqs {
		p.countReady(q)
	}
	counts := p.takeCounts()
	for i := range s.writes {
		t := &s.writes[i]
		t.ready = p.answered(&t.dependency) && p.left(&t.dependency)
	}
	p.device.unstageIf(func(t *stagedWrite) bool { return t.ready })
	for i := range counts {
		counts[i].show()
	}
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

// readyEvents returns the number of staged events, from the oldest on, that
// need not wait any more.
func (p *publishing) readyEvents() (n int) {
	s := &p.device.staged
	for i := range s.events {
		s.events[i].resolve()
	}
	for n < len(s.events) && p.answered(&s.events[n].dependency) && p.left(&s.events[n].dependency) {
		n++
	}
	return n
}

// takeCounts removes the staged counts that need not wait any more, and returns
// them.
func (p *publishing) takeCounts() (taken []stagedCount) {
	s := &p.device.staged
	kept := s.counts[:0]
	for _, t := range s.counts {
		if p.answered(&t.dependency) && p.left(&t.dependency) {
			taken = append(taken, t)
		} else {
			kept = append(kept, t)
		}
	}
	clear(s.counts[len(kept):])
	s.counts = kept
	return taken
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

// resolve sets e.dependency, unless it is set.
func (e *stagedEvent) resolve() {
	if e.by != nil {
		e.dependency, e.by = e.by.dependency(), nil
	}
}

// forgetAnswers makes staged events, counts and completions no longer wait for
// answers of the queue pair q. Its own completion queues have no completions of
// q any more, but those of shared receive queues for XRC may have.
func (s *publication) forgetAnswers(q *QP) {
	for _, c := range s.cqs {
		for i := range c.staged {
			if c.staged[i].qp == q {
				c.staged[i].qp = nil
			}
		}
	}
	for i := range s.events {
		e := &s.events[i]
		if e.by == q {
			e.resolve()
		}
		if e.dependency.qp == q {
			e.dependency.qp = nil
		}
	}
	for i := range s.counts {
		if s.counts[i].qp == q {
			s.counts[i].qp = nil
		}
	}
}

// countReady sets q.ready, the number of staged completions that can be made
// visible.
func (p *publishing) countReady(q *CQ) {
	if p.idle && p.device.staged.queuedAnswers == 0 {
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

// answered reports whether the answers that dep names were sent, or have waited
// for room in the network until the timeout. Otherwise, answered lowers p.next
// to the time of that timeout.
func (p *publishing) answered(dep *dependency) bool {
	if dep.qp == nil || p.device.staged.queuedAnswers == 0 {
		return true
	}
	r := &dep.qp.responder
	if int32(r.sent-dep.answers) >= 0 {
		return true
	}
	now := p.device.now
	if r.overdue == 0 {
		r.overdue = now + stagedTimeout
	}
	if r.overdue <= now {
		return true
	}
	p.next = min(p.next, r.overdue)
	return false
}

// mark records which packets must have left the process before dep is met: all
// that were sent on the way so far. The answers that dep names must be among
// them.
func (p *publishing) mark(dep *dependency) {
	if dep.way == nil || p.idle || dep.deadline != 0 {
		return
	}
	dep.mark, dep.deadline = dep.way.Mark(), p.device.now+stagedTimeout
	if c := p.closed(dep.way); c != nil && dep.mark == 0 { // all have left since the check
		dep.mark = c.mark
	}
}

// left reports whether the packets that mark recorded have left the process, or
// dep's deadline has passed. The answers that dep names must have been sent.
//
// Packets leave in their order. So if left has returned false during this call
// of Publish, it returns false for all later packets on the way, although they
// may have left since: otherwise, what came later would be visible alone.
func (p *publishing) left(dep *dependency) bool {
	if dep.way == nil || p.idle {
		return true
	}
	p.mark(dep)
	c := p.closed(dep.way)
	switch {
	case c != nil && c.mark <= dep.mark:
	case dep.way.Left(dep.mark):
		return true
	case dep.deadline <= p.device.now:
		dep.way.GiveUp()
		return true
	case c != nil:
		c.mark = dep.mark
	default:
		s := &p.device.staged
		s.closed = append(s.closed, closedWay{dep.way, dep.mark})
	}
	p.next = min(p.next, dep.deadline)
	return false
}

// closed returns the way w if left has found it closed, or nil.
func (p *publishing) closed(w Way) *closedWay {
	s := &p.device.staged
	for i := range s.closed {
		if s.closed[i].way == w {
			return &s.closed[i]
		}
	}
	return nil
}

// writeLast writes the payload of the last packet of a WRITE to b, but stages
// its last bytes. It returns nil on success.
func (q *QP) writeLast(b, payload []byte, dep dependency) *refusal {
	d := q.device
	s := &d.staged
	body, end := b[:max(0, len(b)-stagedBytes)], b[max(0, len(b)-stagedBytes):]
	t := s.last(q, end)
	if t == nil {
		d.unstageOverlap(end)
	}
	d.unstageOverlap(body)
	if q.responder.refused {
		return lost
	}
	if refused := refusalOf(scatter([][]byte{body}, [][]byte{payload[:len(body)]}), badAccess); refused != nil {
		return refused
	}
	if len(s.writes) == 0 || t == nil {
		if !writable(end) {
			return badAccess
		}
		if len(s.writes) == maxStagedWrites {
			if d.answerAndUnstage(); q.responder.refused {
				return lost
			}
		}
		s.writes = append(s.writes, stagedWrite{dst: end})
		t = &s.writes[len(s.writes)-1]
	}
	t.dependency = dep
	copy(t.data[:], payload[len(body):])
	return nil
}

// last returns the newest staged WRITE if it belongs to q and writes to the
// memory end. A new WRITE to end may replace it: as no completion follows the
// staged WRITE, no program can rely on seeing its data.
func (s *publication) last(q *QP, end []byte) *stagedWrite {
	if len(s.writes) == 0 {
		return nil
	}
	t := &s.writes[len(s.writes)-1]
	if t.completed || t.qp != q || len(t.dst) != len(end) || &t.dst[0] != &end[0] {
		return nil
	}
	return t
}

// noteCompletion records that a completion of q is being staged, which tells
// the program that q's earlier WRITEs have arrived.
func (s *publication) noteCompletion(q *QP) {
	if n := len(s.writes); n > 0 && s.writes[n-1].qp == q { // last checks only this one
		s.writes[n-1].completed = true
	}
}

// unstageOverlap writes all staged bytes to memory if some of them belong to b,
// which a request is about to use. Like answerAndUnstage, it can fail a queue
// pair.
func (d *Device) unstageOverlap(b []byte) {
	if d.hasStaged(b) {
		d.answerAndUnstage()
	}
}

// unstageBefore writes all staged bytes to memory before a request to q changes
// the word b: a program that polls the word and finds the new value must see
// what was written earlier. Requests from this process have no order with
// WRITEs of other processes to other memory. Like answerAndUnstage,
// unstageBefore can fail a queue pair.
func (q *QP) unstageBefore(b []byte) {
	if d := q.device; q.outside && len(d.staged.writes) > 0 {
		d.answerAndUnstage()
	} else {
		d.unstageOverlap(b)
	}
}

// hasStaged reports whether bytes are staged that belong to b.
func (d *Device) hasStaged(b []byte) bool { return d.hasStagedAt(addressOf(b), uint64(len(b))) }

// hasStagedAt reports whether bytes are staged that belong to the n bytes at
// the address addr.
func (d *Device) hasStagedAt(addr, n uint64) bool {
	for i := range d.staged.writes {
		if overlap(d.staged.writes[i].dst, addr, n) {
			return true
		}
	}
	return false
}

// answerAndUnstage sends the answers for which staged bytes wait, as far as the
// network has room. Then it writes all staged bytes to memory. A queue pair
// fails if it cannot answer a READ any more. A request to that queue pair that
// is being executed must then have no effect: responder.refused is true, and
// the request is treated as lost.
func (d *Device) answerAndUnstage() {
	for i := 0; i < len(d.staged.writes); i++ { // answerNow may write them all to memory
		t := &d.staged.writes[i]
		if int32(t.qp.responder.sent-t.answers) < 0 {
			t.qp.answerNow()
		}
	}
	d.unstageWrites()
}

// unstageWrites flushes the packets that were sent, and then writes the staged
// last bytes of all WRITEs to memory.
func (d *Device) unstageWrites() {
	if len(d.staged.writes) > 0 {
		d.config.Outgoing.Flush()
		d.unstageIf(func(*stagedWrite) bool { return true })
	}
}

// unstageIf writes the staged last bytes of those WRITEs to memory for which
// ready returns true.
func (d *Device) unstageIf(ready func(t *stagedWrite) bool) {
	s := &d.staged
	kept := s.writes[:0]
	for i := range s.writes {
		t := &s.writes[i]
		if !ready(t) {
			kept = append(kept, *t)
			continue
		}
		// The program may have unmapped the memory meanwhile.
		_ = scatter([][]byte{t.dst}, [][]byte{t.data[:len(t.dst)]})
	}
	clear(s.writes[len(kept):])
	s.writes = kept
}

// overlap reports whether b and the n bytes at the address addr have bytes in
// common.
func overlap(b []byte, addr, n uint64) bool {
	start := addressOf(b)
	return n > 0 && len(b) > 0 && start < addr+n && addr < start+uint64(len(b))
}

// writable reports whether b is mapped with permission to write. b is at most a
// page long.
func writable(b []byte) bool {
	first := uintptr(unsafe.Pointer(&b[0]))
	last := first + uintptr(len(b)) - 1
	return probe(b, first) && (first/pageSize == last/pageSize || probe(b, last))
}

// probe reports whether the aligned 8-byte word that contains the address addr
// can be written. addr is in b. probe does not change the word.
func probe(b []byte, addr uintptr) bool {
	offset := int(addr&^7) - int(uintptr(unsafe.Pointer(&b[0])))
	_, ok := fetchAndAdd((*uint64)(unsafe.Add(unsafe.Pointer(&b[0]), offset)), 0)
	return ok
}
