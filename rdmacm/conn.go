// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/turns"
)

// A Conn is a reliable connection. Its methods may be called concurrently.
//
// Send delivers a message into a receive that the peer has posted. Read and
// Write access the peer's memory without involving its program. Every transfer
// method blocks until the transfer completes. If its context ends first, it
// returns a *PendingError: the transfer continues, its memory must be left
// alone, and the caller can wait for it again.
type Conn struct {
	queues
	config      Config
	receiver    *Receiver      // nil without Config.MessageSize
	receiving   atomic.Bool    // whether a call of Receive is running
	byVerbs     bool           // whether the queue pair was created without librdmacm, as VerbsQP asks
	movesQP     bool           // whether the Conn changes the queue pair's state, not librdmacm and the kernel
	privateData []byte         // private data to send; guarded by mu, because Setup may have shared the connection
	peerData    []byte         // private data of the peer's acceptance; guarded by mu
	local, peer netip.AddrPort // addresses of the two ends; guarded by mu
	noReads     atomic.Bool    // whether one end allows no reads or atomics
	ending      sync.Once      // guards the part of Close that tells the peer of the end
	keepAlive   keepAlive
	log         connLog
}

// newConn creates a connection that uses an ID that has a device. newConn takes
// over the dispatcher and the ID, even if it fails.
func newConn(d *dispatcher, id *ID, config Config) (*Conn, error) {
	c := &Conn{config: config, privateData: config.PrivateData}
	c.init("connection", d, id, config.PD, c.failed)
	c.onEnd = config.Ended
	if config.Logger != nil {
		c.onLog = c.logEnd
	}
	c.within = config.HandshakeTimeout
	err := c.create()
	close(c.made)
	if err == nil && config.MessageSize > 0 {
		c.receiver, err = c.NewReceiver(config.MessageSize)
	}
	if err == nil && config.Setup != nil {
		err = c.setup()
	}
	if err != nil {
		c.end(c.errClosed()) // Setup may have given c to other goroutines
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// setup calls Config.Setup.
func (c *Conn) setup() error {
	err := c.config.Setup(c)
	if err == nil {
		err = c.orGone(c.Err()) // Setup may have closed c
	}
	if err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	return nil
}

func (c *Conn) create() (err error) {
	if err := c.config.check(c.id); err != nil {
		return err
	}
	if err := c.config.queues().create(c); err != nil {
		return err
	}
	// While changing the state, librdmacm would set the minimal RNR timer to 655
	// ms and block the channel's other events.
	c.movesQP = c.byVerbs || c.pd.Device().Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IB
	// Events of the ID were not handled until here. A later C call would
	// have failed because of them. Both calls come before Setup, because
	// Setup may close the connection, which undoes them.
	c.dispatcher.handle(c.id, c.handle)
	watched.add(&c.ops)
	return nil
}

// createQueues creates the connection's queue pair with create. Before that,
// supply adds the completion queues and the shared receive queue, if any, to
// the queue pair's config.
func (c *Conn) createQueues(supply supply, create func(config ibverbs.QPConfig) error) error {
	var config ibverbs.QPConfig
	err := inTurn(func() (err error) {
		config, err = c.allocate(c.config.sizes(), supply)
		return err
	})
	if err != nil {
		return err
	}
	if err := inTurn(func() error { return create(config) }); err != nil {
		return c.orGone(err)
	}
	c.ops.num = c.qp.Num()
	return nil
}

// createQP creates the queue pair with librdmacm.
func (c *Conn) createQP(config ibverbs.QPConfig) (err error) {
	c.qp, err = c.id.CreateQP(c.pd, config)
	return err
}

// ownQueues gives the connection its own completion queue and receives.
type ownQueues struct{}

func (ownQueues) check(config *Config, id *ID) error { return config.checkSizes(id) }
func (ownQueues) create(c *Conn) error               { return c.createQueues(c.supplyOwn, c.createQP) }

// statesToRTS are the states through which a queue pair goes to become ready to
// send (RTS). They begin with Init, although the queue pair is already in that
// state: its access flags depend on whether the peer may read, which is known
// only after the handshake.
var statesToRTS = []ibverbs.QPState{ibverbs.QPStateInit, ibverbs.QPStateRTR, ibverbs.QPStateRTS}

// moveQP moves the queue pair through the states. If p is not nil, it supplies
// the read and atomic limits, which the kernel does not know yet.
func (c *Conn) moveQP(p *ConnParam, states ...ibverbs.QPState) error {
	for _, state := range states {
		attr, mask, err := c.id.InitQPAttr(state)
		if err != nil {
			return err
		}
		// Modify ignores these two unless mask includes them.
		attr.MinRNRTimer, attr.RetryCount = c.config.MinRNRTimer, min(attr.RetryCount, c.config.RetryCount)
		if p != nil {
			attr.MaxDestReadAtomic, attr.MaxReadAtomic = max(p.ResponderResources, 0), max(p.InitiatorDepth, 0)
		}
		if err := c.qp.Modify(attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// param returns the connection parameters to send to the peer. They are limited
// by the device and, if request is not nil, by the peer's request.
func (c *Conn) param(request *Event) (ConnParam, error) {
	attr, err := c.pd.Device().QueryDevice()
	if err != nil {
		return ConnParam{}, err
	}
	c.mu.Lock()
	privateData := c.privateData
	c.mu.Unlock()
	p := ConnParam{
		PrivateData:        privateData,
		ResponderResources: min(c.config.ReadDepth, attr.MaxQPReadAtomic),
		InitiatorDepth:     min(c.config.ReadDepth, attr.MaxQPInitReadAtomic),
		RetryCount:         c.config.RetryCount,
		PeerRNRRetryCount:  c.config.PeerRNRRetryCount,
	}
	if request != nil {
		p.ResponderResources = min(p.ResponderResources, request.ResponderResources)
		p.InitiatorDepth = min(p.InitiatorDepth, request.InitiatorDepth)
	}
	for _, count := range []*int{&p.ResponderResources, &p.InitiatorDepth, &p.RetryCount, &p.PeerRNRRetryCount} {
		if *count == 0 { // 0 would select the default in Connect and Accept
			*count = none
		}
	}
	if c.movesQP {
		p.QPNum = c.qp.Num()
	}
	c.noReads.Store(p.InitiatorDepth == none)
	return p, nil
}

// failed ends the connection with the first failed work request as the cause. A
// flushed request is not the cause: an event that is about to be read reports
// the cause, or checkQP finds it later.
func (c *Conn) failed(wc *ibverbs.WCError, err error) {
	if wc.Status == ibverbs.WCFlushed {
		c.flushed.CompareAndSwap(nil, wc)
		return
	}
	c.fail(err)
}

// handle handles the ID's events.
func (c *Conn) handle(ev *Event) {
	switch ev.Type {
	case EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventConnectError:
		if c.offer(ev) {
			return
		}
	}
	switch ev.Type {
	// If the peer gives up while it waits for the last message of the handshake,
	// it rejects a connection that is already up at this end.
	case EventDisconnected, EventDeviceRemoval, EventConnectError, EventRejected:
		c.end(ev.Err())
		background.add(c.hangUp)
	}
}

// hangUp disconnects, which starts or answers the end of the connection, and
// flushes the queue pair.
func (c *Conn) hangUp() {
	_ = c.disconnect()
	c.flush()
}

// disconnect ends the connection and moves the queue pair into the error state.
func (c *Conn) disconnect() error {
	if c.byVerbs && c.qp != nil {
		_ = c.qp.SetError()
	}
	return c.id.Disconnect()
}

// handshake calls begin, waits for the event that ends the handshake, and
// processes it.
func (c *Conn) handshake(ctx context.Context, begin func() error) error {
	ev, err := c.ask(ctx, begin)
	if err != nil {
		return err
	}
	local, peer := c.id.LocalAddr(), c.id.RemoteAddr()
	c.mu.Lock()
	c.peerData, c.local, c.peer = ev.PrivateData, local, peer
	if peer.IsValid() {
		c.with = " with " + peer.String()
	}
	c.mu.Unlock()
	// On iWARP, the dialer's answer is an EventEstablished.
	answered := ev.Type == EventConnectResponse || ev.Type == EventEstablished && c.id.Request() == nil
	if answered && ev.InitiatorDepth == 0 {
		c.noReads.Store(true)
	}
	if ev.Type == EventConnectResponse {
		if err := c.establish(); err != nil { // not by inTurn, since the peer's handshake waits for this
			return err
		}
		c.id.note(EventEstablished) // at this end, the kernel reports no EventEstablished
	}
	c.startKeepAlive()
	return nil
}

// establish makes the queue pair ready to send, and tells the peer that the
// connection is established.
func (c *Conn) establish() error {
	if err := c.agreeECE(); err != nil {
		return err
	}
	if err := c.moveQP(nil, statesToRTS...); err != nil {
		return err
	}
	return c.id.Establish()
}

// orGone returns an error matching backlog.ErrGone if the peer gave up during
// the handshake, and err otherwise. After the peer has given up, every C call
// of the handshake fails with EINVAL. A call with wrong parameters fails with
// EINVAL, too, but InitQPAttr fails only if the peer has given up.
func (c *Conn) orGone(err error) error {
	if _, ok := errors.AsType[*RejectedError](err); ok && c.id.Request() != nil {
		return fmt.Errorf("%w: %w", backlog.ErrGone, err)
	}
	failed, ok := errors.AsType[*EventError](err)
	if !errors.Is(err, syscall.EINVAL) && !(ok && failed.Type == EventConnectError) {
		return err
	}
	if _, _, stateErr := c.id.InitQPAttr(ibverbs.QPStateInit); errors.Is(stateErr, syscall.EINVAL) {
		return backlog.ErrGone
	}
	return err
}

// agreeECE enables the enhancements (ECE) that this end's queue pair offers and
// that the peer has accepted.
func (c *Conn) agreeECE() error {
	if c.byVerbs {
		return nil
	}
	offered, err := c.qp.QueryECE()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	taken, err := c.id.RemoteECE()
	if err != nil {
		return err
	}
	if taken.VendorID != offered.VendorID {
		taken = ibverbs.ECE{VendorID: offered.VendorID}
	}
	return c.qp.SetECE(taken)
}

// Alloc allocates size bytes of zeroed, page-aligned memory and registers them.
// Memory to receive or read into, or for the result of an atomic operation,
// needs ibverbs.AccessLocalWrite; memory that is only sent needs no flags. Each
// access by the peer needs its flag, such as ibverbs.AccessRemoteRead.
//
// Close closes the region if the caller has not. The bytes themselves stay
// valid as long as the program refers to them. The memory comes from Go's heap:
// for gigabytes, use PD().Alloc, whose memory the garbage collector does not
// count.
func (c *Conn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return c.self().alloc(size, access, mem.Pages)
}

func (c *Conn) self() *queues {
	if c == nil {
		return nil
	}
	return &c.queues
}

// SetPrivateData replaces Config.PrivateData. Call it in Setup, for example to
// tell the peer about memory registered there; later calls have no effect.
func (c *Conn) SetPrivateData(data []byte) error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.privateData = data
	return nil
}

// PeerData returns the private data with which the peer accepted the
// connection, padded with zeros to the transport's maximum. It returns nil on
// the accepting end; use Request.PrivateData there.
func (c *Conn) PeerData() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerData
}

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer
}

// Err returns nil while the connection is up. Afterwards it returns why the
// connection ended, which never changes:
//
//   - an error matching os.ErrClosed if Close came first
//   - an *EventError matching syscall.ECONNRESET if the peer closed it
//   - a *RejectedError if the peer gave up at the very end of the handshake
//   - an error with an *ibverbs.WCError if a transfer failed
//   - an error with an *ibverbs.WCError or a *QPError if the queue pair failed
//   - an *EventError matching syscall.ETIMEDOUT if the peer vanished (see
//     Config.KeepAlive)
//   - an *EventError matching syscall.ENODEV if the device was removed
//
// On InfiniBand and RoCE, the kernel closes the connections of a killed peer
// just as the program would have. If the difference matters, send a last
// message. On iWARP, the EventError's Status is 0 for an orderly close.
func (c *Conn) Err() error { return c.self().Err() }

// Wait blocks until the connection ends. It returns nil if the peer closed it
// in an orderly way, as far as the transport can tell (see Err), and otherwise
// the error that Err returns. If ctx ends first, the error matches ctx.Err().
//
// The end that sent the last message calls Shutdown once Send has returned. The
// other end calls Wait and then Close, so that its device has time to
// acknowledge that message. Often, as with clients, only the end that received
// the last message knows that it was the last. If that end calls Shutdown, the
// peer's Send may fail although its message arrived.
func (c *Conn) Wait(ctx context.Context) error {
	if err := c.self().check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("Conn.Wait", "ctx")
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return contextError(ctx)
	}
	err := c.Err()
	if isGoodbye(err) {
		return nil
	}
	return err
}

// privateDataLimits gives the maximum number of private data bytes in a message
// on InfiniBand and RoCE, whose packets have a fixed-size field for them. C
// reports only EINVAL when there are more.
type privateDataLimits struct {
	message   string // name of the message in errors
	connected int    // limit for connections
	datagram  int    // limit for datagram IDs
}

// In a request from an ID with IP addresses, the addresses take 36 of the
// packet's 92 or 216 bytes.
var (
	limitsOfRequest = privateDataLimits{"connection request", 56, 180}
	limitsOfReply   = privateDataLimits{"acceptance", 196, 136}
	limitsOfReject  = privateDataLimits{"rejection", 148, 136}
)

const addressHeader = 36

// checkPrivateData rejects private data that is too long for the ID's device.
// The ID must have a device.
func (id *ID) checkPrivateData(limits privateDataLimits, data []byte) error {
	limit := limits.connected
	if id.isDatagram() {
		limit = limits.datagram
	}
	if id.ps == PortSpaceIB && limits == limitsOfRequest {
		limit += addressHeader
	}
	if id.verbs().Device.TransportType != libibverbs.IBV_TRANSPORT_IB {
		limit = math.MaxUint8 // iWARP has no fixed size; C's length field is 8 bits
	}
	if len(data) > limit {
		return cerr.Invalid("private data has %d bytes, but this device's %s carries at most %d",
			len(data), limits.message, limit)
	}
	return nil
}

// keepAlive is the timer for the periodic checks of the peer.
type keepAlive struct {
	mu    sync.Mutex
	timer *time.Timer // nil before the connection is up and after Close
}

// startKeepAlive starts the periodic checks.
func (c *Conn) startKeepAlive() {
	if c.config.KeepAlive <= 0 || c.ops.prepared || c.Err() != nil {
		return
	}
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	c.keepAlive.timer = time.AfterFunc(c.config.KeepAlive, c.checkPeer)
}

func (c *Conn) stopKeepAlive() {
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	if c.keepAlive.timer != nil {
		c.keepAlive.timer.Stop()
		c.keepAlive.timer = nil
	}
}

// checkPeer checks the peer once. It ends the connection if there is no answer,
// and otherwise schedules the next check.
func (c *Conn) checkPeer() {
	if c.isPeerGone() && c.end(&EventError{Type: EventUnreachable, Status: -int(syscall.ETIMEDOUT)}) {
		background.add(c.hangUp)
	}
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	if c.keepAlive.timer != nil && c.Err() == nil {
		c.keepAlive.timer.Reset(c.config.KeepAlive)
	}
}

// isPeerGone reports whether the peer's device fails to acknowledge an empty
// write in time. The write does not involve the peer's program. While transfers
// are in flight, isPeerGone writes nothing and returns false: the write would
// wait until they are done. A send may even wait until the peer's program posts
// a receive. On iWARP, it writes nothing either while an end that has accepted
// has received nothing: some devices let that end send only then.
func (c *Conn) isPeerGone() bool {
	if c.ops.areSending() || c.id.Request() != nil && c.isIWARP() && !c.ops.heard.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.config.KeepAlive)
	defer cancel()
	t, err := c.ops.postSend(ctx, &work{kind: checking}, func(b *ibverbs.SendBatch, id uint64) error {
		if c.ops.sends.used > 0 { // other requests were posted meanwhile
			return errSending
		}
		return writeNothing(b, id)
	}, nil)
	if err != nil {
		return false
	}
	for {
		before := c.ops.completions()
		// Wait twice, because this program itself may have been stopped
		// during the first wait.
		for _, patience := range []time.Duration{c.config.KeepAlive, min(c.config.KeepAlive, time.Second)} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			done, err := c.ops.wait(ctx, &t.operation)
			cancel()
			if done || !errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
		}
		if c.ops.completions() == before {
			return true
		}
	}
}

func (c *Conn) isIWARP() bool {
	return c.pd.Device().Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

// errSending reports that other transfers are in flight.
var errSending = errors.New("other transfers are in flight")

// areSending reports whether send requests are in flight. If they include
// requests without a completion, areSending posts an empty write with a
// completion, which shows when they are done.
func (o *operations) areSending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.confirm()
	return o.sends.used > 0
}

// sending returns the number of send requests in flight.
func (o *operations) sending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.used
}

// completions returns the number of operations that have ended.
func (o *operations) completions() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.completed
}

// endNotice is the notice to the peer that the connection has ended. The kernel
// resends the notice until the peer answers, but only while the ID exists. So
// endNotice keeps the ID, without a queue pair, until the answer arrives or
// Config.Linger is over.
type endNotice struct {
	dispatcher *dispatcher
	id         *ID
	over       chan struct{} // closed when waiting for the answer ends
	err        error         // reason why the peer has not answered, or nil if it has; valid once over is closed

	mu     sync.Mutex // guards the fields below
	isOver bool
	timer  *time.Timer // nil before start
}

// expect starts to watch for the answer. It must be called before the notice is
// sent.
func (n *endNotice) expect() {
	n.dispatcher.handle(n.id, func(ev *Event) {
		switch {
		case ev.Type == EventDisconnected && ev.Status == 0, ev.Type == EventRejected, ev.Type == EventTimewaitExit:
			n.end(nil)
		case ev.Type == EventDisconnected, ev.Type == EventDeviceRemoval, ev.Type == EventConnectError:
			n.end(ev.Err())
		}
	})
}

// start keeps the ID until the peer has answered, or until linger is over. It
// takes over the ID and one use of the dispatcher, and ends both.
func (n *endNotice) start(linger time.Duration) error {
	if err := n.id.retire(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isOver {
		destroying.add(n.finish)
		return nil
	}
	n.timer = time.AfterFunc(linger, func() {
		n.end(fmt.Errorf("connection: the peer has not acknowledged the end of the connection within %v, which is Config.Linger: %w", linger, syscall.ETIMEDOUT))
	})
	return nil
}

// end records how waiting for the answer ended. Only the first call has an
// effect.
func (n *endNotice) end(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isOver {
		return
	}
	n.isOver, n.err = true, err
	close(n.over)
	if n.timer != nil {
		n.timer.Stop()
		destroying.add(n.finish)
	}
}

// finish destroys the ID and releases the dispatcher.
func (n *endNotice) finish() {
	if n.id.finish() != nil {
		return // C keeps the ID, so the dispatcher must stay
	}
	n.dispatcher.forget(n.id)
	_ = n.dispatcher.release()
}

// Close ends the connection and releases its resources, including memory from
// Alloc. Transfers in flight fail. Before Close, close all other memory
// registered on the connection's own protection domain; otherwise, Close ends
// the connection, returns an *ibverbs.BusyError, and can be called again.
//
// Close tells the peer, but does not wait for an answer. If the message is
// lost, the system resends it about every 4 seconds for up to Config.Linger,
// but only while the program runs. A program that is about to exit should call
// Shutdown instead.
func (c *Conn) Close() error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.end(c.errClosed())
	c.stopKeepAlive()
	c.ending.Do(func() {
		established := c.id.saw(EventEstablished)
		c.notice.expect()
		isOver := c.id.isOver() // if so, the peer has ended the connection, and sends no answer
		endTurn := turns.Begin()
		err := c.disconnect()
		endTurn()
		switch {
		case !established || isOver:
		case err != nil:
			c.untold = err
		default:
			c.linger = max(c.config.Linger, 0)
		}
	})
	return c.release()
}

// Shutdown closes the connection like Close, and then blocks until the peer has
// acknowledged the end. It does not block if the peer has already ended the
// connection. If ctx ends first, the error matches ctx.Err(); the connection is
// closed nevertheless, and the system keeps telling the peer as it does after
// Close. If the peer does not answer within Config.Linger, the error matches
// syscall.ETIMEDOUT. With a negative Linger, Shutdown does not wait.
//
// A Conn at the other end answers automatically while its program runs. A C
// program answers when it disconnects.
func (c *Conn) Shutdown(ctx context.Context) error {
	if err := c.self().check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("Conn.Shutdown", "ctx")
	}
	if err := c.Close(); err != nil {
		return err
	}
	select {
	case <-c.notice.over:
		return c.notice.err
	case <-ctx.Done():
		return contextError(ctx)
	}
}
