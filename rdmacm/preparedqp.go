// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A PreparedQP is a queue pair that the program creates and posts to, for
// Config.Queues. Use it where the methods of Conn are not what is needed: those
// that transfer and receive fail, and so do NewReceiver and Post. SendQueue,
// RecvQueue, Segments, MaxInline, Spin and KeepAlive of the Config are ignored,
// and MessageSize must be 0.
type PreparedQP struct {
	// Prepare creates the queue pair, as ID.CreateQP does on the Conn's ID and PD,
	// with completion queues of the program's. Setup follows Prepare. Close closes
	// the queue pair, and the program then its completion queues. The queue pair
	// may be on another protection domain of the device, for example one that
	// connections share: the Conn then uses that one, and leaves it open.
	//
	// Prepare runs in the goroutine of Dial or Accept, may block, and may call
	// everything. QP returns nil meanwhile. Close makes Dial or Accept fail; it
	// returns an *ibverbs.BusyError if the queue pair is there.
	Prepare func(*Conn) (*ibverbs.QP, error)
	// Flushed, if not nil, is called before the queue pair is destroyed, when it
	// is in the error state and, as far as the device tells, takes no more
	// receives of a shared receive queue. If others share its completion queues,
	// take its last completions there; see ibverbs.QP.LastWQEReached. It runs in
	// the goroutine of Close, or of a Dial or an Accept that has failed, may block,
	// and may call everything. Close and Shutdown of its own connection, which wait
	// for Flushed, return an *ibverbs.BusyError while it runs, to all callers.
	Flushed func()
}

func (p *PreparedQP) check(config *Config, id string) error {
	switch {
	case p == nil || p.Prepare == nil:
		return cerr.Refuse(opCreateQP, id, "PreparedQP.Prepare is needed: it creates the queue pair")
	case config.MessageSize > 0:
		return cerr.Refuse(opCreateQP, id, "Config.MessageSize needs receives of the connection's own, and a PreparedQP has none")
	}
	return nil
}

func (p *PreparedQP) create(c *Conn) error {
	c.ops.collector, c.ops.prepared, c.ops.intake = new(collector), true, &preparedReceives{&c.ops, p.Flushed}
	if err := inTurn(func() error { return c.choosePD("Config.PD") }); err != nil {
		return err
	}
	qp, err := p.Prepare(c)
	c.qp = c.id.QP() // also after an error, for release
	if err == nil {
		err = c.Err() // Prepare may have closed it
	}
	if err == nil && (qp == nil || qp != c.qp) {
		err = cerr.Refuse(opCreateQP, c.id.name(), "PreparedQP.Prepare has not returned a queue pair of the connection's ID: create it with ID.CreateQP")
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

// adopt makes the connection use another protection domain, and closes its own.
func (c *Conn) adopt(pd *ibverbs.PD) error {
	if !c.foreignPD {
		if err := c.pd.Close(); err != nil {
			return err
		}
	}
	c.pd, c.foreignPD = pd, true
	return nil
}

// preparedReceives are none: the program posts on the queue pair.
type preparedReceives struct {
	*operations
	onFlush func() // PreparedQP.Flushed, or nil
}

func (o *preparedReceives) places(int) int { return 0 }
func (o *preparedReceives) outlives() bool { return false }
func (o *preparedReceives) flushed()       {}
func (o *preparedReceives) abort()         {}
func (o *preparedReceives) leave() error   { return nil }

func (o *preparedReceives) newReceiver(int) (*Receiver, error) { return nil, o.refused() }

func (o *preparedReceives) refused() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over()
}

func (o *preparedReceives) settle() {
	if o.onFlush == nil {
		return
	}
	c := o.queues
	c.flush()
	if c.qp.LastWQEReached() != nil {
		awaitLastWQE(c.qp)
	}
	c.flushing.Store(true)
	defer c.flushing.Store(false)
	o.onFlush()
}
