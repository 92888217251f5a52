// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Never is the time at which nothing is due.
const Never = time.Duration(math.MaxInt64)

const (
	// turns is how many turns of queue pairs one call of Advance takes.
	turns = 64
	// turnPackets is how many requests, and how many answers, a queue pair sends in its turn.
	turnPackets = 16
)

// schedule knows what a device has to do: queue pairs with work, in the order of their
// turns, and timers. A queue pair without work costs nothing.
type schedule struct {
	ready  []*QP // from first on
	first  int
	timers timers

	blocked []*QP // have no room for what they send
}

// Advance does what is due at a time, which must not go back: timers, requests that were
// posted, answers to packets that were received. It returns when it wants to be called
// next, at the latest: now if it stopped because it had done a lot, or Never. It is to be called after any
// other call of the device's methods, too.
func (d *Device) Advance(now time.Duration) (next time.Duration) {
	d.now = now
	d.schedule.timers.expire(now)
	orphans := d.advanceOrphans()
	for range turns {
		q := d.schedule.take()
		if q == nil {
			break
		}
		q.turn()
	}
	d.advanceCQs()
	event := d.advanceEvents()
	if d.schedule.busy() {
		return now
	}
	next = d.schedule.timers.next()
	for _, due := range []time.Duration{orphans, event} {
		if due != 0 {
			next = min(next, due)
		}
	}
	return next
}

// transmit sends a packet, unless the port is down.
func (d *Device) transmit(p *wire.Packet) {
	if d.down || d.gone {
		d.config.Packets.Put(p)
		return
	}
	d.counters.PacketsSent++
	d.config.Send(p)
}

// Ring hears the doorbell of a queue: requests were posted to it. Receives need a call only in the error state, in which they
// are flushed.
func (d *Device) Ring(w *WorkQueue) {
	if q := d.qps[uint32(w.Owner)]; q != nil && (q.send == w || q.recv == w) {
		d.schedule.add(q)
	}
}

// Resume lets queue pairs go on that found no room for what they send.
func (d *Device) Resume() {
	s := &d.schedule
	for _, q := range s.blocked {
		q.blocked = false
		s.add(q)
	}
	clear(s.blocked)
	s.blocked = s.blocked[:0]
}

// room reports whether there is room for what q sends. If not, q has its next turn after Resume.
func (q *QP) room() bool {
	d := q.device
	if d.config.Room == nil || d.config.Room(q.attr.DestQpNum) {
		return true
	}
	if !q.blocked {
		q.blocked = true
		d.schedule.blocked = append(d.schedule.blocked, q)
	}
	return false
}

// add gives q a turn.
func (s *schedule) add(q *QP) {
	if q.queued {
		return
	}
	q.queued = true
	if s.first == len(s.ready) {
		s.first, s.ready = 0, s.ready[:0]
	} else if s.first >= 1024 && s.first >= len(s.ready)/2 {
		n := copy(s.ready, s.ready[s.first:])
		clear(s.ready[n:])
		s.first, s.ready = 0, s.ready[:n]
	}
	s.ready = append(s.ready, q)
}

// take returns the queue pair whose turn it is, or nil.
func (s *schedule) take() *QP {
	if !s.busy() {
		return nil
	}
	q := s.ready[s.first]
	s.ready[s.first] = nil
	s.first++
	q.queued = false
	return q
}

// remove takes away the turn that q has.
func (s *schedule) remove(q *QP) {
	if q.queued {
		q.queued = false
		i := s.first + slices.Index(s.ready[s.first:], q)
		s.ready = slices.Delete(s.ready, i, i+1)
	}
}

// sendDatagrams sends all that was posted to the datagram queue pairs of a domain. Those with something to send have a turn.
func (s *schedule) sendDatagrams(pd *PD) {
	for _, q := range slices.Clone(s.ready[s.first:]) {
		if q.kind == libibverbs.IBV_QPT_UD && q.pd == pd && q.attr.QpState == libibverbs.IBV_QPS_RTS {
			q.sendRequests(int(q.send.waiting(q.requester.head, q.requester.head)))
		}
	}
}

func (s *schedule) busy() bool { return s.first < len(s.ready) }

// turn does some of the work that q has.
func (q *QP) turn() {
	more := false
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_RTR:
		more = q.answer(q.device.budget())
	case libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
		answers := q.answer(q.device.budget())
		more = q.sendRequests(q.device.budget()) || answers
		if q.kind == libibverbs.IBV_QPT_RC && q.attr.QpState != libibverbs.IBV_QPS_ERR {
			q.runTimer()
		}
		if q.requester.head == q.requester.next {
			q.drained()
		}
	case libibverbs.IBV_QPS_ERR:
		answers := q.answer(q.device.budget()) // up to the NAK that says why
		more = q.flush(4*q.device.budget()) || answers
	}
	if more {
		q.device.schedule.add(q)
	}
}

// budget returns how many packets a queue pair sends in its turn.
func (d *Device) budget() int {
	if d.config.Hostile != nil {
		return 1 + d.config.Hostile.IntN(3)
	}
	return turnPackets
}

// PacketPool keeps packets that are not in use. Devices whose packets reach one another share one.
type PacketPool struct{ free []*wire.Packet }

// maxFree is how many packets a pool keeps.
const maxFree = 4096

// Get returns a packet that says nothing.
func (l *PacketPool) Get() *wire.Packet {
	n := len(l.free)
	if n == 0 {
		return &wire.Packet{Payload: make([][]byte, 0, 4)}
	}
	p := l.free[n-1]
	l.free = l.free[:n-1]
	return p
}

// Put takes a packet that nobody needs any more, with the slice that is its Payload but not
// the memory.
func (l *PacketPool) Put(p *wire.Packet) {
	if len(l.free) == maxFree {
		return
	}
	clear(p.Payload)
	*p = wire.Packet{Payload: p.Payload[:0]}
	l.free = append(l.free, p)
}
