package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// DatagramConn is an end for datagrams, which are lost, doubled and reordered
// as the network likes. Dialed or accepted, it is about as much of a connection
// as a connected socket of UDP: it knows its peer, but does not notice when that
// goes away. From JoinGroup its peer is a multicast group. Its methods may be
// called concurrently.
//
// A datagram goes from a Send into a receive that the peer has posted before;
// without one it is lost, and the sender does not learn of that. A Send returns
// when the device here is done with the memory. If its context ends earlier, the
// error is a *PendingError, and the memory must be left alone for longer.
type DatagramConn struct {
	queues
	config   DatagramConfig
	flags    ibverbs.QPCreateFlags
	port     int
	mtu      int
	qkey     uint32
	handles  handles
	peer     Peer
	peerData []byte

	local, remote netip.AddrPort
	membership    io.Closer // of a group that librdmacm cannot join, nil otherwise
}

// Peer is who a datagram came from, or whom one goes to: a queue pair, or a
// multicast group. It can be compared with ==; that of one sender may differ
// from datagram to datagram in the Path's less important fields.
type Peer struct {
	Path  ibverbs.AHAttr // the way there
	QPNum uint32
	QKey  uint32 // that datagrams to it must carry
}

// DatagramConfig says how an end for datagrams is made. The zero value is
// usable, and so is a nil *DatagramConfig.
type DatagramConfig struct {
	// SendQueue and RecvQueue are how many requests may be under way in each
	// direction; 0 stands for 16.
	SendQueue, RecvQueue int
	// Segments is how many pieces of memory one request may have; 0 stands
	// for 1.
	Segments int
	// MaxInline is up to how many bytes a datagram is sent inline, as for
	// Config.MaxInline.
	MaxInline int
	// PrivateData goes to the peer with the request, up to 180 bytes, or with
	// the acceptance, up to 136. The peer sees zeros after it.
	PrivateData []byte
	// PD is the protection domain to use, as for Config.PD.
	PD *ibverbs.PD
	// Setup, if not nil, runs when the queue pair exists and nobody else knows
	// of it yet: the time to register memory and to post receives. An error
	// ends the attempt, as for Config.Setup.
	Setup func(*DatagramConn) error
}

// withDefaults returns a copy in which no zero value is left to interpret.
func (c *DatagramConfig) withDefaults() DatagramConfig {
	var out DatagramConfig
	if c != nil {
		out = *c
	}
	out.SendQueue = cmp.Or(out.SendQueue, defaultQueue)
	out.RecvQueue = cmp.Or(out.RecvQueue, defaultQueue)
	out.Segments = cmp.Or(out.Segments, 1)
	return out
}

func (c *DatagramConfig) sizes() queueSizes {
	return queueSizes{
		config: "DatagramConfig",
		send:   c.SendQueue, recv: c.RecvQueue,
		sendSegments: c.Segments, recvSegments: c.Segments + 1, inline: c.MaxInline, // one for the header
	}
}

// newDatagramConn makes what an end for datagrams needs around an id that has a
// device. The dispatcher and the id become the end's, also if it fails.
func newDatagramConn(d *dispatcher, id *ID, config DatagramConfig, flags ibverbs.QPCreateFlags) (*DatagramConn, error) {
	c := &DatagramConn{config: config, flags: flags}
	c.init("datagrams", d, id, config.PD, c.failed)
	if err := c.create(); err != nil {
		c.end(c.errClosed())
		return nil, errors.Join(err, c.giveUp())
	}
	return c, nil
}

func (c *DatagramConn) create() error {
	config, err := c.allocate(c.config.sizes())
	if err != nil {
		return err
	}
	c.port = c.id.PortNum()
	port, err := c.pd.Device().QueryPort(c.port)
	if err != nil {
		return err
	}
	c.mtu = port.ActiveMTU.Bytes()
	config.Type, config.CreateFlags = ibverbs.QPTypeUD, c.flags
	if c.qp, err = c.id.CreateQP(c.pd, config); err != nil {
		return err
	}
	attr, err := c.qp.Query()
	if err != nil {
		return err
	}
	c.qkey = attr.QKey
	c.handles.init(c.pd.CreateAH)
	mr, err := c.alloc(c.config.RecvQueue*ibverbs.GRHLen, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	c.ops.headers = newHeaders(mr, c.config.RecvQueue)
	c.dispatcher.handle(c.id, c.handle) // before Setup, which may close c and so take both away again
	watched.add(&c.ops)
	if c.config.Setup == nil {
		return nil
	}
	if err = c.config.Setup(c); err == nil {
		err = c.Err()
	}
	if err != nil {
		return fmt.Errorf("set up the queue pair: %w", err)
	}
	return nil
}

// handle is the handler of the id's events.
func (c *DatagramConn) handle(ev *Event) {
	switch ev.Type {
	case EventEstablished, EventRejected, EventUnreachable, EventMulticastJoin, EventMulticastError, EventConnectError:
		if c.isAnswer() {
			c.answers <- ev
			return
		}
	}
	switch ev.Type {
	// A later EventUnreachable says that a neighbour has changed, no more.
	case EventMulticastError, EventDeviceRemoval, EventConnectError:
		c.end(ev.Err())
		background.add(c.flush)
	}
}

// failed sees to it that a failed request ends all others, whatever it fails
// with, and whatever state it leaves the queue pair in.
func (c *DatagramConn) failed(err *ibverbs.WCError) { c.fail(err) }

// setPeer makes p the one whom Send sends to.
func (c *DatagramConn) setPeer(ctx context.Context, p Peer) error {
	h, err := c.handles.get(ctx, p.Path) // now, so that no Send waits for it
	if err != nil {
		return err
	}
	c.handles.put(h)
	c.peer = p
	return nil
}

// Peer returns whom Send sends to. Of an accepted end it is the zero value:
// where its peer's queue pair is, the first datagram from it says.
func (c *DatagramConn) Peer() Peer { return c.peer }

// MTU returns how many bytes a datagram can have: the port's active MTU, as it
// was when the end was made.
func (c *DatagramConn) MTU() int { return c.mtu }

// PeerData returns the private data with which the peer accepted, and zeros up
// to the transport's maximum. It is nil on the accepting end, whose
// DatagramRequest has the peer's, and for a group.
func (c *DatagramConn) PeerData() []byte { return c.peerData }

// LocalAddr returns this end's address.
func (c *DatagramConn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address, or that of the group with port 0.
func (c *DatagramConn) RemoteAddr() netip.AddrPort { return c.remote }

// Alloc registers size bytes of new memory, zeroed, which begin a page. The region
// is closed with the DatagramConn, if not before; its bytes then stay what they are
// for as long as the program refers to them. The memory is of Go's heap: for
// gigabytes, use PD().Alloc, whose memory the garbage collector does not count.
func (c *DatagramConn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return c.self().alloc(size, access)
}

func (c *DatagramConn) self() *queues {
	if c == nil {
		return nil
	}
	return &c.queues
}

// Err returns nil while datagrams can be sent and received, and then why not,
// which does not change any more: an *EventError if the device was removed or
// the group is lost, an *ibverbs.WCError if a request failed, a *QPError if the
// device says that the queue pair has, or an error that
// is os.ErrClosed if Close came first.
func (c *DatagramConn) Err() error { return c.self().Err() }

// Close leaves the group, if there is one, and gives up everything that belongs
// to the end, including the memory from Alloc. Transfers that are under way
// fail. The peer is not told. As for Conn.Close, memory that was registered by
// other means is to be closed before.
func (c *DatagramConn) Close() error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.end(c.errClosed())
	return c.giveUp()
}

func (c *DatagramConn) giveUp() error {
	return c.release(c.handles.close, c.leaveGroup)
}

// errNoPeer says that there is nobody to send to.
func errNoPeer() error {
	return cerr.Argument("DatagramConn.Send", "", cerr.InvalidAs(syscall.EDESTADDRREQ,
		"the peer's queue pair is not known before its first datagram, which SendTo can answer"))
}
