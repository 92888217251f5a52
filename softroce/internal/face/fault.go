// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Fault is what happens to a packet on its way.
type Fault struct {
	Drop      bool
	Corrupt   bool          // one bit changes, in each copy another
	Duplicate int           // copies that arrive besides the packet
	Delay     time.Duration // the packet arrives so much later, its copies too
}

// SetFaults makes f decide what happens to each packet that the process sends; nil ends it. f is called
// with the node locked.
func SetFaults(f func(p *wire.Packet) Fault) {
	n := self()
	n.lock()
	defer n.unlock()
	n.faults = f
	n.watch()
}

// watch notes whether functions of the program see packets. Then nobody helps: who polls may have a lock that such a function takes.
func (n *node) watch() { n.watched.Store(n.faults != nil || len(n.captures) > 0) }

// suffer does to a parcel what a fault says, and sends what is left of it.
func (n *node) suffer(p parcel, f Fault, now time.Duration) {
	defer n.packets.Put(p.packet)
	if f.Drop {
		return
	}
	at := now + f.Delay
	if f.Delay > never-now {
		at = never
	}
	for range 1 + max(f.Duplicate, 0) {
		c := parcel{n.clone(p.packet), p.mad} // what is held back must not change
		switch {
		case c.packet == nil:
		case f.Corrupt && !n.corrupt(c.packet):
			n.packets.Put(c.packet)
		case f.Delay <= 0:
			n.deliver(c)
		default:
			n.serial++
			heap.Push(&n.delayed, delayed{at, n.serial, c})
		}
	}
}

// clone returns a copy of a packet with a payload of its own, nil if the program has unmapped what it sends.
func (n *node) clone(p *wire.Packet) *wire.Packet {
	payload := make([]byte, p.PayloadLen())
	if !engine.Copy(payload, p.Payload) {
		return nil
	}
	c := n.packets.Get()
	list := c.Payload
	*c = *p
	c.Payload = append(list[:0], payload)
	return c
}

// corrupt changes one bit of a packet as it would be on the wire. It reports whether a receiver would
// take the packet nevertheless.
func (n *node) corrupt(p *wire.Packet) bool {
	flow := wire.NewFlow(p.SGID, p.DGID, p.SrcPort)
	b := p.Append(nil)
	flow.Seal(b, 0)
	bit := rand.IntN(8 * len(b))
	b[bit/8] ^= 1 << (bit % 8)
	id, ok := flow.Verify(b)
	return ok && id == 0 // only a bit that no check covers was changed
}

// deliverDelayed sends the parcels whose delay is over.
func (n *node) deliverDelayed(now time.Duration) {
	for len(n.delayed) > 0 && n.delayed[0].at <= now {
		n.deliver(heap.Pop(&n.delayed).(delayed).parcel)
	}
}

// delayed is a parcel that is held back.
type delayed struct {
	at     time.Duration
	serial uint64 // of two with the same time, the lower one goes first
	parcel parcel
}

// queue is a heap of parcels, the next one first.
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
