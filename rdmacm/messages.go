// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// messages are the receives of a connection that uses a Pool, and the messages
// that came before them. They are guarded by the operations' mutex.
type messages struct {
	wanted fifo[*Receive] // receives without a message
	unread fifo[message]  // messages without a receive; one of both is empty
	dry    bool           // no more messages will come
	broken bool           // a message was dropped, and so are those that come behind it
	marker operation      // the last request, whose completion comes after all others
	marked chan struct{}  // closed when the marker has been posted
	drain  sync.Once      // guards the way to that
}

// message is a message that nobody has received.
type message struct {
	wc   ibverbs.WC
	slot int64  // of its bytes; -1 if they were copied
	data []byte // the bytes
}

// arrive takes a message that lies in a slot of the pool.
func (o *operations) arrive(wc *ibverbs.WC, slot uint32) {
	n := wc.ByteLen()
	if wc.Opcode() == ibverbs.WCRecvImm { // a WriteImm, whose bytes are elsewhere
		n = 0
	}
	receives := &o.pool.receives
	m := message{wc: *wc, slot: int64(slot), data: receives.memory(slot, n)}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed != nil || o.messages.broken:
		receives.give(slot)
		return
	case o.messages.wanted.len() > 0:
		o.hand(o.messages.wanted.pop(), &m)
		return
	case o.messages.unread.len() == o.pool.maxUnread:
		receives.give(slot)
		o.giveUp(cerr.Argument("receive", o.queues.name(), cerr.InvalidAs(syscall.ENOBUFS,
			"%d messages wait for a receive, as many as PoolConfig.MaxUnread allows, and the peer has sent another", o.pool.maxUnread)))
		return
	case n == 0 || receives.low.Load():
		m.slot, m.data = -1, bytes.Clone(m.data)
		receives.give(slot)
	}
	o.messages.unread.push(m)
}

// hand gives a message to a receive. The caller must hold o.mu.
func (o *operations) hand(r *Receive, m *message) {
	op := &r.operation
	op.wc = m.wc
	room := 0
	for i := range op.segments {
		room += op.segments[i].Len()
	}
	if len(m.data) > room {
		op.err = o.failureOf(op.what, &ibverbs.WCError{Status: ibverbs.WCLocalLength, ID: op.wc.ID(), QPNum: op.wc.QPNum()})
	} else if err := fill(&op.segments, m.data); err != nil {
		op.err = err
	}
	if op.err != nil {
		o.discard()
		o.giveUp(op.err)
	}
	if m.slot >= 0 {
		o.pool.receives.give(uint32(m.slot))
	}
	o.recvs.free(1)
	o.end(op)
}

// giveUp ends the connection at both ends, as the device does when it cannot receive a message. The caller must hold o.mu.
func (o *operations) giveUp(cause error) {
	o.messages.broken = true
	if o.queues.end(cause) {
		background.add(o.hangUp)
	}
}

// await is tryRecv for a connection of a pool. If own is set, the segments are of a Receiver, which needs no
// memory that a device reaches.
func (o *operations) await(r *Receive, segments []ibverbs.Segment, own bool) (*Receive, error) {
	r, taken, err := o.enqueue(r, segments, own)
	if taken {
		o.pool.receives.refill()
	}
	return r, err
}

func (o *operations) enqueue(r *Receive, segments []ibverbs.Segment, own bool) (posted *Receive, taken bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := &o.messages
	switch {
	case o.closed != nil:
		return nil, false, o.closed
	case m.unread.len() == 0 && m.dry:
		return nil, false, o.over()
	case !o.recvs.has(1):
		return nil, false, nil
	}
	fresh := r == nil
	if fresh {
		r = o.takeReceive()
	}
	op := &r.operation
	op.segments = append(op.segments[:0], segments...)
	if !own {
		err = o.checkSegments(op.segments)
		if err == nil {
			err = checkRecv(&op.segments)
		}
	}
	if err != nil {
		if fresh {
			o.receives = append(o.receives, r)
		}
		return nil, false, err
	}
	op.begin(0, &work{kind: receiving, bytes: lengthOf(segments)}, nil)
	o.recvs.used++
	if m.unread.len() == 0 {
		m.wanted.push(r)
		return r, false, nil
	}
	first := m.unread.pop()
	o.hand(r, &first)
	return r, true, nil
}

func (o *operations) checkSegments(segments []ibverbs.Segment) error {
	if len(segments) > o.maxSegments {
		return cerr.Refuse("ibv_post_recv", o.queues.name(), "%d segments, and Config.Segments is %d", len(segments), o.maxSegments)
	}
	return nil
}

// runDry ends the receives that get no message any more. The caller must hold o.mu.
func (o *operations) runDry() {
	m := &o.messages
	m.dry = true
	for m.wanted.len() > 0 {
		r := m.wanted.pop()
		r.err = o.closed
		if r.err == nil {
			r.err = o.queues.Err()
		}
		o.recvs.free(1)
		o.end(&r.operation)
	}
}

// discard gives back the messages that nobody has received. The caller must hold o.mu.
func (o *operations) discard() {
	for o.messages.unread.len() > 0 {
		if m := o.messages.unread.pop(); m.slot >= 0 {
			o.pool.receives.give(uint32(m.slot))
		}
	}
}

// startDrain posts the marker, when the queue pair takes no more receives. The queue pair must be in the error state.
func (c *queues) startDrain() {
	c.ops.messages.drain.Do(func() {
		go func() {
			awaitLastWQE(c.qp)
			c.ops.mark()
			close(c.ops.messages.marked)
		}()
	})
}

// mark posts the marker. It is flushed: its completion is the last one of the
// queue pair, so all messages have arrived before it.
func (o *operations) mark() {
	o.mu.Lock()
	defer o.mu.Unlock()
	marker := &o.messages.marker
	if err := o.postOne(marker, &work{kind: confirming}, writeNothing, o.runDry); err != nil { // the device is gone
		o.runDry()
		marker.err = err
		o.end(marker)
	}
}

// settlePatience is how long Close waits for the completions of what was posted.
const settlePatience = 5 * time.Second

// settle waits until the shared receive queue and the completion queues have
// nothing more to do with the queue pair, which is about to be destroyed.
func (c *queues) settle() error {
	if c.qp != nil && c.onFlush != nil {
		c.flush()
		if c.qp.LastWQEReached() != nil {
			awaitLastWQE(c.qp)
		}
		c.flushing.Store(true)
		defer c.flushing.Store(false)
		c.onFlush()
		return nil
	}
	if c.qp == nil || c.srq == nil {
		return nil
	}
	c.flush()
	if c.ops.pool == nil {
		awaitLastWQE(c.qp)
		return nil
	}
	<-c.ops.messages.marked
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	// An error says that no completion will come, or none in time.
	_ = c.ops.waitUntilOver(ctx, &c.ops.messages.marker)
	c.ops.pool.qps.remove(&c.ops)
	return nil
}

// lastWQE knows for each device, by its name, whether it reports EventLastWQEReached.
var lastWQE sync.Map

// lastWQEPatience is how long a device may take to report EventLastWQEReached.
const lastWQEPatience = time.Second

// awaitLastWQE waits until a queue pair in the error state has taken its last
// shared receive. It does not wait if the device has been seen not to report that.
func awaitLastWQE(qp *ibverbs.QP) {
	device := qp.PD().Device().Name()
	reports, known := lastWQE.Load(device)
	if known && !reports.(bool) {
		return
	}
	timer := time.NewTimer(lastWQEPatience)
	defer timer.Stop()
	select {
	case <-qp.LastWQEReached():
		lastWQE.Store(device, true)
	case <-timer.C:
		lastWQE.LoadOrStore(device, false)
	}
}

// errForeignReceives is the error of a receive on a connection whose receives are in Config.SRQ.
func (o *operations) errForeignReceives() error {
	return cerr.Argument("ibv_post_recv", o.queues.name(), cerr.InvalidAs(syscall.EINVAL,
		"the connection takes its receives from Config.SRQ: post them there"))
}

// Completed takes a completion of a connection with Config.SendCQ and
// Config.RecvCQ, which the program has polled. It reports whether the completion
// was of a request of the Conn's own: then the program has nothing more to do
// with it. Otherwise it was of one that the program has posted on QP, whose ID is
// 1<<63 or more, or of a receive in Config.SRQ; if it failed, Err is set.
//
// Pass each completion whose WC.QPNum is that of QP, in the order in which they
// were polled: those of requests that the Conn posts for KeepAlive too. One that
// comes after Close is of no effect. Completed does not block, calls no function
// of the program, and allocates nothing unless the request has failed. It may be
// called from everywhere, also from the functions of Config.
//
// A program that does not poll has connections whose calls do not return; it
// should poll at least every Config.KeepAlive, or turn that off, because a check
// that does not complete in time ends the connection. On other connections
// Completed does nothing and returns false.
func (c *Conn) Completed(wc *ibverbs.WC) bool {
	if c.self().check() != nil || wc == nil || !c.ops.polledByUser() || wc.QPNum() != c.ops.num {
		return false
	}
	o := &c.ops
	own := wc.ID() < userRequest && o.isOwn(wc.ID())
	if !own && wc.ID() < userRequest {
		return false // of an earlier queue pair with the same number
	}
	o.note(wc)
	if own {
		o.mu.Lock()
		o.complete(wc)
		o.mu.Unlock()
	}
	return own
}

// checkShared returns an error if what connections share is not as it must be.
func (c *Config) checkShared(id string) error {
	bad := func(format string, args ...any) error { return cerr.Refuse(opCreateQP, id, format, args...) }
	switch {
	case c.Prepare != nil && (c.Pool != nil || c.SendCQ != nil || c.RecvCQ != nil || c.SRQ != nil):
		return bad("Config.Prepare creates the queue pair: Pool, SendCQ, RecvCQ and SRQ must be nil")
	case c.Pool != nil && c.Pool.check() != nil:
		return fmt.Errorf("Config.Pool: %w", c.Pool.check())
	case c.Pool != nil && (c.SendCQ != nil || c.RecvCQ != nil || c.SRQ != nil):
		return bad("Config.Pool has queues: SendCQ, RecvCQ and SRQ must be nil")
	case c.Pool != nil && c.PD != nil && c.PD != c.Pool.pd:
		return bad("Config.PD is not that of Config.Pool")
	case (c.SendCQ == nil) != (c.RecvCQ == nil):
		return bad("Config.SendCQ and Config.RecvCQ go together: set both, or neither; they may be the same")
	case c.SRQ != nil && c.RecvCQ == nil:
		return bad("Config.SRQ needs Config.SendCQ and Config.RecvCQ, because the program takes the messages")
	case (c.Pool != nil || c.SendCQ != nil) && (c.SendQueue > maxTaggedQueue || c.RecvQueue > maxTaggedQueue):
		return bad("Config.SendQueue is %d and Config.RecvQueue %d, not up to %d with completion queues that are shared",
			c.SendQueue, c.RecvQueue, maxTaggedQueue)
	}
	return nil
}

const maxTaggedQueue = 1<<(placeBits-1) - 1
