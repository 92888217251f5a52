// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A PreparedQP, for Config.Queues, is a queue pair that the program creates and
// posts to itself, instead of using the methods of Conn. The methods that
// transfer or receive fail, and so do NewReceiver and Post. SendQueue,
// RecvQueue, Segments, MaxInline, Spin and KeepAlive of the Config are ignored,
// and MessageSize must be 0.
type PreparedQP struct {
	// Prepare creates the queue pair with ID.CreateQP on the Conn's ID,
	// with completion queues of the program. Setup is called after Prepare.
	// Close closes the queue pair. The program closes its completion queues
	// after that.
	//
	// The queue pair may be on the Conn's PD or on another protection
	// domain of the device, for example one that connections share. In the
	// second case, the Conn uses that domain and does not close it.
	//
	// Prepare runs in the goroutine of Dial or Accept, may block, and may
	// call anything. During Prepare, Conn.QP returns nil. If Conn.Close is
	// called during Prepare, Dial or Accept fails; if the queue pair exists
	// already, Close returns an *ibverbs.BusyError.
	Prepare func(*Conn) (*ibverbs.QP, error)
	// Flushed, if not nil, is called before the queue pair is destroyed. At
	// that time, the queue pair is in the error state and, as far as the
	// device reports, takes no more receives from a shared receive queue.
	// If other queue pairs share its completion queues, take its last
	// completions from these queues in Flushed; see
	// ibverbs.QP.LastWQEReached.
	//
	// Flushed runs in the goroutine of Close, or in that of a Dial or an
	// Accept that has failed. It may block and may call anything except
	// Close and Shutdown of its own connection, which wait for Flushed.
	// While Flushed runs, these return an *ibverbs.BusyError to all
	// callers.
	Flushed func()
}

func (p *PreparedQP) check(config *Config, id *ID) error {
	switch {
	case p == nil || p.Prepare == nil:
		return cerr.Refuse(opCreateQP, id.name(), "the PreparedQP or its Prepare is nil; Prepare must create the queue pair")
	case config.MessageSize > 0:
		return cerr.Refuse(opCreateQP, id.name(), "Config.MessageSize cannot be used with a PreparedQP: the connection has no receives of its own")
	}
	return nil
}

func (p *PreparedQP) create(c *Conn) error {
	c.ops.collector, c.ops.prepared, c.ops.intake = new(collector), true, &preparedReceives{&c.ops, p.Flushed}
	if err := inTurn(func() error { return c.choosePD("Config.PD") }); err != nil {
		return err
	}
	qp, err := p.Prepare(c)
	c.qp = c.id.QP() // set even after an error, for release
	if err == nil {
		err = c.Err() // Prepare may have closed c
	}
	if err == nil && (qp == nil || qp != c.qp) {
		err = cerr.Refuse(opCreateQP, c.id.name(), "PreparedQP.Prepare has not returned the queue pair of the connection's ID: create it with ID.CreateQP")
	}
	if err == nil && qp.PD() != c.pd {
		err = c.adopt(qp.PD())
	}
	if err != nil {
		return c.orGone(err)
	}
	c.ops.num = qp.Num()
	return nil
}

// adopt makes the connection use the protection domain pd, and closes the
// connection's own.
func (c *Conn) adopt(pd *ibverbs.PD) error {
	if !c.foreignPD {
		if err := c.pd.Close(); err != nil {
			return err
		}
	}
	c.pd, c.foreignPD = pd, true
	return nil
}

// preparedReceives is the intake of a connection with a PreparedQP. It has no
// receives: the program posts them on the queue pair.
type preparedReceives struct {
	ops     *operations
	onFlush func() // PreparedQP.Flushed, or nil
}

func (o *preparedReceives) places(int) int { return 0 }
func (o *preparedReceives) outlives() bool { return false }
func (o *preparedReceives) flushed()       {}
func (o *preparedReceives) abort()         {}
func (o *preparedReceives) leave() error   { return nil }

func (o *preparedReceives) newReceiver(int) (*Receiver, error) { return nil, o.refused() }

func (o *preparedReceives) refused() error {
	o.ops.mu.Lock()
	defer o.ops.mu.Unlock()
	return o.ops.over()
}

func (o *preparedReceives) settle() {
	if o.onFlush == nil {
		return
	}
	c := o.ops.queues
	c.flush()
	if c.qp.LastWQEReached() != nil {
		awaitLastWQE(c.qp)
	}
	c.flushing.Lock()
	defer c.flushing.Unlock()
	o.onFlush()
}
