// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Never is the time of what never happens.
const Never = time.Duration(math.MaxInt64)

const (
	// turns limits the number of queue pairs that one call of Advance lets
	// send.
	turns = 64
	// turnPackets limits the packets of requests, and those of answers,
	// that a queue pair sends before other queue pairs have their turn.
	turnPackets = 16
)

// schedule has the queue pairs with work, in the order in which they will be
// served, and the timers. A queue pair without work costs nothing.
type schedule struct {
	ready  []*QP // queue pairs with work, from index first on
	first  int   // index in ready of the queue pair that is served next
	timers timers

	blocked []*QP // queue pairs that wait for room in the network
}

// Advance does the work that is due at the time now: timers, posted requests,
// and answers to received packets. now must not decrease. next is the time at
// which Advance must be called again at the latest: now if work is left, or
// Never. The caller must also call Advance after any other method of the
// device.
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
	if d.schedule.busy() || d.unheard {
		d.unheard = false
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

// transmit sends a packet, or drops it if the port is down.
func (d *Device) transmit(p *wire.Packet) {
	if d.down || d.gone {
		d.config.Packets.Put(p)
		return
	}
	d.counters.PacketsSent += 1 + uint64(p.More)
	d.config.Send(p)
}

// Ring tells the device that requests were posted to a queue. For receives,
// this is only necessary in the error state, in which they are flushed.
func (d *Device) Ring(w *WorkQueue) {
	if q := d.qps[uint32(w.Owner)]; q != nil && (q.send == w || q.recv == w) {
		d.schedule.add(q)
	}
}

// Resume lets the queue pairs continue that wait for room in the network.
func (d *Device) Resume() {
	s := &d.schedule
	for _, q := range s.blocked {
		q.blocked = false
		s.add(q)
	}
	clear(s.blocked)
	s.blocked = s.blocked[:0]
}

// room reports whether the network has room for packets of q. If it has none, q
// waits until Resume.
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

// add schedules q, unless it is scheduled already.
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

// take returns the queue pair to serve next, or nil.
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

// remove undoes add, if q is scheduled.
func (s *schedule) remove(q *QP) {
	if q.queued {
		q.queued = false
		i := s.first + slices.Index(s.ready[s.first:], q)
		s.ready = slices.Delete(s.ready, i, i+1)
	}
}

// sendDatagrams sends all datagrams that were posted to queue pairs of the
// protection domain pd. Only queue pairs that are scheduled can have such
// datagrams.
func (s *schedule) sendDatagrams(pd *PD) {
	for _, q := range slices.Clone(s.ready[s.first:]) {
		if q.kind == libibverbs.IBV_QPT_UD && q.pd == pd && q.attr.QpState == libibverbs.IBV_QPS_RTS {
			q.sendRequests(int(q.send.waiting(q.requester.head, q.requester.head)))
		}
	}
}

// busy reports whether a queue pair is scheduled.
func (s *schedule) busy() bool { return s.first < len(s.ready) }

// turn serves q: it sends some answers and requests or, in the error state,
// flushes some requests.
func (q *QP) turn() {
	more, budget, awaited := false, q.device.budget(), q.awaitsAcks
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_RTR:
		more = q.answer(budget)
	case libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
		answers := q.answer(budget)
		more = q.sendRequests(budget) || answers
		if q.reliable && q.attr.QpState != libibverbs.IBV_QPS_ERR {
			q.runTimer()
			if q.outside {
				q.settleAcks(awaited)
			}
		}
		if q.requester.head == q.requester.next {
			q.drained()
		}
	case libibverbs.IBV_QPS_ERR:
		answers := q.answer(budget) // the last is the NAK that tells the peer the reason
		more = q.flush(4*budget) || answers
	}
	if more {
		q.device.schedule.add(q)
	}
}

// budget returns the number of packets that a queue pair may send before others
// are served. In hostile mode it is random.
func (d *Device) budget() int {
	if d.config.Hostile != nil {
		return 1 + d.config.Hostile.IntN(3)
	}
	return turnPackets
}

// PacketPool keeps unused packets for reuse. Devices that exchange packets
// share a pool.
type PacketPool struct{ free []*wire.Packet }

// maxFree limits the number of packets that a pool keeps.
const maxFree = 4096

// Get returns an empty packet.
func (l *PacketPool) Get() *wire.Packet {
	n := len(l.free)
	if n == 0 {
		return &wire.Packet{Payload: make([][]byte, 0, 4)}
	}
	p := l.free[n-1]
	l.free = l.free[:n-1]
	return p
}

// Put takes back a packet that is not used any more. It drops the references to
// the payload's memory.
func (l *PacketPool) Put(p *wire.Packet) {
	if len(l.free) == maxFree {
		return
	}
	clear(p.Payload)
	*p = wire.Packet{Payload: p.Payload[:0]}
	l.free = append(l.free, p)
}
