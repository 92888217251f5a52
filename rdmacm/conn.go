package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

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
	regions     []*ibverbs.MR // from Alloc
	local, peer netip.AddrPort
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
	d.handle(id, c.handle)
	if err := c.allocate(); err != nil {
		return nil, errors.Join(err, c.release())
	}
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
		return fmt.Errorf("the protection domain is of %s, the connection of %s", c.pd.Context().Name(), device.Name())
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

// statesToRTS are the states that a queue pair passes on its way to use.
var statesToRTS = []ibverbs.QPState{ibverbs.QPStateRTR, ibverbs.QPStateRTS}

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
		ResponderResources: uint8(min(c.config.ReadDepth, attr.MaxQPReadAtomic, 255)),
		InitiatorDepth:     uint8(min(c.config.ReadDepth, attr.MaxQPInitReadAtomic, 255)),
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
	case EventDisconnected, EventDeviceRemoval, EventConnectError:
		c.end(ev.Err())
		// The queue pair goes into the error state, which completes all that
		// is posted. It may be there already.
		_ = c.disconnect()
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
		if err := ev.Err(); err != nil {
			return err
		}
		c.peerData = ev.PrivateData
		c.local, c.peer = c.id.LocalAddr(), c.id.PeerAddr()
		if ev.Type == EventConnectResponse {
			if err := c.moveQP(statesToRTS...); err != nil {
				return err
			}
			return c.id.Establish()
		}
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// PD returns the connection's protection domain, to register memory with.
func (c *Conn) PD() *ibverbs.PD { return c.pd }

// Alloc maps and registers memory as PD().Alloc does. The region is closed with
// the connection, if not before.
func (c *Conn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	mr, err := c.pd.Alloc(size, access)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regions = append(c.regions, mr)
	return mr, nil
}

// QP returns the connection's queue pair, for requests that Conn has no method
// for. Completions of such requests are not to be had from Conn.
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

// Err returns nil while the connection is up, and then why it is over: an
// *EventError that is syscall.ECONNRESET if the peer ended it, or an error that
// is os.ErrClosed after Close.
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
	c.dispatcher.handle(c.id, nil)
	return c.dispatcher.release()
}

func (c *Conn) closeRegions() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.regions) > 0 {
		if err := c.regions[0].Close(); err != nil {
			return err
		}
		c.regions = c.regions[1:]
	}
	return nil
}

func (c *Conn) abortOperations() error {
	c.ops.abort(errLocalClose)
	return nil
}
