package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

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
