// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Fault says what happens to a packet that the process sends. The zero Fault
// does nothing.
type Fault struct {
	Drop      bool          // whether the packet is lost
	Corrupt   bool          // whether one bit of the packet is flipped, a different bit in each copy
	Duplicate int           // number of additional copies that arrive
	Delay     time.Duration // time by which the packet and its copies are held back
}

// SetFaults makes f decide what happens to each packet that the process sends.
// If f is nil, packets arrive undisturbed again. The node is locked while f
// runs.
func (n *Node) SetFaults(f func(p *wire.Packet) Fault) {
	n.Lock()
	defer n.Unlock()
	n.path.faults = f
	n.path.watch()
}

// watch updates worker.watched, which says whether functions of the program see
// packets. If it is true, polling threads do not run steps of the worker: such
// a thread may hold a lock for which the program's function waits. A thread
// that makes a copy at the time waits for the mutex afterwards all the same.
func (w *path) watch() { w.n.worker.watched.Store(w.faults != nil || len(w.captures) > 0) }

// applyFault applies the fault f to a parcel. Unless the parcel is dropped,
// applyFault delivers its copies, or holds them back until their delay is over.
func (w *path) applyFault(p parcel, f Fault, now time.Duration) {
	defer w.packets.Put(p.packet)
	if f.Drop {
		return
	}
	at := now + f.Delay
	if f.Delay > never-now {
		at = never
	}
	for range 1 + max(f.Duplicate, 0) {
		c := parcel{w.clone(p.packet), p.mad} // a parcel that is held back must not change
		switch {
		case c.packet == nil:
		case f.Corrupt && !corrupt(c.packet):
			w.packets.Put(c.packet)
		case f.Delay <= 0:
			w.deliver(c)
		default:
			w.serial++
			heap.Push(&w.delayed, delayed{at, w.serial, c})
		}
	}
}

// clone returns a copy of p that has its own payload. It returns nil if the
// program has unmapped the memory that p sends.
func (w *path) clone(p *wire.Packet) *wire.Packet {
	payload := make([]byte, p.PayloadLen())
	if !engine.Copy(payload, p.Payload) {
		return nil
	}
	c := w.packets.Get()
	list := c.Payload
	*c = *p
	c.Payload = append(list[:0], payload)
	return c
}

// corrupt flips one bit of a packet as it would be on the wire. It returns true
// if the bit is covered by no checksum, so that a receiver would accept the
// packet.
func corrupt(p *wire.Packet) bool {
	flow := wire.NewFlow(p.SGID, p.DGID, p.SrcPort)
	b := p.Append(nil)
	flow.Seal(b, 0)
	bit := rand.IntN(8 * len(b))
	b[bit/8] ^= 1 << (bit % 8)
	id, ok := flow.Verify(b, 0)
	return ok && id == 0 // no check covers the bit
}

// deliverDelayed delivers the parcels whose delay is over at the time now.
func (w *path) deliverDelayed(now time.Duration) {
	for len(w.delayed) > 0 && w.delayed[0].at <= now {
		w.deliver(heap.Pop(&w.delayed).(delayed).parcel)
	}
}

// due returns the time at which the first delay ends, or never.
func (w *path) due() time.Duration {
	if len(w.delayed) == 0 {
		return never
	}
	return w.delayed[0].at
}

// delayed is a parcel that is held back until the time at.
type delayed struct {
	at     time.Duration
	serial uint64 // order among parcels with the same time
	parcel parcel
}

// queue is a heap of the parcels that are held back. The first is due first.
type queue []delayed

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].serial < q[j].serial
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(delayed)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = delayed{}
	*q = (*q)[:last]
	return d
}
