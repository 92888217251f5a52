// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/owned"
	"github.com/verbena-go/verbena/internal/turns"
)

// queues is the common part of Conn and DatagramConn: an ID with a queue pair,
// memory, and the work requests in flight.
type queues struct {
	kind       string // in errors, "connection"
	dispatcher *dispatcher
	id         *ID
	pd         *ibverbs.PD
	foreignPD  bool // pd is the user's
	channel    *ibverbs.CompChannel
	cq         *ibverbs.CQ  // its own, or nil
	srq        *ibverbs.SRQ // of a pool or of the user, or nil
	leavePool  func()       // from forcePool, or nil
	qp         *ibverbs.QP
	ops        operations

	answers chan *Event   // receives the event that answers ask
	within  time.Duration // maximum time for an answer; no limit if not positive
	done    chan struct{} // closed when the connection ends
	closer  owned.Closer
	leave   owned.Closer
	linger  time.Duration // how long the peer is told of the end after release
	untold  error         // why the peer could not be told of the end
	parting parting

	made     chan struct{} // closed when the queue pair is made, or cannot be
	onEnd    func(error)   // Config.Ended, or nil
	onLog    func(error)   // writes the record of the end, or nil
	onFlush  func()        // Config.Flushed, or nil
	flushing atomic.Bool   // onFlush runs

	flushed    atomic.Pointer[ibverbs.WCError] // first flushed request of a connection
	wasFlushed bool                            // flushed was set at the last look

	ended atomic.Bool // cause is set
	mu    sync.Mutex  // guards the fields below
	asks  bool        // an answer is expected
	cause error       // why the connection ended
	with  string      // the peer of a connection that was established, for errors

	memory  sync.Mutex    // guards the fields below
	regions owned.Regions // from Alloc
	closed  bool          // no more regions
}

// queueSizes are the sizes that a config asks for.
type queueSizes struct {
	config                     string // name of the config's type
	send, recv                 int    // numbers of requests
	sendSegments, recvSegments int    // maximum per request
	inline                     int    // bytes
	spin                       time.Duration
	shared                     sharedQueues
}

// sharedQueues are what a connection shares with others.
type sharedQueues struct {
	pool           *Pool       // nil if there is none
	sendCQ, recvCQ *ibverbs.CQ // of the user, or nil
	srq            *ibverbs.SRQ
}

// check rejects sizes that no queue pair can have.
func (s queueSizes) check(id string) error {
	for _, f := range []struct {
		name string
		n    int
	}{{"SendQueue", s.send}, {"RecvQueue", s.recv}, {"Segments", s.sendSegments}, {"MaxInline", s.inline}} {
		if f.n < 0 || f.n > math.MaxInt32 {
			return cerr.Refuse(opCreateQP, id, "%s.%s is %d, not from 0 to %d", s.config, f.name, f.n, math.MaxInt32)
		}
	}
	return nil
}

// notMade returns the error for an object that is nil or was not created by
// this package.
func notMade(what string) error {
	return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the %s is nil, or was not made by this package", what))
}

// init takes over the dispatcher and the ID, which must have a device. pd may
// be nil. failed is called for failed requests.
func (c *queues) init(kind string, d *dispatcher, id *ID, pd *ibverbs.PD, failed func(*ibverbs.WCError, error)) {
	c.kind, c.dispatcher, c.id, c.pd, c.foreignPD = kind, d, id, pd, pd != nil
	c.ops.failed = failed
	c.answers, c.done, c.made = make(chan *Event, 1), make(chan struct{}), make(chan struct{})
	c.parting = parting{dispatcher: d, id: id, over: make(chan struct{})}
}

// allocate creates everything but the queue pair and returns the queue pair's
// config.
func (c *queues) allocate(size queueSizes) (config ibverbs.QPConfig, err error) {
	if err := size.check(c.id.name()); err != nil {
		return config, err
	}
	if err := c.choosePD(size.domain()); err != nil {
		return config, err
	}
	config = ibverbs.QPConfig{
		MaxSendWR: size.send, MaxRecvWR: size.recv,
		MaxSendSGE: size.sendSegments, MaxRecvSGE: size.recvSegments, MaxInline: size.inline,
	}
	if err := c.allocateQueues(c.pd.Device(), size, &config); err != nil {
		return config, err
	}
	return config, c.ops.init(size)
}

// domain names the field of the config that the protection domain comes from.
func (s queueSizes) domain() string {
	if s.shared.pool != nil {
		return s.config + ".Pool"
	}
	return s.config + ".PD"
}

// allocateQueues creates completion queues, or takes those that are shared.
func (c *queues) allocateQueues(device *ibverbs.Device, size queueSizes, config *ibverbs.QPConfig) (err error) {
	o, s := &c.ops, size.shared
	o.queues = c // before others of the pool see it
	switch {
	case s.pool != nil:
		if err := s.pool.join(o, size.send+1); err != nil {
			return err
		}
		o.pool, o.collector, c.srq = s.pool, s.pool.collector, s.pool.srq
		config.SendCQ, config.RecvCQ = s.pool.cq, s.pool.cq
		config.MaxSendWR++ // for the marker
	case s.sendCQ != nil:
		o.collector, o.base, c.srq = new(collector), tagged(tags.Add(1)), s.srq
		config.SendCQ, config.RecvCQ = s.sendCQ, s.recvCQ
	default:
		if c.channel, err = device.CreateCompChannel(); err != nil {
			return err
		}
		c.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: size.send + size.recv, Channel: c.channel, Spin: size.spin})
		if err != nil {
			return err
		}
		o.collector = newCollector(c.cq, o.handOut)
		config.SendCQ, config.RecvCQ = c.cq, c.cq
	}
	if config.SRQ = c.srq; c.srq != nil {
		config.MaxRecvWR, config.MaxRecvSGE = 0, 0
	}
	return nil
}

// choosePD allocates a protection domain unless there is one, which comes from the field of the config.
func (c *queues) choosePD(field string) error {
	device, err := c.id.Device()
	if err != nil {
		return err
	}
	if c.pd == nil {
		c.pd, err = device.AllocPD()
		return err
	}
	if c.pd.Device() != device {
		return cerr.Refuse(opCreateQP, c.id.name(), "%s is not of the %s's device: make it on the device from rdmacm.Devices or Listener.Device",
			field, c.name())
	}
	return nil
}

// check returns an error if the queues were not created by this package.
func (c *queues) check() error {
	if c == nil || c.done == nil {
		return notMade("connection")
	}
	return nil
}

// name returns what errors call the connection. The caller does not hold c.mu.
func (c *queues) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind + c.with
}

// errClosed returns the cause of an end by Close.
func (c *queues) errClosed() error { return fmt.Errorf("%s: %w", c.name(), os.ErrClosed) }

// naming returns the error with the name of the connection, if that was established. The caller holds c.mu.
func (c *queues) naming(err error) error {
	if c.with == "" || errors.Is(err, os.ErrClosed) {
		return err
	}
	return fmt.Errorf("%s%s: %w", c.kind, c.with, err)
}

// isAnswer reports whether ask expects an event. If so, the current event is
// the answer, and ask expects no other.
func (c *queues) isAnswer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	asks := c.asks
	c.asks = false
	return asks
}

// isAsking reports whether ask expects an event.
func (c *queues) isAsking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asks
}

// ask calls start and waits for the event that answers it. It returns an event
// that reports a failure as an error.
func (c *queues) ask(ctx context.Context, start func() error) (*Event, error) {
	c.mu.Lock()
	c.asks = true
	c.mu.Unlock()
	if err := start(); err != nil {
		c.isAnswer() // no answer will arrive
		return nil, err
	}
	var late <-chan time.Time
	if c.within > 0 {
		timer := time.NewTimer(c.within)
		defer timer.Stop()
		late = timer.C
	}
	ended := ctx.Done()
	for {
		select {
		case ev := <-c.answers:
			return ev, ev.Err()
		case <-c.done:
			select {
			case ev := <-c.answers: // the answer arrived just before the end
				return ev, ev.Err()
			default:
				return nil, c.Err()
			}
		case <-ended:
			if !isShed(ctx) || c.shed() {
				return nil, contextError(ctx)
			}
			ended = nil // the peer has answered before
		case <-late:
			return nil, fmt.Errorf("the peer has not answered within %v, which is Config.HandshakeTimeout: %w", c.within, syscall.ETIMEDOUT)
		}
	}
}

// shed tells the peer that its request has no room. It returns false if the peer
// has completed the handshake: its program takes the connection to be up.
//
// A kernel that rejects after rdma_accept(3) goes on repeating the acceptance
// for a minute, and rdma_destroy_id(3) waits for that. There, destroying the ID
// tells the peer, at once, but without the mark, and whatever the peer has done.
func (c *queues) shed() bool {
	if c.isAsking() && !cerr.IsInProgram() {
		return true
	}
	return c.id.Reject(fullMark) == nil
}

// end records the cause of the end. It returns false if there already is one.
// The caller may hold locks, lead, or be a dispatcher, for all of which the
// program's functions could wait. So they run in other goroutines.
func (c *queues) end(cause error) bool {
	if !c.record(cause) {
		return false
	}
	if c.onEnd != nil {
		go func() {
			<-c.made // the function may use what is being made
			c.onEnd(cause)
		}()
	}
	if c.onLog != nil {
		c.onLog(cause)
	}
	return true
}

func (c *queues) record(cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
	}
	c.cause = c.naming(cause)
	c.ended.Store(true)
	close(c.done)
	return true
}

// fail ends the connection and flushes the queue pair.
func (c *queues) fail(cause error) {
	if c.end(cause) {
		background.add(c.flush)
	}
}

// flush completes everything posted. Call it after end. The queue pair may
// already be in the error state, but a device such as Soft-RoCE ignores
// receives posted in that state until the queue pair is moved into it again.
func (c *queues) flush() {
	defer turns.Begin()()
	c.ops.mu.Lock() // any post either precedes this or sees the end
	defer c.ops.mu.Unlock()
	_ = c.qp.SetError() // the device may be gone
	if c.ops.pool != nil {
		c.startDrain()
	}
}

// look ends the connection if the queue pair has failed. A flushed request is a
// sign of that if no event has given a cause since the previous look.
func (c *queues) look() {
	if event, failed := c.qp.Failure(); failed {
		c.fail(&QPError{Num: c.qp.Num(), Event: event})
		return
	}
	flushed := c.flushed.Load()
	if flushed == nil || c.isAsking() {
		return
	}
	if c.wasFlushed {
		c.fail(fmt.Errorf("the queue pair has failed: %w", flushed))
	}
	c.wasFlushed = true
}

// Err returns why the connection ended, or nil while it is up.
func (c *queues) Err() error {
	if err := c.check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// isUp reports whether Err returns nil.
func (c *queues) isUp() bool { return !c.ended.Load() }

// PD returns the protection domain. Register memory with it.
func (c *queues) PD() *ibverbs.PD { return c.pd }

// QP returns the queue pair, for work requests that have no method here. The IDs
// of these work requests must be 1<<63 or more. Their completions are not
// delivered, but a failed one sets Err. They must leave room in the queues for
// other work requests; a Conn posts some of its own, see Config.KeepAlive.
func (c *queues) QP() *ibverbs.QP { return c.qp }

// ID returns the underlying ID.
func (c *queues) ID() *ID { return c.id }

// Done returns a channel that is closed when Err starts to return an error.
func (c *queues) Done() <-chan struct{} { return c.done }

// maxAlloc is more than any machine has, and less than what makes Go panic.
const maxAlloc = 1 << 46

// canHave returns an error if the system has no address space for so many bytes,
// for want of which Go ends the program.
func canHave(size int) error {
	const sure = 64 << 20
	if size < sure {
		return nil
	}
	b, err := mem.Map(size)
	if err != nil {
		return err
	}
	return mem.Unmap(b)
}

// alloc allocates and registers memory until Close.
func (c *queues) alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.memory.Lock() // held to the end, so that Close finds every region
	defer c.memory.Unlock()
	if c.closed {
		return nil, c.errClosed()
	}
	if size <= 0 {
		return nil, cerr.Refuse("Alloc", c.name(), "size is %d, less than 1", size)
	}
	if int64(size) > maxAlloc {
		return nil, cerr.Refuse("Alloc", c.name(), "size is %d, more than %d", size, int64(maxAlloc))
	}
	if err := canHave(size); err != nil {
		return nil, fmt.Errorf("%s: allocate %d bytes: %w", c.name(), size, err)
	}
	mr, err := c.pd.Register(mem.Pages(size), access)
	if err != nil {
		return nil, err
	}
	c.regions.Add(mr)
	return mr, nil
}

// release closes everything in the order that C requires. It calls others,
// which close what else uses the protection domain, after closing the queues.
// After an error, it can be called again.
func (c *queues) release(others ...func() error) error {
	if c.flushing.Load() {
		return cerr.Busy(c.name(), []string{"Config.Flushed, which is running and is waited for"})
	}
	return c.closer.Do(func() error {
		if c.qp != nil {
			if err := c.settle(); err != nil {
				return err
			}
		}
		defer turns.Begin()()
		var steps []func() error
		if c.qp != nil {
			steps = append(steps, c.qp.Close)
		}
		if c.cq != nil {
			steps = append(steps, c.cq.Close)
		}
		if c.ops.collector != nil {
			steps = append(steps, c.abortOperations)
		}
		if c.channel != nil {
			steps = append(steps, c.channel.Close)
		}
		steps = append(steps, others...)
		steps = append(steps, c.closeRegions, c.leaveThePool, func() error { return c.leave.Do(c.leaveID) })
		if c.pd != nil && !c.foreignPD {
			steps = append(steps, c.pd.Close)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// leaveID closes the ID, at once or after the peer has been told.
func (c *queues) leaveID() error {
	if c.linger > 0 {
		return c.parting.start(c.linger)
	}
	if err := c.id.Close(); err != nil {
		return err
	}
	c.parting.end(c.untold)
	c.dispatcher.forget(c.id)
	return c.dispatcher.release()
}

func (c *queues) closeRegions() error {
	c.memory.Lock()
	defer c.memory.Unlock()
	c.closed = true
	return c.regions.Close()
}

// leaveThePool makes room in the pool for another connection.
func (c *queues) leaveThePool() error {
	if p := c.ops.pool; p != nil {
		p.leave(&c.ops, c.ops.sends.size+1, c.ops.sending())
	}
	if c.leavePool != nil {
		c.leavePool()
		c.leavePool = nil
	}
	return nil
}

func (c *queues) abortOperations() error {
	watched.remove(&c.ops)
	c.ops.abort(c.errClosed())
	if p := c.ops.pool; p != nil {
		p.cq.Wake() // in case that who leads has waited for this connection
	}
	return nil
}
