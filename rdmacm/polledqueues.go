// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PolledQueues are completion queues that the program creates and polls, for
// Config.Queues. Many connections may share them. The program passes each
// completion to Conn.Completed; until then, a call that waits for the transfer
// or the message does not return. Close the queues after the connections. A
// connection's completions may still be in the queues after its Close has
// returned.
type PolledQueues struct {
	// SendCQ and RecvCQ are the completion queues, which may be the same. Each
	// must have room for all requests that can be in flight on its connections:
	// the SendQueue and RecvQueue of each connection, and the requests that the
	// program posts itself.
	SendCQ, RecvCQ *ibverbs.CQ
	// SRQ, if not nil, is a shared receive queue of the program. The program
	// posts receives to it, with IDs of 1<<63 or more, and takes the messages
	// from RecvCQ. The Conn's methods that receive fail, and Config.RecvQueue
	// is ignored.
	//
	// Close waits up to a second for the device to report that the connection
	// takes no more receives; see ibverbs.QP.LastWQEReached. When Close
	// returns, the connection's last completions are in RecvCQ.
	SRQ *ibverbs.SRQ
}

func (q *PolledQueues) check(config *Config, id *ID) error {
	switch {
	case q == nil:
		return cerr.Refuse(opCreateQP, id.name(), "Config.Queues is a nil *PolledQueues")
	case q.SendCQ == nil || q.RecvCQ == nil:
		return cerr.Refuse(opCreateQP, id.name(), "PolledQueues.SendCQ or PolledQueues.RecvCQ is nil; set both, which may be the same queue")
	case q.SRQ != nil && config.MessageSize > 0:
		return cerr.Refuse(opCreateQP, id.name(), "Config.MessageSize cannot be used with PolledQueues.SRQ: the connection has no receives of its own")
	}
	return config.checkTagged(id)
}

// checkTagged checks the sizes of a connection that shares completion queues,
// whose request IDs have a tag.
func (c *Config) checkTagged(id *ID) error {
	const most = 1<<(placeBits-1) - 1
	if c.SendQueue > most || c.RecvQueue > most {
		return cerr.Refuse(opCreateQP, id.name(), "Config.SendQueue is %d and Config.RecvQueue is %d; with shared completion queues, both must be at most %d",
			c.SendQueue, c.RecvQueue, most)
	}
	return c.checkSizes(id)
}

// tags is the number of tags that were given to connections with PolledQueues
// so far.
var tags atomic.Uint64

func (q *PolledQueues) create(c *Conn) error {
	return c.createQueues(func(size queueSizes, config *ibverbs.QPConfig) error {
		o := &c.ops
		o.collector, o.base = new(collector), tagged(tags.Add(1))
		config.SendCQ, config.RecvCQ = q.SendCQ, q.RecvCQ
		if q.SRQ == nil {
			return o.useOwnReceives(size.recvSegments)
		}
		o.intake = foreignReceives{o}
		config.SRQ, config.RecvQueue, config.RecvSegments = q.SRQ, 0, 0
		return nil
	}, c.createQP)
}

// foreignReceives is the intake of a connection with PolledQueues.SRQ, where
// the program posts the receives.
type foreignReceives struct{ ops *operations }

func (o foreignReceives) places(int) int { return 0 }
func (o foreignReceives) outlives() bool { return false }
func (o foreignReceives) flushed()       {}
func (o foreignReceives) abort()         {}
func (o foreignReceives) leave() error   { return nil }

func (o foreignReceives) newReceiver(int) (*Receiver, error) { return nil, o.refused() }

func (o foreignReceives) refused() error {
	return cerr.Argument("ibv_post_recv", o.ops.queues.name(), cerr.InvalidAs(syscall.EINVAL,
		"the connection takes its receives from PolledQueues.SRQ: post receives to that queue"))
}

func (o foreignReceives) settle() {
	o.ops.queues.flush()
	awaitLastWQE(o.ops.queues.qp)
}

// Completed processes a completion that the program has polled from
// PolledQueues. It returns true if the Conn posted the request, so that the
// program must ignore the completion. It returns false if the program posted
// the request, on QP with an ID of 1<<63 or more, or as a receive in
// PolledQueues.SRQ. If such a request failed, Err returns its error from then
// on.
//
// Pass each completion whose WC.QPNum is that of QP, in the order in which they
// were polled. That includes completions of requests that the Conn posts for
// Config.KeepAlive. Completions passed after Close are ignored.
//
// Completed does not block, calls no function of the program, and allocates
// nothing unless the request failed. It may be called from anywhere, including
// the functions of Config.
//
// Poll at least once every Config.KeepAlive, or disable that check, which ends
// the connection if it does not complete in time. On connections without
// PolledQueues, Completed does nothing and returns false.
func (c *Conn) Completed(wc *ibverbs.WC) bool {
	if c.self().check() != nil || wc == nil || !c.ops.polledByUser() || wc.QPNum() != c.ops.num {
		return false
	}
	o := &c.ops
	own := wc.ID() < userRequest && o.isOwn(wc.ID())
	if !own && wc.ID() < userRequest {
		return false // the completion is of an earlier queue pair with the same number
	}
	o.note(wc)
	if own {
		o.mu.Lock()
		o.complete(wc)
		o.mu.Unlock()
	}
	return own
}
