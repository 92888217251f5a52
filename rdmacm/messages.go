// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// pooled is the intake of a connection that uses a Pool. A message arrives in a
// slot of the pool's memory and is copied to the connection's next receive.
type pooled struct {
	ops      *operations
	part     *part
	reserved int // number of send requests that the connection has reserved in part
	// serial number of the connection in sharedReceives
	serial   uint64
	received atomic.Uint64 // number of the last shared receive that completed
	messages messages
	hangUp   func() // tells the peer of the end, and flushes the queue pair
}

// places returns 1, for messages.marker. Receives need no places, since they
// are posted on the shared receive queue.
func (o *pooled) places(int) int { return 1 }
func (o *pooled) outlives() bool { return true }
func (o *pooled) refused() error { return nil }

// messages holds the posted receives of a connection that uses a Pool, and the
// messages for which there is no receive yet. It is guarded by the operations'
// mutex.
type messages struct {
	wanted fifo[*Receive] // receives without a message
	unread fifo[message]  // messages without a receive; unread or wanted is empty
	ended  bool           // whether no more messages will come
	broken bool           // whether a message was dropped, and later messages are dropped too
	marker operation      // last request on the queue pair, which completes after all others
	marked chan struct{}  // closed when the marker has been posted
	drain  sync.Once      // guards posting the marker
}

// message is a message that has arrived and that no receive has taken yet.
type message struct {
	wc ibverbs.WC
	// slot that holds the bytes; -1 if the bytes were copied to the heap
	slot int64
	data []byte // bytes of the message
}

// arrive processes a message that has arrived in a slot of the pool.
func (o *pooled) arrive(wc *ibverbs.WC, slot uint32) {
	n := wc.ByteLen()
	if wc.Opcode() == ibverbs.WCRecvImm { // the bytes of a WriteImm are in other memory
		n = 0
	}
	receives := &o.part.receives
	m := message{wc: *wc, slot: int64(slot), data: receives.memory(slot, n)}
	o.ops.mu.Lock()
	defer o.ops.mu.Unlock()
	switch {
	case o.ops.closed != nil || o.messages.broken:
		receives.give(slot)
		return
	case o.messages.wanted.len() > 0:
		o.hand(o.messages.wanted.pop(), &m)
		return
	case o.messages.unread.len() == o.part.pool.MaxUnread:
		receives.give(slot)
		o.giveUp(cerr.Argument("receive", o.ops.queues.name(), cerr.InvalidAs(syscall.ENOBUFS,
			"the peer has sent another message while %d wait for a receive, as many as Pool.MaxUnread allows", o.part.pool.MaxUnread)))
		return
	case n == 0 || receives.low.Load():
		m.slot, m.data = -1, bytes.Clone(m.data)
		receives.give(slot)
	}
	o.messages.unread.push(m)
}

// hand copies a message to a receive and ends the receive. The caller must hold
// o.mu.
func (o *pooled) hand(r *Receive, m *message) {
	op := &r.operation
	op.wc = m.wc
	room := 0
	for i := range op.segments {
		room += op.segments[i].Len()
	}
	if len(m.data) > room {
		op.err = o.ops.failureOf(op.what, &ibverbs.WCError{Status: ibverbs.WCLocalLength, ID: op.wc.ID(), QPNum: op.wc.QPNum()})
	} else if err := fill(op.segments, m.data); err != nil {
		op.err = err
	}
	if op.err != nil {
		o.discard()
		o.giveUp(op.err)
	}
	if m.slot >= 0 {
		o.part.receives.give(uint32(m.slot))
	}
	o.ops.recvs.free(1)
	o.ops.end(op)
}

// giveUp ends the connection at both ends, since a message cannot be received.
// A device also ends a connection in that case. The caller must hold o.mu.
func (o *pooled) giveUp(cause error) {
	o.messages.broken = true
	if o.ops.queues.end(cause) {
		background.add(o.hangUp)
	}
}

func (o *pooled) take(r *Receive, segments []ibverbs.Segment, own bool) (*Receive, error) {
	r, taken, err := o.enqueue(r, segments, own)
	if taken {
		o.part.receives.refill()
	}
	return r, err
}

func (o *pooled) enqueue(r *Receive, segments []ibverbs.Segment, own bool) (posted *Receive, taken bool, err error) {
	o.ops.mu.Lock()
	defer o.ops.mu.Unlock()
	m := &o.messages
	switch {
	case o.ops.closed != nil:
		return nil, false, o.ops.closed
	case m.unread.len() == 0 && m.ended:
		return nil, false, o.ops.over()
	case !o.ops.recvs.has(1):
		return nil, false, nil
	}
	fresh := r == nil
	if fresh {
		r = o.ops.takeReceive()
	}
	op := &r.operation
	op.segments = append(op.segments[:0], segments...)
	if !own {
		err = o.checkSegments(op.segments)
		if err == nil {
			err = checkRecv(op.segments)
		}
	}
	if err != nil {
		if fresh {
			o.ops.receives = append(o.ops.receives, r)
		}
		return nil, false, err
	}
	op.begin(0, &work{kind: receiving, bytes: lengthOf(segments)}, nil)
	o.ops.recvs.used++
	if m.unread.len() == 0 {
		m.wanted.push(r)
		return r, false, nil
	}
	first := m.unread.pop()
	o.hand(r, &first)
	return r, true, nil
}

func (o *pooled) checkSegments(segments []ibverbs.Segment) error {
	if len(segments) > o.ops.maxSegments {
		return cerr.Refuse("ibv_post_recv", o.ops.queues.name(), "the receive has %d segments, more than Config.Segments, which is %d", len(segments), o.ops.maxSegments)
	}
	return nil
}

// endReceives ends the receives that wait, since no more messages will come.
// The caller must hold o.mu.
func (o *pooled) endReceives() {
	m := &o.messages
	m.ended = true
	for m.wanted.len() > 0 {
		r := m.wanted.pop()
		r.err = o.ops.closed
		if r.err == nil {
			r.err = o.ops.queues.Err()
		}
		o.ops.recvs.free(1)
		o.ops.end(&r.operation)
	}
}

// discard gives back the slots of the unread messages. The caller must hold
// o.mu.
func (o *pooled) discard() {
	for o.messages.unread.len() > 0 {
		if m := o.messages.unread.pop(); m.slot >= 0 {
			o.part.receives.give(uint32(m.slot))
		}
	}
}

// flushed posts the marker, in a goroutine, once the queue pair takes no more
// receives.
func (o *pooled) flushed() {
	o.messages.drain.Do(func() {
		go func() {
			awaitLastWQE(o.ops.queues.qp)
			o.mark()
			close(o.messages.marked)
		}()
	})
}

// mark posts the marker on the queue pair, which is in the error state. The
// device flushes it as the queue pair's last request, so all messages have
// arrived when it completes.
func (o *pooled) mark() {
	o.ops.mu.Lock()
	defer o.ops.mu.Unlock()
	marker := &o.messages.marker
	if _, err := o.ops.postOne(marker, &work{kind: confirming}, writeNothing, o.endReceives, false); err != nil { // the device was removed
		o.endReceives()
		marker.err = err
		o.ops.end(marker)
	}
}

// settlePatience is how long Close waits for the completions of posted
// requests.
const settlePatience = 5 * time.Second

func (o *pooled) settle() {
	o.ops.queues.flush()
	<-o.messages.marked
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	// An error means that the marker's completion is late or will never
	// come.
	_ = o.ops.waitUntilOver(ctx, &o.messages.marker)
	o.part.qps.remove(o)
}

func (o *pooled) abort() {
	o.endReceives()
	o.discard()
	o.part.cq.Wake() // the poller may be waiting for an operation of this connection
}

// lastWQE maps a device's name to whether the device reports
// EventLastWQEReached.
var lastWQE table[string, bool]

// lastWQEPatience is how long a device may take to report EventLastWQEReached.
const lastWQEPatience = time.Second

// awaitLastWQE waits until the device reports that a queue pair in the error
// state takes no more shared receives. It does not wait for a device that is
// known not to report that.
func awaitLastWQE(qp *ibverbs.QP) {
	device := qp.PD().Device().Name()
	reports, known := lastWQE.load(device)
	if known && !reports {
		return
	}
	timer := time.NewTimer(lastWQEPatience)
	defer timer.Stop()
	select {
	case <-qp.LastWQEReached():
		lastWQE.store(device, true)
	case <-timer.C:
		lastWQE.add(device, false)
	}
}
