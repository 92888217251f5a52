// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"sync/atomic"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// minLater is the number of bytes from which on a copy is left to the owner.
// That costs about as much as the copy of a third of them.
const minLater = 128 << 10

// longMerged is the number of packets for which a packet may stand whose copy
// is left to the owner.
const longMerged = window

// maxHeld limits the packets that wait for a copy. The requests that a peer may
// have in flight need fewer.
const maxHeld = 4 * window

// Copies has the large copies that devices leave to their owner, which may make
// them while other threads use the devices. Devices that exchange packets share
// it.
//
// A device leaves the copy of a WRITE, from the memory of one queue pair to
// that of another in the same process, after all checks, in Advance or Receive.
// Until LateCopy.Finish, the responder holds back what else arrives for it.
// Before a completion, or the end of a call, gives memory back to the program,
// the device waits until no copy uses any memory.
type Copies struct {
	// Await waits until no copy that Take has returned is being made.
	Await func()

	left       uint64 // number of copies that were left so far
	pending    []*LateCopy
	oldest     atomic.Uint64 // number of the first one of pending; 0 if there is none
	unfinished []*LateCopy   // copies that are pending or were taken
	free       []*LateCopy
}

// LateCopy is a copy that a device has left to its owner.
type LateCopy struct {
	number  uint64
	qp      *QP
	queues  [2]*CompletionQueue // of the responder's receives and of the requester's requests
	packet  *wire.Packet
	message message // what the message is before the packet counts
	target  [1][]byte
	made    bool
	fault   fault
}

// Oldest returns the number of the oldest copy that Take has not returned, or 0
// if there is none. Copies are numbered from 1 on. Unlike the other methods,
// Oldest may be called at any time.
func (c *Copies) Oldest() uint64 { return c.oldest.Load() }

// Left returns the number of the latest copy that was left, or 0 if there was
// none.
func (c *Copies) Left() uint64 { return c.left }

// Take returns the oldest copy that was left and that is wanted, or nil. The
// caller calls its methods Make and Finish.
func (c *Copies) Take(wanted func(*LateCopy) bool) *LateCopy {
	i := slices.IndexFunc(c.pending, wanted)
	if i < 0 {
		return nil
	}
	t := c.pending[i]
	c.pending = slices.Delete(c.pending, i, i+1)
	c.noteOldest()
	return t
}

// noteOldest changes what Oldest returns, after a change of pending.
func (c *Copies) noteOldest() {
	oldest := uint64(0)
	if len(c.pending) > 0 {
		oldest = c.pending[0].number
	}
	c.oldest.Store(oldest)
}

// Number returns the number of the copy.
func (t *LateCopy) Number() uint64 { return t.number }

// IsFor reports whether one of the two queue pairs completes into a queue.
func (t *LateCopy) IsFor(queue *CompletionQueue) bool {
	return t.queues[0] == queue || t.queues[1] == queue
}

// Make makes the copy. It may be called while other threads use the devices.
func (t *LateCopy) Make() {
	if !t.made {
		t.fault = scatter(t.target[:], t.packet.Payload)
		t.made = true
	}
}

// Finish does what follows the copy, which was made.
func (t *LateCopy) Finish() {
	q, p := t.qp, t.packet
	d := q.device
	c, r := d.config.Copies, &q.responder
	if r.copy == t { // otherwise the queue pair has failed, or was reset
		r.copy = nil
		refused := refusalOf(t.fault, badAccess)
		if refused == nil {
			refused = q.arrived(p, &t.message, uint32(p.PayloadLen()))
		}
		q.executed(p, 1+int(p.More), refused)
		if peer := q.localPeer(); peer != nil {
			peer.restartTimer() // the copy may have taken longer than the timeout
		}
	}
	d.config.Packets.Put(p)
	c.unfinished = slices.DeleteFunc(c.unfinished, func(other *LateCopy) bool { return other == t })
	*t = LateCopy{}
	c.free = append(c.free, t)
	for r.copy == nil && len(r.held) > 0 {
		p := r.held[0]
		r.held, r.owned = slices.Delete(r.held, 0, 1), max(0, r.owned-1)
		q.receiveRequest(p)
		d.config.Packets.Put(p)
	}
}

// mayLeave reports whether q may leave a large copy to m to the owner.
func (q *QP) mayLeave(m *MR) bool {
	return q.leavesCopies() && m.memory != nil && q.peerSends()
}

// peerSends reports whether the peer is in the process and still sends. When it
// has failed, or was reset, its program gets the memory of its requests back,
// and packets that are on their way are copied before that.
func (q *QP) peerSends() bool {
	peer := q.localPeer()
	return peer != nil && (peer.attr.QpState == libibverbs.IBV_QPS_RTS || peer.attr.QpState == libibverbs.IBV_QPS_SQD)
}

// leavesCopies reports whether large copies for q's packets, or for its peer's,
// may be left to the owner.
func (q *QP) leavesCopies() bool {
	c := q.device.config.Copies
	return c != nil && !q.outside
}

// leaveCopy leaves the copy of p's payload to b, for the message m, to the
// owner.
func (q *QP) leaveCopy(p *wire.Packet, m *message, b []byte) {
	d := q.device
	c := d.config.Copies
	t := &LateCopy{}
	if n := len(c.free); n > 0 {
		t, c.free = c.free[n-1], c.free[:n-1]
	}
	c.left++
	*t = LateCopy{number: c.left, qp: q, packet: q.keep(p), message: *m, target: [1][]byte{b}}
	if q.recvCQ != nil {
		t.queues[0] = q.recvCQ.ring
	}
	if peer := q.localPeer(); peer != nil && peer.sendCQ != nil {
		t.queues[1] = peer.sendCQ.ring
	}
	q.responder.copy = t
	c.pending = append(c.pending, t)
	c.noteOldest()
	c.unfinished = append(c.unfinished, t)
}

// keep returns a packet with what p has, which it empties.
func (q *QP) keep(p *wire.Packet) *wire.Packet {
	kept := q.device.config.Packets.Get()
	*kept, *p = *p, *kept
	return kept
}

// hold keeps a packet back until the copy for the one before it has ended.
func (q *QP) hold(p *wire.Packet) {
	if r := &q.responder; len(r.held) < maxHeld {
		r.held = append(r.held, q.keep(p))
		if !q.peerSends() {
			q.ownHeld()
		}
	}
}

// dropHeld makes q forget its copy, and the packets that wait for that.
func (q *QP) dropHeld() {
	r := &q.responder
	r.copy = nil
	for _, p := range r.held {
		q.device.config.Packets.Put(p)
	}
	clear(r.held)
	r.held, r.owned = r.held[:0], 0
}

// settle returns when no copy uses memory of the program, which is about to get
// memory back: a copy that was not taken is made now. Packets that are held get
// payloads of their own.
func (d *Device) settle() {
	c := d.config.Copies
	if c == nil || len(c.unfinished) == 0 {
		return
	}
	for _, t := range c.pending {
		t.Make()
	}
	c.Await()
	for _, t := range c.unfinished {
		if t.qp.responder.copy == t {
			t.qp.ownHeld()
		}
	}
}

// ownHeld copies the payloads of the packets that are held, as they are on
// their way in a network. It drops those whose memory is not mapped any more,
// and what follows.
func (q *QP) ownHeld() {
	r, pool := &q.responder, q.device.config.Packets
	for ; r.owned < len(r.held); r.owned++ {
		p := r.held[r.owned]
		n := p.PayloadLen()
		if n == 0 {
			continue
		}
		own := make([]byte, n)
		if !Copy(own, p.Payload) {
			for _, p := range r.held[r.owned:] {
				pool.Put(p)
			}
			clear(r.held[r.owned:])
			r.held = r.held[:r.owned]
			return
		}
		clear(p.Payload)
		p.Payload = append(p.Payload[:0], own)
	}
}

// localPeer returns the queue pair to which q is connected, if this process has
// it, or nil.
func (q *QP) localPeer() *QP {
	if peer := q.device.find(q.attr.DestQpNum); peer != nil && peer.attr.DestQpNum == q.number {
		return peer
	}
	return nil
}

// peerCopies reports whether a copy for a request of q is left to the owner.
func (q *QP) peerCopies() bool {
	c := q.device.config.Copies
	if c == nil || len(c.unfinished) == 0 {
		return false
	}
	peer := q.localPeer()
	return peer != nil && peer.responder.copy != nil
}
