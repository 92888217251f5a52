// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// intake passes messages to the receives of a connection. The connection
// chooses its implementation once, when it creates its queues.
type intake interface {
	// places returns how many places operations.inFlight needs for
	// receives. recvQueue is the maximum number of posted receives.
	places(recvQueue int) int
	// refused returns an error if the connection's methods cannot receive.
	refused() error
	newReceiver(size int) (*Receiver, error)
	// outlives reports whether messages can be received after the end of the
	// connection.
	outlives() bool
	// flushed is called when the queue pair is in the error state. The caller
	// holds operations.mu.
	flushed()
	// settle waits until the shared queues have no more completions and
	// receives of the queue pair, which is about to be destroyed.
	settle()
	// abort ends the receives that are not posted on the device. The caller
	// holds operations.mu.
	abort()
	// leave gives back the connection's share of shared queues. After an error,
	// it can be called again.
	leave() error
}

// take posts a receive. It returns nil if there is no room. If r is nil, it
// takes an unused receive or creates one. own is true for segments of a
// Receiver, whose memory the device need not reach. poll is true if the caller
// is about to wait for the receive, so that take may also poll. take is not a
// method of intake: a call through the interface would move the segments to the
// heap, and each Recv would allocate.
func (o *operations) take(r *Receive, segments []ibverbs.Segment, own, poll bool) (*Receive, error) {
	switch in := o.intake.(type) {
	case ownReceives:
		return in.take(r, segments, poll)
	case *pooled:
		return in.take(r, segments, own)
	}
	return nil, o.intake.refused()
}

// ownReceives is the intake of a connection that posts receives on its queue
// pair's own receive queue.
type ownReceives struct{ ops *operations }

// useOwnReceives makes the connection post receives on its own queue pair.
func (o *operations) useOwnReceives(segments int) (err error) {
	o.intake = ownReceives{o}
	o.recv, err = ibverbs.NewRecvBatch(1, segments)
	return err
}

func (o ownReceives) places(recvQueue int) int { return recvQueue }
func (o ownReceives) outlives() bool           { return false }
func (o ownReceives) refused() error           { return nil }
func (o ownReceives) flushed()                 {}
func (o ownReceives) settle()                  {}
func (o ownReceives) abort()                   {}
func (o ownReceives) leave() error             { return nil }

func (o ownReceives) newReceiver(size int) (*Receiver, error) {
	return o.ops.queues.newReceiver(size, o.ops.postRecv)
}

func (o ownReceives) take(r *Receive, segments []ibverbs.Segment, poll bool) (*Receive, error) {
	o.ops.mu.Lock()
	if err := o.ops.over(); err != nil {
		o.ops.mu.Unlock()
		return nil, err
	}
	if !o.ops.recvs.has(1) {
		o.ops.mu.Unlock()
		return nil, nil
	}
	if r == nil {
		r = o.ops.takeReceive()
	}
	op := &r.operation
	op.begin(0, &work{kind: receiving, bytes: lengthOf(segments)}, nil)
	o.ops.recv.Reset()
	place, id := o.ops.place(op)
	poll = poll && o.ops.becomePoller()
	n, err := o.post(op, id, segments, poll)
	done := false
	if err == nil {
		o.ops.recvs.used++
		done = o.ops.completeAtOnce(op, n)
	} else {
		o.ops.withdraw(op, place)
		r = nil
	}
	o.ops.unlockAndHandOut(poll, n, done)
	return r, err
}

// post posts a receive. For a datagram, it adds room for the header. If poll is
// set, the caller is the poller: post also takes the available completions, in
// the same call of C, and returns their number.
func (o ownReceives) post(op *operation, id uint64, segments []ibverbs.Segment, poll bool) (completions int, err error) {
	recv, h := o.ops.recv, o.ops.headers
	if h != nil {
		if h.copies() { // the batch checks the segments to which the datagram is copied
			if err := recv.Recv(id, segments...); err != nil {
				return 0, err
			}
			recv.Reset()
		}
		if segments, err = h.add(op, segments); err != nil {
			return 0, err
		}
	}
	posted := 0
	err = recv.Recv(id, segments...)
	switch {
	case err != nil:
	case poll:
		posted, completions, err = sealed.Open(o.ops.queues.qp.Internals()).PostRecvAndPoll(recv, o.ops.cq, o.ops.wcs)
	default:
		posted, err = o.ops.queues.qp.PostRecv(recv)
	}
	if posted > 0 {
		return completions, nil // if polling failed, the next call meets the error again
	}
	if h != nil {
		h.release(op)
	}
	return 0, err
}
