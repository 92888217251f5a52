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

// DialDatagram asks a datagram listener at host:port for its queue pair, with
// the zero Dialer.
func DialDatagram(ctx context.Context, address string, config *DatagramConfig) (*DatagramConn, error) {
	return new(Dialer).DialDatagram(ctx, address, config)
}

// DialDatagram asks a datagram listener at host:port for its queue pair. It
// returns when the peer has accepted, or with a *RejectedError if the peer
// refuses, an *EventError if it cannot be reached, or an error that is
// ctx.Err(). If the host has several addresses, they are tried in turn. The
// config may be nil.
//
// That a host does not answer at all is known only after a minute, so give ctx a
// deadline.
func (d *Dialer) DialDatagram(ctx context.Context, address string, config *DatagramConfig) (*DatagramConn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.DialDatagram", "dialer")
	}
	if err := ended("DialDatagram", ctx); err != nil {
		return nil, err
	}
	complete := config.withDefaults()
	var conn *DatagramConn
	err := d.each(ctx, address, func(local, peer netip.AddrPort) (err error) {
		conn, err = d.dialDatagram(ctx, AddrInfo{PortSpace: PortSpaceUDP, Src: local, Dst: peer}, complete)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

func (d *Dialer) dialDatagram(ctx context.Context, info AddrInfo, config DatagramConfig) (*DatagramConn, error) {
	ds, id, err := d.resolved(ctx, info, 0)
	if err != nil {
		return nil, err
	}
	conn, err := newDatagramConn(ds, id, config, 0)
	if err != nil {
		return nil, err
	}
	if err := conn.connect(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connect gets to know the peer's queue pair.
func (c *DatagramConn) connect(ctx context.Context) error {
	ev, err := c.ask(ctx, func() error { return c.id.Connect(ConnParam{PrivateData: c.config.PrivateData}) })
	if err != nil {
		return err
	}
	c.peerData, c.local, c.remote = ev.PrivateData, c.id.LocalAddr(), c.id.RemoteAddr()
	return c.setPeer(ctx, Peer{Path: ev.Path, QPNum: ev.QPNum, QKey: ev.QKey})
}

// DialDatagramInfo is DialDatagram for what GetAddrInfo has found: the way to
// PortSpaceIPoIB and to addresses of InfiniBand's own. The source is the
// info's; LocalAddr does not count.
func (d *Dialer) DialDatagramInfo(ctx context.Context, info AddrInfo, config *DatagramConfig) (*DatagramConn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.DialDatagramInfo", "dialer")
	}
	if err := ended("DialDatagramInfo", ctx); err != nil {
		return nil, err
	}
	info, err := info.forDatagrams()
	if err != nil {
		return nil, err
	}
	complete := config.withDefaults()
	complete.PrivateData = append(info.Connect[:len(info.Connect):len(info.Connect)], complete.PrivateData...)
	conn, err := d.dialDatagram(ctx, info, complete)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", info.name(info.DstIB, info.Dst), err)
	}
	return conn, nil
}

// ListenDatagramInfo is ListenDatagram for what GetAddrInfo has found with
// AddrPassive, as DialDatagramInfo is DialDatagram. The config may be nil.
func ListenDatagramInfo(ctx context.Context, info AddrInfo, config *ListenConfig) (*DatagramListener, error) {
	if err := ended("ListenDatagramInfo", ctx); err != nil {
		return nil, err
	}
	info, err := info.forDatagrams()
	if err != nil {
		return nil, err
	}
	ln, err := config.listenInfo(info)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams on %s: %w", info.name(info.SrcIB, info.Src), err)
	}
	return &DatagramListener{ln}, nil
}

// forDatagrams returns the info with a port space for datagrams.
func (a AddrInfo) forDatagrams() (AddrInfo, error) {
	a.PortSpace = cmp.Or(a.PortSpace, PortSpaceUDP)
	return a, checkDatagrams(a.PortSpace)
}

// checkDatagrams refuses a port space that is for connections.
func checkDatagrams(ps PortSpace) error {
	if ps != PortSpaceUDP && ps != PortSpaceIPoIB {
		return cerr.Refuse("rdma_create_id", "", "port space %v is not for datagrams", ps)
	}
	return nil
}

// name returns the one of the two that is in the info's family.
func (a AddrInfo) name(ib, ip fmt.Stringer) fmt.Stringer {
	if a.Family == FamilyIB {
		return ib
	}
	return ip
}

// Send sends a datagram made of the segments to the peer, or to the group's
// members. It fails with syscall.EMSGSIZE if they have more than MTU bytes, and
// with syscall.EDESTADDRREQ on an accepted end.
func (c *DatagramConn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendTo)
}

// SendImm is Send with 32 bits of immediate data.
func (c *DatagramConn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendImmTo(imm))
}

// SendTo is Send to somebody else, such as the sender of a datagram. The first
// time that it takes a path, it may wait while the kernel looks for the other
// end's hardware address, for up to three seconds. If nobody answers, it fails
// with syscall.ETIMEDOUT, and does so at once for the next three seconds. Eight
// ends are looked for at a time, and 64 more may wait for that; with still more
// of them, SendTo fails with syscall.ENOBUFS. Paths that are known do not wait.
func (c *DatagramConn) SendTo(ctx context.Context, to Peer, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, to, segments, sendTo)
}

// SendImmTo is SendTo with 32 bits of immediate data.
func (c *DatagramConn) SendImmTo(ctx context.Context, to Peer, imm uint32, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, to, segments, sendImmTo(imm))
}

// add adds a datagram to a batch.
type add func(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error

func sendTo(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error {
	return b.SendTo(id, to, flags, segments...)
}

func sendImmTo(imm uint32) add {
	return func(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error {
		return b.SendImmTo(id, to, imm, flags, segments...)
	}
}

func (c *DatagramConn) toPeer(ctx context.Context, segments []ibverbs.Segment, add add) error {
	if err := c.Err(); err != nil {
		return err
	}
	if c.peer == (Peer{}) {
		return errNoPeer()
	}
	return c.transfer(ctx, c.peer, segments, add)
}

func (c *DatagramConn) transfer(ctx context.Context, to Peer, segments []ibverbs.Segment, add add) error {
	if err := c.Err(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("DatagramConn.Send", "ctx")
	}
	size := 0
	for _, s := range segments {
		size += s.Len()
	}
	if size > c.mtu {
		return cerr.Argument("DatagramConn.Send", "", cerr.InvalidAs(syscall.EMSGSIZE, "datagram of %d bytes, where the port's MTU allows %d", size, c.mtu))
	}
	h, err := c.handles.get(ctx, to.Path)
	if err != nil {
		return err
	}
	d := ibverbs.Destination{AH: h.ah, QPNum: to.QPNum, QKey: to.QKey}
	flags := c.ops.sendFlags(segments)
	op, err := c.ops.postSend(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return add(b, id, d, flags, segments)
	}, func() { c.handles.put(h) })
	if err != nil {
		c.handles.put(h)
		return err
	}
	return (&Transfer{&c.ops, op}).Wait(ctx)
}

// PostRecv posts a receive: the next datagram that no earlier receive takes
// goes into the segments, in order, without the header that C puts before it. It
// does not wait. At most DatagramConfig.RecvQueue receives may be posted.
//
// Receives should have MTU bytes: a datagram that is larger than its receive is
// lost, and with many devices ends the DatagramConn.
func (c *DatagramConn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	op, err := c.ops.postRecv(segments)
	if err != nil {
		return nil, err
	}
	return &Receive{&c.ops, op, c}, nil
}

// Recv posts a receive, waits for its datagram, and returns its length in bytes
// and its sender. If ctx ends earlier, the receive stays posted, as that of
// Conn.Recv does.
func (c *DatagramConn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, Peer, error) {
	if err := c.self().check(); err != nil {
		return 0, Peer{}, err
	}
	op, err := c.ops.receive(ctx, segments)
	if err != nil {
		return 0, Peer{}, err
	}
	r := &Receive{&c.ops, op, c}
	from, err := r.Sender()
	return r.len(), from, err
}

// headers is memory for the headers of datagrams: the device puts one before
// each message, and users shall have the message alone. It is guarded by the
// operations' mutex.
type headers struct {
	mr       *ibverbs.MR
	free     []int             // slots of one header each
	segments []ibverbs.Segment // of the receive that is being posted
}

// newHeaders is for as many receives as can be posted.
func newHeaders(mr *ibverbs.MR, receives int) *headers {
	h := &headers{mr: mr}
	for slot := range receives {
		h.free = append(h.free, slot)
	}
	return h
}

// add puts room for a header before the segments of a receive.
func (h *headers) add(op *operation, segments []ibverbs.Segment) []ibverbs.Segment {
	last := len(h.free) - 1
	op.slot, h.free = h.free[last], h.free[:last]
	h.segments = append(h.segments[:0], h.mr.Sub(op.slot*ibverbs.GRHLen, ibverbs.GRHLen))
	h.segments = append(h.segments, segments...)
	return h.segments
}

// take copies the header of a receive that is done, and frees its room.
func (h *headers) take(op *operation) {
	copy(op.header[:], h.mr.Sub(op.slot*ibverbs.GRHLen, ibverbs.GRHLen).Bytes())
	h.free = append(h.free, op.slot)
}
