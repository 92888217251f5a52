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
	"github.com/verbena-go/verbena/internal/cerr"
)

// Conn is a reliable connection. Its methods may be called concurrently.
//
// A message goes from a Send into a receive that the peer has posted before;
// reads and writes reach the peer's memory without its help. Each method that
// transfers something returns when its completion is in. If its context ends
// earlier, it returns a *PendingError, which can be waited for again, because the
// transfer goes on and its memory must be left alone.
type Conn struct {
	queues
	config      Config
	movesQP     bool // through its states; otherwise librdmacm and the kernel do
	rnrTimer    uint8
	peerData    []byte         // guarded by mu, for whom Setup has given the connection to
	local, peer netip.AddrPort // likewise
	noReads     atomic.Bool    // or atomics: one end allows none
	ending      sync.Once      // of Close, which tells the peer
	keepAlive   keepAlive
}

// newConn makes what a connection needs around an id that has a device. The
// dispatcher and the id become the connection's, also if it fails.
func newConn(d *dispatcher, id *ID, config Config) (*Conn, error) {
	c := &Conn{config: config}
	c.init("connection", d, id, config.PD, c.failed)
	c.within = config.HandshakeTimeout
	if err := c.create(); err != nil {
		c.end(c.errClosed()) // for whom Setup has given c to
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (c *Conn) create() (err error) {
	if c.rnrTimer, err = rnrTimerCode(c.config.MinRNRTimer); err != nil {
		return cerr.Refuse(opCreateQP, c.id.name(), "Config.MinRNRTimer is %v, not from 0 to 655.36ms", c.config.MinRNRTimer)
	}
	config, err := c.allocate(c.config.sizes())
	if err != nil {
		return err
	}
	// On the way, librdmacm would leave a minimal RNR timer of 655 ms, and keep
	// the channel's other events waiting.
	c.movesQP = c.config.ManualQP || c.pd.Device().Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IB
	if err := c.createQP(config); err != nil {
		return c.orGone(err)
	}
	// Before this, nothing happens to the id that a later call would not report;
	// and Setup may close the connection, which takes both away again.
	c.dispatcher.handle(c.id, c.handle)
	watched.add(&c.ops)
	if c.config.Setup == nil {
		return nil
	}
	err = c.config.Setup(c)
	if err == nil {
		err = c.orGone(c.Err()) // Setup may have closed it
	}
	if err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	return nil
}

func (c *Conn) createQP(config ibverbs.QPConfig) (err error) {
	if !c.config.ManualQP {
		c.qp, err = c.id.CreateQP(c.pd, config)
		return err
	}
	if c.qp, err = c.pd.CreateQP(config); err != nil {
		return err
	}
	return c.moveQP(nil, ibverbs.QPStateInit) // so that receives can be posted
}

// statesToRTS are the states that a queue pair passes on its way to use. It is
// initialised once more, because only the handshake has told whether the peer
// may read here.
var statesToRTS = []ibverbs.QPState{ibverbs.QPStateInit, ibverbs.QPStateRTR, ibverbs.QPStateRTS}

// moveQP takes the queue pair through states of the connection. With p, the
// kernel does not know yet how many reads and atomics it may have.
func (c *Conn) moveQP(p *ConnParam, states ...ibverbs.QPState) error {
	for _, state := range states {
		attr, mask, err := c.id.initQPAttr(state)
		if err != nil {
			return err
		}
		// C ignores these unless the state's mask includes them.
		attr.MinRnrTimer, attr.RetryCnt = c.rnrTimer, min(attr.RetryCnt, uint8(c.config.RetryCount))
		if p != nil {
			attr.MaxDestRdAtomic, attr.MaxRdAtomic = uint8(max(p.ResponderResources, 0)), uint8(max(p.InitiatorDepth, 0))
		}
		if err := modifyQP(c.qp, attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// param returns the connection's parameters, within what the device and, if
// there is a request, the peer allow.
func (c *Conn) param(request *Event) (ConnParam, error) {
	attr, err := c.pd.Device().QueryDevice()
	if err != nil {
		return ConnParam{}, err
	}
	p := ConnParam{
		PrivateData:        c.config.PrivateData,
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
		if *count == 0 { // which is the default for Connect and Accept
			*count = none
		}
	}
	if c.movesQP {
		p.QPNum = c.qp.Num()
	}
	c.noReads.Store(p.InitiatorDepth == none)
	return p, nil
}

// failed takes the first request that failed for why the connection is over. One
// that was flushed only follows from that: from an event that is about to be read,
// or from a failure of the queue pair, which look finds then.
func (c *Conn) failed(err *ibverbs.WCError) {
	if err.Status == ibverbs.WCFlushed {
		c.flushed.CompareAndSwap(nil, err)
		return
	}
	c.fail(err)
}

// handle is the handler of the id's events.
func (c *Conn) handle(ev *Event) {
	switch ev.Type {
	case EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventConnectError:
		if c.isAnswer() {
			c.answers <- ev
			return
		}
	}
	switch ev.Type {
	// A peer that gives up while it waits for the last message of the
	// handshake, which this end has sent, rejects what is up here.
	case EventDisconnected, EventDeviceRemoval, EventConnectError, EventRejected:
		c.end(ev.Err())
		background.add(c.hangUp)
	}
}

// hangUp answers the peer's end of the connection, or tells it of this one's, and
// completes all that is posted.
func (c *Conn) hangUp() {
	_ = c.disconnect()
	c.flush()
}

// disconnect ends the connection and moves the queue pair into the error
// state.
func (c *Conn) disconnect() error {
	if c.config.ManualQP && c.qp != nil {
		_ = c.qp.SetError()
	}
	return c.id.Disconnect()
}

// handshake begins the handshake, waits for the event that ends it, and deals
// with that.
func (c *Conn) handshake(ctx context.Context, begin func() error) error {
	ev, err := c.ask(ctx, begin)
	if err != nil {
		return err
	}
	local, peer := c.id.LocalAddr(), c.id.RemoteAddr()
	c.mu.Lock()
	c.peerData, c.local, c.peer = ev.PrivateData, local, peer
	c.mu.Unlock()
	if ev.Type == EventConnectResponse {
		if ev.InitiatorDepth == 0 {
			c.noReads.Store(true)
		}
		if err := c.establish(); err != nil {
			return err
		}
		c.id.note(EventEstablished) // which does not come
	}
	c.startKeepAlive()
	return nil
}

// establish makes the queue pair ready and tells the peer.
func (c *Conn) establish() error {
	if err := c.agreeECE(); err != nil {
		return err
	}
	if err := c.moveQP(nil, statesToRTS...); err != nil {
		return err
	}
	return c.id.Establish()
}

// errGone is why a handshake fails whose peer has not finished it.
var errGone = fmt.Errorf("the peer has given up: %w", syscall.ECONNRESET)

// orGone returns errGone if that is where a failure of the handshake comes from,
// and the error otherwise, which may be nil. C then refuses every step as
// invalid; what it says of a queue pair tells that from a wrong configuration.
func (c *Conn) orGone(err error) error {
	if _, ok := errors.AsType[*RejectedError](err); ok && c.id.Request() != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	failed, ok := errors.AsType[*EventError](err)
	if !errors.Is(err, syscall.EINVAL) && !(ok && failed.Type == EventConnectError) {
		return err
	}
	if _, _, stateErr := c.id.InitQPAttr(ibverbs.QPStateInit); errors.Is(stateErr, syscall.EINVAL) {
		return errGone
	}
	return err
}

// agreeECE makes the queue pair use those of the enhancements that it offered
// which the peer has taken.
func (c *Conn) agreeECE() error {
	if c.config.ManualQP {
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

// Alloc registers size bytes of new memory, zeroed, which begin a page. The region
// is closed with the connection, if not before; its bytes then stay what they are
// for as long as the program refers to them. The memory is of Go's heap: for
// gigabytes, use PD().Alloc, whose memory the garbage collector does not count.
func (c *Conn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return c.self().alloc(size, access)
}

func (c *Conn) self() *queues {
	if c == nil {
		return nil
	}
	return &c.queues
}

// SetPrivateData puts data in the place of Config.PrivateData. It is for Setup,
// which makes what the peer may have to be told of, such as memory that it may
// read; later it has no effect.
func (c *Conn) SetPrivateData(data []byte) error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.config.PrivateData = data
	return nil
}

// PeerData returns the private data with which the peer accepted the
// connection, and zeros up to the transport's maximum. It is nil on the
// accepting end, whose Request has the peer's.
func (c *Conn) PeerData() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerData
}

// LocalAddr returns this end's address.
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

// Err returns nil while the connection is up, and then why it is over, which
// does not change any more: an *EventError that is syscall.ECONNRESET if the
// peer ended it, a *RejectedError if the peer gave up at the very end of the
// handshake, an error with an *ibverbs.WCError if a transfer failed, or with one or
// a *QPError if the queue pair did, an *EventError that is syscall.ETIMEDOUT if the
// peer has vanished (see Config.KeepAlive), or an error that is os.ErrClosed if
// Close came first.
//
// On InfiniBand and RoCE the kernel of a peer that was killed ends its connections
// as the program would have. A program that has to tell the two apart sends a last
// message. On iWARP the Status of the EventError tells: 0 for an orderly end.
func (c *Conn) Err() error { return c.self().Err() }

// Wait waits until the peer ends the connection in an orderly way, as far as the
// transport can tell (see Err), and then returns nil. If it ends otherwise, Wait
// returns what Err does; if ctx ends first, an error that is ctx.Err(). The end
// that has received the last message does well to wait: the peer's device may
// still need its answer.
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
	if ended, ok := err.(*EventError); ok && ended.Type == EventDisconnected && ended.Status == 0 {
		return nil
	}
	return err
}

// privateDataLimits is how many bytes of private data a message can carry on
// InfiniBand and RoCE, where they are parts of fixed size of its packets. C
// says no more than EINVAL when there are more.
type privateDataLimits struct {
	message   string
	connected int // of a connection
	datagram  int // of an id for datagrams
}

// The requests of ids with IP addresses have 36 bytes less than the packet's
// 92 and 216, for the addresses.
var (
	limitsOfRequest = privateDataLimits{"connection request", 56, 180}
	limitsOfReply   = privateDataLimits{"acceptance", 196, 136}
	limitsOfReject  = privateDataLimits{"rejection", 148, 136}
)

const addressHeader = 36

// checkPrivateData refuses private data that is too long for the id's device.
// The id must have one.
func (id *ID) checkPrivateData(limits privateDataLimits, data []byte) error {
	limit := limits.connected
	if id.isDatagram() {
		limit = limits.datagram
	}
	if id.ps == PortSpaceIB && limits == limitsOfRequest {
		limit += addressHeader
	}
	if id.verbs().Device.TransportType != libibverbs.IBV_TRANSPORT_IB {
		limit = math.MaxUint8 // iWARP has no fixed size; C's type ends here
	}
	if len(data) > limit {
		return cerr.Invalid("private data of %d bytes, where this device's %s carries up to %d",
			len(data), limits.message, limit)
	}
	return nil
}

// keepAlive asks periodically whether the peer is still there.
type keepAlive struct {
	mu    sync.Mutex
	timer *time.Timer // nil before the connection is up, and after its Close
}

// startKeepAlive begins to ask.
func (c *Conn) startKeepAlive() {
	if c.config.KeepAlive <= 0 || c.Err() != nil {
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

// checkPeer asks once, ends the connection if there is no answer, and otherwise
// has itself called again.
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

// isPeerGone writes no bytes to the peer's memory, which its device acknowledges
// without its program, and reports whether that does not happen in time. Behind
// a transfer it would wait for that, and a send waits for the peer's program; so
// nothing is asked while there are any.
func (c *Conn) isPeerGone() bool {
	if c.ops.sending() > 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.config.KeepAlive)
	defer cancel()
	op, err := c.ops.postSend(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		if c.ops.sends.used > 0 { // others came first
			return errSending
		}
		return b.Write(id, ibverbs.RemoteBuffer{}, ibverbs.SendSignaled)
	}, nil)
	if err != nil {
		return false
	}
	for {
		before := c.ops.completions()
		// Twice, because the program itself may have been stopped for some time.
		for _, patience := range []time.Duration{c.config.KeepAlive, min(c.config.KeepAlive, time.Second)} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			done, err := c.ops.wait(ctx, op)
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

// errSending says that transfers are under way.
var errSending = errors.New("transfers are under way")

// sending returns how many send requests are under way.
func (o *operations) sending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.used
}

// completions returns how many requests have completed.
func (o *operations) completions() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastID - uint64(len(o.pending))
}

// parting is the end of a connection that the peer has to be told of. The
// kernel sends its message again until the peer answers, but only while it has
// the id; so that stays, without a queue pair, until the answer is there or the
// time is up.
type parting struct {
	dispatcher *dispatcher
	id         *ID
	over       chan struct{} // closed when nobody waits for the answer any more
	err        error         // why there is none; known when over is closed

	mu     sync.Mutex // guards what follows
	isOver bool
	timer  *time.Timer // nil before start
}

// expect begins to wait for the answer, before the peer is told.
func (p *parting) expect() {
	p.dispatcher.handle(p.id, func(ev *Event) {
		switch {
		case ev.Type == EventDisconnected && ev.Status == 0, ev.Type == EventRejected, ev.Type == EventTimewaitExit:
			p.end(nil)
		case ev.Type == EventDisconnected, ev.Type == EventDeviceRemoval, ev.Type == EventConnectError:
			p.end(ev.Err())
		}
	})
}

// start keeps the id until its peer has answered, or for as long as linger. The
// id and one use of the dispatcher become the parting's.
func (p *parting) start(linger time.Duration) error {
	if err := p.id.retire(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isOver {
		partings.add(p.finish)
		return nil
	}
	p.timer = time.AfterFunc(linger, func() {
		p.end(fmt.Errorf("connection: the peer has not answered its end within %v, which is Config.Linger: %w", linger, syscall.ETIMEDOUT))
	})
	return nil
}

// end notes how waiting for the answer has ended, once.
func (p *parting) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isOver {
		return
	}
	p.isOver, p.err = true, err
	close(p.over)
	if p.timer != nil {
		p.timer.Stop()
		partings.add(p.finish)
	}
}

// finish gives the id back.
func (p *parting) finish() {
	if p.id.finish() != nil {
		return // C keeps it, and so the dispatcher stays
	}
	p.dispatcher.forget(p.id)
	_ = p.dispatcher.release()
}

// Close ends the connection and gives up everything that belongs to it,
// including the memory from Alloc. Transfers that are under way fail. Memory
// that was registered on the connection's own protection domain by other means
// is to be closed before; while there is any, Close returns a BusyError, and
// can be called again. The connection has ended all the same.
//
// Close tells the peer, and does not wait for its answer. If that message is
// lost, the system sends it again, every 4 seconds or so, for as long as
// Config.Linger says; but not after the program has ended. A program that is
// about to end calls Shutdown instead.
func (c *Conn) Close() error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.end(c.errClosed())
	c.stopKeepAlive()
	c.ending.Do(func() {
		established := c.id.saw(EventEstablished)
		c.parting.expect()
		isOver := c.id.isOver() // and needs no answer
		err := c.disconnect()
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

// Shutdown is Close that waits until the peer has answered, and so knows of the
// end; it need not wait if the peer has ended the connection itself. If ctx
// ends before, Shutdown returns an error that is ctx.Err(); the connection is
// closed all the same, and the peer is told on, as after Close. If there is no
// answer within Config.Linger, it returns one that is syscall.ETIMEDOUT; with a
// negative Linger it waits for none.
//
// A Conn at the other end answers by itself; its program need do nothing, but must
// be running. A program of C's answers when it disconnects, too.
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
	case <-c.parting.over:
		return c.parting.err
	case <-ctx.Done():
		return contextError(ctx)
	}
}
