package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
)

// Conn is a reliable connection. Its methods may be called concurrently.
//
// A message goes from a Send into a receive that the peer has posted before;
// reads and writes reach the peer's memory without its help. Each method that
// transfers something returns when its completion is in. If its context ends
// earlier, it returns, but the transfer goes on: the memory must be left alone
// until the connection is closed.
type Conn struct {
	config     Config
	dispatcher *dispatcher
	id         *ID
	pd         *ibverbs.PD
	channel    *ibverbs.CompChannel
	cq         *ibverbs.CQ
	qp         *ibverbs.QP
	ops        operations

	established chan *Event   // receives the event that answers the handshake
	done        chan struct{} // closed when the connection is over
	closer      closer
	leave       closer

	mu          sync.Mutex
	answered    bool
	cause       error // why it is over
	peerData    []byte
	local, peer netip.AddrPort

	memory sync.Mutex    // guards what follows
	mrs    []*ibverbs.MR // from Alloc
	closed bool          // no more of them
}

// errLocalClose is the cause of a connection that Close has ended.
var errLocalClose = fmt.Errorf("connection: %w", os.ErrClosed)

// newConn makes what a connection needs around an id that has a device. The
// dispatcher and the id become the connection's, also if it fails.
func newConn(d *dispatcher, id *ID, config Config) (*Conn, error) {
	c := &Conn{
		config: config, dispatcher: d, id: id, pd: config.PD,
		established: make(chan *Event, 1), done: make(chan struct{}),
	}
	if err := c.allocate(); err != nil {
		c.end(errLocalClose) // for whom Setup has given c to
		return nil, errors.Join(err, c.release())
	}
	d.handle(id, c.handle) // before this, nothing happens to the id that a later call would not report
	return c, nil
}

func (c *Conn) allocate() error {
	device, err := c.id.Context()
	if err != nil {
		return err
	}
	if c.pd == nil {
		if c.pd, err = device.AllocPD(); err != nil {
			return err
		}
	} else if c.pd.Context() != device {
		return fmt.Errorf("the protection domain is not of the connection's device as in Devices: %w", syscall.EINVAL)
	}
	if c.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	entries := c.config.SendQueue + c.config.RecvQueue
	if c.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: entries, Channel: c.channel}); err != nil {
		return err
	}
	if err := c.createQP(); err != nil {
		return err
	}
	if err := c.ops.init(c); err != nil {
		return err
	}
	if c.config.Setup != nil {
		if err := c.config.Setup(c); err != nil {
			return fmt.Errorf("set up the connection: %w", err)
		}
	}
	return nil
}

func (c *Conn) createQP() error {
	config := ibverbs.QPConfig{
		Type: ibverbs.QPTypeRC, SendCQ: c.cq, RecvCQ: c.cq,
		MaxSendWR: c.config.SendQueue, MaxRecvWR: c.config.RecvQueue,
		MaxSendSGE: c.config.Segments, MaxRecvSGE: c.config.Segments, MaxInline: c.config.MaxInline,
	}
	var err error
	if !c.config.ManualQP {
		c.qp, err = c.id.CreateQP(c.pd, config)
		return err
	}
	if c.qp, err = c.pd.CreateQP(config); err != nil {
		return err
	}
	return c.moveQP(ibverbs.QPStateInit) // so that receives can be posted
}

// statesToRTS are the states that a queue pair passes on its way to use. It is
// initialised once more, because only the handshake has told whether the peer
// may read here.
var statesToRTS = []ibverbs.QPState{ibverbs.QPStateInit, ibverbs.QPStateRTR, ibverbs.QPStateRTS}

// moveQP takes a queue pair of ours through states of the connection.
func (c *Conn) moveQP(states ...ibverbs.QPState) error {
	for _, state := range states {
		attr, mask, err := c.id.InitQPAttr(state)
		if err != nil {
			return err
		}
		if err := c.qp.Modify(attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// param returns the connection's parameters, within what the device and, if
// there is a request, the peer allow.
func (c *Conn) param(request *Event) (ConnParam, error) {
	attr, err := c.pd.Context().QueryDevice()
	if err != nil {
		return ConnParam{}, err
	}
	p := ConnParam{
		PrivateData:        c.config.PrivateData,
		ResponderResources: uint8(min(c.config.ReadDepth, attr.MaxQPReadAtomic)),
		InitiatorDepth:     uint8(min(c.config.ReadDepth, attr.MaxQPInitReadAtomic)),
		RetryCount:         uint8(c.config.RetryCount),
		RNRRetryCount:      uint8(c.config.RNRRetryCount),
	}
	if request != nil {
		p.ResponderResources = min(p.ResponderResources, request.ResponderResources)
		p.InitiatorDepth = min(p.InitiatorDepth, request.InitiatorDepth)
	}
	if c.config.ManualQP {
		p.QPNum = c.qp.Num()
	}
	return p, nil
}

// handle is the handler of the id's events.
func (c *Conn) handle(ev *Event) {
	switch ev.Type {
	case EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventConnectError:
		if c.firstAnswer() {
			c.established <- ev
			return
		}
	}
	switch ev.Type {
	// A peer that gives up while it waits for the last message of the
	// handshake, which this end has sent, rejects what is up here.
	case EventDisconnected, EventDeviceRemoval, EventConnectError, EventRejected:
		c.end(ev.Err())
		// The queue pair goes into the error state, which completes all that
		// is posted. It may be there already.
		c.dispatcher.later.add(func() { _ = c.disconnect() })
	}
}

// firstAnswer reports, once, that the handshake was not answered before.
func (c *Conn) firstAnswer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.answered
	c.answered = true
	return first
}

// disconnect ends the connection and moves the queue pair into the error
// state.
func (c *Conn) disconnect() error {
	if c.config.ManualQP && c.qp != nil {
		_ = c.qp.SetError()
	}
	return c.id.Disconnect()
}

// end notes why the connection is over, once.
func (c *Conn) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
		close(c.done)
	}
}

// handshake waits for the event that ends the handshake.
func (c *Conn) handshake(ctx context.Context) error {
	select {
	case ev := <-c.established:
		return c.answer(ev)
	case <-c.done:
		select {
		case ev := <-c.established: // it was up, if not for long
			return c.answer(ev)
		default:
			return c.Err()
		}
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// answer deals with the event that ends the handshake.
func (c *Conn) answer(ev *Event) error {
	if err := ev.Err(); err != nil {
		return err
	}
	c.peerData = ev.PrivateData
	c.local, c.peer = c.id.LocalAddr(), c.id.PeerAddr()
	if ev.Type != EventConnectResponse {
		return nil
	}
	if err := c.moveQP(statesToRTS...); err != nil {
		return err
	}
	return c.id.Establish()
}

// PD returns the connection's protection domain, to register memory with.
func (c *Conn) PD() *ibverbs.PD { return c.pd }

// Alloc maps and registers memory as PD().Alloc does. The region is closed with
// the connection, if not before.
func (c *Conn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	c.memory.Lock() // held to the end, so that Close finds every region
	defer c.memory.Unlock()
	if c.closed {
		return nil, errLocalClose
	}
	mr, err := c.pd.Alloc(size, access)
	if err != nil {
		return nil, err
	}
	isClosed := func(mr *ibverbs.MR) bool { return mr.Bytes() == nil }
	c.mrs = append(slices.DeleteFunc(c.mrs, isClosed), mr)
	return mr, nil
}

// QP returns the connection's queue pair, for requests that Conn has no method
// for. The IDs of such requests must be 1<<63 or more. Their completions are not
// to be had from Conn, and they must leave room in the queues for its own.
func (c *Conn) QP() *ibverbs.QP { return c.qp }

// ID returns the connection's id.
func (c *Conn) ID() *ID { return c.id }

// PeerData returns the private data with which the peer accepted the
// connection, and zeros up to the transport's maximum. It is nil on the
// accepting end, whose Request has the peer's.
func (c *Conn) PeerData() []byte { return c.peerData }

// LocalAddr returns this end's address.
func (c *Conn) LocalAddr() Addr { return Addr{c.local} }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() Addr { return Addr{c.peer} }

// Done returns a channel that is closed when the connection is over.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is up, and then why it is over, which
// does not change any more: an *EventError that is syscall.ECONNRESET if the
// peer ended it, a *RejectedError if the peer gave up at the very end of the
// handshake, an *ibverbs.WCError if a transfer failed, or an error that is
// os.ErrClosed if Close came first.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Close ends the connection and gives up everything that belongs to it,
// including the memory from Alloc. Transfers that are under way fail. Memory
// that was registered on the connection's own protection domain by other means
// is to be closed before; while there is any, Close returns a BusyError, and
// can be called again.
func (c *Conn) Close() error {
	c.end(errLocalClose)
	_ = c.disconnect() // it may be over already
	return c.release()
}

// release closes what the connection has, in the order that C needs. After an
// error it can be called again.
func (c *Conn) release() error {
	return c.closer.do(func() error {
		var steps []func() error
		if c.qp != nil {
			steps = append(steps, c.qp.Close)
		}
		if c.cq != nil {
			steps = append(steps, c.cq.Close, c.abortOperations)
		}
		if c.channel != nil {
			steps = append(steps, c.channel.Close)
		}
		steps = append(steps, c.closeRegions, c.id.Close, func() error { return c.leave.do(c.leaveDispatcher) })
		if c.pd != nil && c.config.PD == nil {
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

func (c *Conn) leaveDispatcher() error {
	c.dispatcher.forget(c.id)
	return c.dispatcher.release()
}

func (c *Conn) closeRegions() error {
	c.memory.Lock()
	defer c.memory.Unlock()
	c.closed = true
	for len(c.mrs) > 0 {
		if err := c.mrs[0].Close(); err != nil {
			return err
		}
		c.mrs = c.mrs[1:]
	}
	return nil
}

func (c *Conn) abortOperations() error {
	c.ops.abort(errLocalClose)
	return nil
}
