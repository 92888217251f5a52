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
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/turns"
)

// queues is the common part of Conn and DatagramConn: an ID with a queue pair,
// memory, and the work requests in flight.
type queues struct {
	kind       string // what the object is called in errors, such as "connection"
	dispatcher *dispatcher
	id         *ID
	pd         *ibverbs.PD
	foreignPD  bool // whether pd belongs to the program
	channel    *ibverbs.CompChannel
	cq         *ibverbs.CQ // own completion queue, or nil
	qp         *ibverbs.QP
	ops        operations

	answers               // events that answer calls on the ID
	done    chan struct{} // closed when the connection ends
	closer  owned.Closer
	leave   owned.Closer
	linger  time.Duration // maximum time for which the system resends the notice of the end after release
	untold  error         // reason why the peer could not be told about the end, or nil
	notice  endNotice

	made     chan struct{} // closed when the queue pair has been created, or creating it has failed
	onEnd    func(error)   // Config.Ended, or nil
	onLog    func(error)   // writes the log record of the end; may be nil
	flushing sync.RWMutex  // held for writing while PreparedQP.Flushed runs
	patience *time.Timer   // calls ops.abandon; nil until the queue pair is flushed; guarded by ops.mu

	notifying  atomic.Bool                     // whether checkHandshake's call of Notify is running, or about to
	flushed    atomic.Pointer[ibverbs.WCError] // completion of the first flushed request of a connection, or nil
	wasFlushed bool                            // whether flushed was already set at the last call of checkQP

	ended atomic.Bool // whether cause is set
	mu    sync.Mutex  // guards the fields below
	cause error       // reason why the connection ended, or nil
	with  string      // " with " and the peer's address, for errors; empty before the connection is established

	memory  sync.Mutex    // guards the fields below
	regions owned.Regions // regions from Alloc
	closed  bool          // whether Alloc fails from now on
}

// queueSizes are the sizes that a config asks for.
type queueSizes struct {
	config                     string // name of the config's type
	send, recv                 int    // maximum numbers of requests
	sendSegments, recvSegments int    // maximum numbers of segments in a request
	inline                     int    // maximum number of inline bytes
	spin                       time.Duration
}

// check rejects sizes that no queue pair can have.
func (s queueSizes) check(id *ID) error {
	for _, f := range []struct {
		name string
		n    int
	}{{"SendQueue", s.send}, {"RecvQueue", s.recv}, {"Segments", s.sendSegments}, {"MaxInline", s.inline}} {
		if f.n < 0 || f.n > math.MaxInt32 {
			return cerr.Refuse(opCreateQP, id.name(), "%s.%s is %d, not from 0 to %d", s.config, f.name, f.n, math.MaxInt32)
		}
	}
	return nil
}

// notMade returns the error for an object that is nil or was not created by
// this package.
func notMade(what string) error {
	return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the %s is nil, or was not made by this package", what))
}

// init takes over the dispatcher and the ID, which must have a device. kind is
// what the object is called in errors. pd may be nil. failed is called for
// failed requests.
func (c *queues) init(kind string, d *dispatcher, id *ID, pd *ibverbs.PD, failed func(*ibverbs.WCError, error)) {
	c.kind, c.dispatcher, c.id, c.pd, c.foreignPD = kind, d, id, pd, pd != nil
	c.ops.queues, c.ops.failed = c, failed
	c.done, c.made = make(chan struct{}), make(chan struct{})
	c.answers = newAnswers()
	c.over, c.why = c.done, c.Err
	// A caller that makes room for another request must still wait if the peer
	// has completed the handshake.
	c.stays = func(ctx context.Context) bool { return c.id.Request() != nil && isShed(ctx) && c.isComplete() }
	c.notice = endNotice{dispatcher: d, id: id, over: make(chan struct{})}
}

// supply adds completion queues, and a shared receive queue if there is one, to
// the config of a queue pair. It chooses the operations' collector and intake.
type supply func(size queueSizes, config *ibverbs.QPConfig) error

// allocate creates everything but the queue pair and returns the queue pair's
// config.
func (c *queues) allocate(size queueSizes, supply supply) (config ibverbs.QPConfig, err error) {
	if err := size.check(c.id); err != nil {
		return config, err
	}
	if err := c.choosePD(size.config + ".PD"); err != nil {
		return config, err
	}
	config = ibverbs.QPConfig{
		SendQueue: size.send, RecvQueue: size.recv,
		SendSegments: size.sendSegments, RecvSegments: size.recvSegments, MaxInline: size.inline,
	}
	if err := supply(size, &config); err != nil {
		return config, err
	}
	return config, c.ops.init(size)
}

// supplyOwn creates a completion queue for the connection alone.
func (c *queues) supplyOwn(size queueSizes, config *ibverbs.QPConfig) (err error) {
	o, device := &c.ops, c.pd.Device()
	if c.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	c.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: size.send + size.recv, Channel: c.channel, Spin: size.spin})
	if err != nil {
		return err
	}
	config.SendCQ, config.RecvCQ = c.cq, c.cq
	o.collector = newCollector(c.cq, o.handOut)
	sealed.Open(c.cq.Internals()).OnPark(o.beforePark, o.afterPark)
	return o.useOwnReceives(size.recvSegments)
}

// choosePD allocates a protection domain unless the config has one. field is
// the config's field in errors.
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
		return cerr.Refuse(opCreateQP, c.id.name(), "%s is not of the %s's device: allocate it on the device from rdmacm.Devices or Listener.Device",
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

// name returns the connection's name in errors. The caller must not hold c.mu.
func (c *queues) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind + c.with
}

// errClosed returns the error with which Close ends the connection.
func (c *queues) errClosed() error { return fmt.Errorf("%s: %w", c.name(), os.ErrClosed) }

// naming adds the name of the connection to err, if the connection was
// established. The caller must hold c.mu.
func (c *queues) naming(err error) error {
	if c.with == "" || errors.Is(err, os.ErrClosed) {
		return err
	}
	return fmt.Errorf("%s%s: %w", c.kind, c.with, err)
}

// shed tells the peer that the listener has no room for its request. It returns
// false if the peer has completed the handshake, so that its program considers
// the connection up. On a device of the kernel, shed does nothing after
// rdma_accept(3), and returns true: after a rejection, the kernel would still
// repeat the acceptance for a minute, and rdma_destroy_id(3) would wait for
// that. Instead, destroying the ID tells the peer at once, but without
// fullMark, and even if the peer has completed the handshake.
func (c *queues) shed() bool {
	if c.isAsking() && !cerr.IsInProgram() {
		return true
	}
	return c.id.Reject(fullMark) == nil
}

// isComplete reports whether the peer has completed the handshake, as far as
// the device tells. If not, the peer may have been told that the listener has
// no room. A device of the kernel tells it with an event, which on a busy
// machine may wait for a long time to be read.
func (c *queues) isComplete() bool {
	if cerr.IsInProgram() {
		return !c.shed()
	}
	c.dispatcher.catchUp(c.done)
	return !c.isAsking()
}

// end records the cause of the connection's end. It returns false if there
// already is one. The caller may hold locks, and may be the poller or a
// dispatcher's goroutine. A function of the program could wait for any of
// these, so it runs in another goroutine.
func (c *queues) end(cause error) bool {
	if !c.record(cause) {
		return false
	}
	if c.onEnd != nil {
		go func() {
			<-c.made // the function may use the queue pair
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

// flush moves the queue pair into the error state, which completes all posted
// requests. Call it after end. The queue pair may already be in that state, but
// a device such as Soft-RoCE does not complete receives posted in the error
// state until the queue pair is moved into it again.
func (c *queues) flush() {
	defer turns.Begin()()
	c.ops.mu.Lock() // a concurrent post either comes before this, or fails since the connection has ended
	defer c.ops.mu.Unlock()
	flushes := c.qp.SetError() == nil
	if !flushes { // the device may be gone, or not do it twice
		state, err := c.qp.State()
		flushes = err == nil && state == ibverbs.QPStateError
	}
	if c.ops.intake != nil {
		c.ops.intake.flushed()
	}
	if flushes && c.patience == nil && c.ops.collector != nil && c.ops.cq != nil {
		c.patience = time.AfterFunc(settlePatience, c.ops.abandon)
	}
}

// checkQP ends the connection if the queue pair has failed. A flushed request
// shows that it has failed. In that case, checkQP ends the connection only at
// its next call, because an event may report the cause before that.
func (c *queues) checkQP() {
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

// checkHandshake completes the handshake of an accepting end if the peer has
// sent something or acknowledged a request. The message with which the peer
// completes it may be lost, and the kernel repeats the acceptance, which the
// peer then confirms again, only after four seconds.
func (c *queues) checkHandshake() {
	if !c.ops.heard.Load() || c.id.Request() == nil || !c.isAsking() {
		return
	}
	if c.notifying.Swap(true) {
		return
	}
	// In the background, since the kernel may take long. Notify fails if the
	// handshake has just been completed, or if rdma_accept has not begun.
	background.add(func() {
		defer c.notifying.Store(false)
		_ = c.id.Notify(ibverbs.EventCommEstablished)
	})
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

// QP returns the queue pair, for work requests that have no method here. The
// IDs of these work requests must be 1<<63 or more. The program does not get
// their completions. If one of them fails, Err returns the error. They must
// leave room in the queues for other work requests; a Conn also posts some for
// Config.KeepAlive.
func (c *queues) QP() *ibverbs.QP { return c.qp }

// ID returns the underlying ID.
func (c *queues) ID() *ID { return c.id }

// Done returns a channel that is closed when Err starts to return an error.
func (c *queues) Done() <-chan struct{} { return c.done }

// maxAlloc limits the size of an allocation. It is larger than any machine's
// memory, and smaller than the sizes with which Go's allocation panics.
const maxAlloc = 1 << 46

// canHave returns an error if the system does not have size bytes of memory, or
// no address space for them. Without that check, an allocation that fails would
// end the program.
func canHave(size int) error {
	const sure = 64 << 20
	if size < sure {
		return nil
	}
	// A system that overcommits without a limit maps more than it has.
	if uint64(size) > mem.Total() {
		return syscall.ENOMEM
	}
	b, err := mem.Map(size)
	if err != nil {
		return err
	}
	return mem.Unmap(b)
}

// alloc registers size bytes of memory from allocate. Close closes the region.
func (c *queues) alloc(size int, access ibverbs.AccessFlags, allocate func(size int) []byte) (*ibverbs.MR, error) {
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
	mr, err := c.pd.Register(allocate(size), access)
	if err != nil {
		return nil, err
	}
	c.regions.Add(mr)
	return mr, nil
}

// release closes everything in the order that C requires. After it has closed
// the queues, it calls the functions others, which close the other users of the
// protection domain. After an error, release can be called again.
func (c *queues) release(others ...func() error) error {
	if !c.flushing.TryRLock() {
		return cerr.Busy(c.name(), []string{"PreparedQP.Flushed, which is still running"})
	}
	c.flushing.RUnlock()
	return c.closer.Do(func() error {
		if c.qp != nil {
			c.ops.intake.settle()
		}
		defer turns.Begin()()
		if err := c.closeQueues(); err != nil {
			return err
		}
		for _, other := range others {
			if err := other(); err != nil {
				return err
			}
		}
		if err := c.closeRegions(); err != nil {
			return err
		}
		if err := c.leaveIntake(); err != nil {
			return err
		}
		if err := c.leave.Do(c.leaveID); err != nil {
			return err
		}
		if c.pd != nil && !c.foreignPD {
			return c.pd.Close()
		}
		return nil
	})
}

// closeQueues closes the queue pair, and then what it uses.
func (c *queues) closeQueues() error {
	if c.qp != nil {
		if err := c.qp.Close(); err != nil {
			return err
		}
	}
	if c.cq != nil {
		if err := c.cq.Close(); err != nil {
			return err
		}
	}
	if c.ops.collector != nil {
		if err := c.abortOperations(); err != nil {
			return err
		}
	}
	if c.channel != nil {
		return c.channel.Close()
	}
	return nil
}

// leaveID closes the ID at once if c.linger is 0. Otherwise it does not block:
// the ID is closed when the peer has acknowledged the end of the connection, or
// after c.linger.
func (c *queues) leaveID() error {
	if c.linger > 0 {
		return c.notice.start(c.linger)
	}
	if err := c.id.Close(); err != nil {
		return err
	}
	c.notice.end(c.untold)
	c.dispatcher.forget(c.id)
	return c.dispatcher.release()
}

func (c *queues) closeRegions() error {
	c.memory.Lock()
	defer c.memory.Unlock()
	c.closed = true
	return c.regions.Close()
}

// leaveIntake gives back the connection's share of shared queues, if it has
// any.
func (c *queues) leaveIntake() error {
	if c.ops.intake == nil {
		return nil
	}
	return c.ops.intake.leave()
}

func (c *queues) abortOperations() error {
	watched.remove(&c.ops)
	c.ops.mu.Lock()
	if c.patience != nil {
		c.patience.Stop()
	}
	c.ops.mu.Unlock()
	c.ops.abort(c.errClosed())
	return nil
}
