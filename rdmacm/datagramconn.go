// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
)

// A DatagramConn sends and receives datagrams, which the network may lose,
// duplicate or reorder. Dialed or accepted, it resembles a connected UDP
// socket: it knows its peer, but does not notice when the peer goes away. If
// JoinGroup returned it, its peer is a multicast group. Its methods may be
// called concurrently.
//
// Send delivers a datagram into a receive that the peer has posted. If there is
// none, the datagram is lost and the sender is not told. Send returns when the
// local device no longer needs the memory. If its context ends first, it
// returns a *PendingError, and the memory must still be left alone.
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
	membership    io.Closer // membership in a group that librdmacm cannot join, or nil
}

// A Peer is the sender or the destination of a datagram: a queue pair or a
// multicast group. Peers can be compared with ==, but minor fields of Path may
// differ between datagrams from the same sender.
type Peer struct {
	Path  ibverbs.AHAttr // path to the peer
	QPNum uint32
	QKey  uint32 // queue key that datagrams to the peer must carry
}

// A DatagramConfig configures a DatagramConn. The zero value and a nil
// *DatagramConfig are usable.
type DatagramConfig struct {
	// SendQueue and RecvQueue are the maximum numbers of send and receive work
	// requests in flight; 0 means 16.
	SendQueue, RecvQueue int
	// Segments is the maximum number of memory segments in one work request; 0
	// means 1. A receive needs another one for the header that the device
	// puts before the datagram. If the device has no more, the DatagramConn
	// receives into memory of its own and copies the datagram from there,
	// so that a receive's memory must be mapped.
	Segments int
	// MaxInline is the maximum number of bytes that a datagram sends inline: C
	// copies them when it posts the request, and the device need not fetch
	// them. Only inline data may come from ibverbs.InlineBytes. 0 disables
	// inline data. Each device has its own limit.
	MaxInline int
	// Spin is how long a call busy-waits for its completion before it parks
	// its goroutine; 0 means ibverbs.DefaultSpin. See Config.Spin.
	Spin time.Duration
	// PrivateData is sent to the peer with the request (at most 180 bytes) or
	// with the acceptance (at most 136). The peer sees trailing zeros.
	PrivateData []byte
	// PD is the protection domain to use. It must have been allocated on
	// the DatagramConn's device, as a Device from Devices. If nil, the
	// DatagramConn allocates its own and closes it in Close.
	PD *ibverbs.PD
	// Setup, if not nil, is called after the queue pair has been created
	// and before any peer can know it: register memory and post receives
	// here. If Setup returns an error, the attempt fails, and the
	// DatagramConn is closed. Memory that Setup has registered by other
	// means than DatagramConn.Alloc stays registered after such an error,
	// and keeps the DatagramConn's own protection domain open. The program
	// must close that memory, and after that close the DatagramConn that
	// Setup got again.
	//
	// Setup runs in the goroutine that creates the DatagramConn, may block, and
	// may call anything. If it calls Close, the attempt fails.
	Setup func(*DatagramConn) error
}

// withDefaults returns a copy with zero values replaced by their defaults.
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

// sizes returns the queue sizes of the config. name is the name of the config's
// type in errors.
func (c *DatagramConfig) sizes(name string) queueSizes {
	return queueSizes{
		config: name,
		send:   c.SendQueue, recv: c.RecvQueue,
		sendSegments: c.Segments, recvSegments: c.Segments + 1, inline: c.MaxInline, spin: c.Spin, // one more for the header
	}
}

// newDatagramConn creates a DatagramConn that uses an ID that has a device. It
// takes over the dispatcher and the ID, even if it fails. name is the name of
// the config's type in errors.
func newDatagramConn(d *dispatcher, id *ID, config DatagramConfig, name string, flags ibverbs.QPCreateFlags) (*DatagramConn, error) {
	c := &DatagramConn{config: config, flags: flags}
	c.init("datagrams", d, id, config.PD, c.failed)
	if err := c.create(name); err != nil {
		c.end(c.errClosed())
		return nil, errors.Join(err, c.giveUp())
	}
	return c, nil
}

func (c *DatagramConn) create(name string) error {
	sizes := c.config.sizes(name)
	copies, err := c.copies(sizes)
	if err != nil {
		return err
	}
	if copies {
		sizes.recvSegments--
	}
	config, err := c.allocate(sizes, c.supplyOwn)
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
	c.handles.init(c.pd.CreateAH, c.errClosed)
	size := ibverbs.GRHLen
	if copies {
		size += c.mtu
	}
	mr, err := c.alloc(c.config.RecvQueue*size, ibverbs.AccessLocalWrite, mem.Pages)
	if err != nil {
		return err
	}
	c.ops.headers = newHeaders(mr, c.config.RecvQueue)
	c.dispatcher.handle(c.id, c.handle) // before Setup, because Setup may close c, which undoes both calls
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

// copies reports whether datagrams are received into memory of the
// DatagramConn, and copied from there: on a device with too few segments for
// the header and the datagram.
func (c *DatagramConn) copies(sizes queueSizes) (bool, error) {
	device, err := c.id.Device()
	if err != nil {
		return false, err
	}
	attr, err := device.QueryDevice()
	return sizes.recvSegments == attr.MaxSGE+1, err
}

// handle handles the ID's events.
func (c *DatagramConn) handle(ev *Event) {
	switch ev.Type {
	case EventEstablished, EventRejected, EventUnreachable, EventMulticastJoin, EventMulticastError, EventConnectError:
		if c.offer(ev) {
			return
		}
	}
	switch ev.Type {
	// A later EventUnreachable reports only a changed neighbor.
	case EventMulticastError, EventDeviceRemoval, EventConnectError:
		c.end(ev.Err())
		background.add(c.flush)
	}
}

// failed ends the DatagramConn when one of its requests fails, whatever the
// error is and whatever state the queue pair is in.
func (c *DatagramConn) failed(_ *ibverbs.WCError, err error) { c.fail(err) }

// setPeer makes p the destination of Send.
func (c *DatagramConn) setPeer(ctx context.Context, p Peer) error {
	h, err := c.handles.get(ctx, p.Path) // creates the handle now, so that Send need not wait for it
	if err != nil {
		return err
	}
	c.handles.put(h)
	c.peer = p
	return nil
}

// Peer returns the destination of Send. It returns the zero value at the
// accepting end, which learns of its peer's queue pair from the first datagram.
func (c *DatagramConn) Peer() Peer { return c.peer }

// MTU returns the maximum number of bytes in a datagram: the port's active MTU
// at the time the DatagramConn was created.
func (c *DatagramConn) MTU() int { return c.mtu }

// PeerData returns the private data with which the peer accepted the request,
// padded with zeros to the transport's maximum. It returns nil for a group, and
// on the accepting end; use DatagramRequest.PrivateData there.
func (c *DatagramConn) PeerData() []byte { return c.peerData }

// LocalAddr returns the local address.
func (c *DatagramConn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address, or the group's address with port 0.
func (c *DatagramConn) RemoteAddr() netip.AddrPort { return c.remote }

// Alloc allocates size bytes of zeroed, page-aligned memory and registers them.
// Close closes the region if the caller has not. The bytes themselves stay
// valid as long as the program refers to them. The memory comes from Go's heap:
// for gigabytes, use PD().Alloc, whose memory the garbage collector does not
// count.
func (c *DatagramConn) Alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return c.self().alloc(size, access, mem.Pages)
}

func (c *DatagramConn) self() *queues {
	if c == nil {
		return nil
	}
	return &c.queues
}

// Err returns nil while datagrams can be sent and received. Afterwards it
// returns the cause, which never changes:
//
//   - an error matching os.ErrClosed if Close came first
//   - an *EventError if the device was removed or the group was lost
//   - an *ibverbs.WCError if a request failed
//   - a *QPError if the device reports that the queue pair failed
func (c *DatagramConn) Err() error { return c.self().Err() }

// Close leaves the group, if any, and releases all resources, including memory
// from Alloc. Transfers in flight fail. Close does not tell the peer. Before
// Close, close all other memory registered on the DatagramConn's own protection
// domain; otherwise, Close returns an *ibverbs.BusyError and can be called
// again.
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

// errNoPeer returns the error of a Send that has no destination.
func errNoPeer() error {
	return cerr.Argument("DatagramConn.Send", "", cerr.InvalidAs(syscall.EDESTADDRREQ,
		"the accepting end has no peer for Send: reply to a received datagram with SendTo"))
}

// DialDatagram requests a queue pair from the datagram listener at host:port,
// using the zero Dialer.
func DialDatagram(ctx context.Context, address string, config *DatagramConfig) (*DatagramConn, error) {
	return new(Dialer).DialDatagram(ctx, address, config)
}

// DialDatagram requests a queue pair from the datagram listener at host:port.
// It blocks until the peer accepts. It fails with a *RejectedError if the peer
// refuses, with an *EventError if the peer cannot be reached, and with an error
// matching ctx.Err() if ctx ends first. If the host has several addresses,
// DialDatagram tries them in turn. The config may be nil.
//
// Give ctx a deadline. Without one, DialDatagram takes a minute to detect a
// host that does not answer, and tries again for a minute if the listener's
// backlog is full. If the backlog stays full, the error matches ErrBacklogFull.
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
		conn, err = d.askDatagram(ctx, AddrInfo{PortSpace: PortSpaceUDP, Src: local, Dst: peer}, complete)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// askDatagram calls dialDatagram, and calls it again while the listener's
// backlog is full.
func (d *Dialer) askDatagram(ctx context.Context, info AddrInfo, config DatagramConfig) (conn *DatagramConn, err error) {
	err = backlog.Retry(ctx, 0, "", func(ctx context.Context) (err error) {
		conn, err = d.dialDatagram(ctx, info, config)
		return err
	})
	return conn, err
}

func (d *Dialer) dialDatagram(ctx context.Context, info AddrInfo, config DatagramConfig) (*DatagramConn, error) {
	ds, id, err := d.resolved(ctx, info, 0)
	if err != nil {
		return nil, err
	}
	conn, err := newDatagramConn(ds, id, config, "DatagramConfig", 0)
	if err != nil {
		return nil, err
	}
	if err := conn.connect(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connect asks the peer for its queue pair.
func (c *DatagramConn) connect(ctx context.Context) error {
	ev, err := c.ask(ctx, func() error { return c.id.Connect(ConnParam{PrivateData: c.config.PrivateData}) })
	if err != nil {
		return err
	}
	c.peerData, c.local, c.remote = ev.PrivateData, c.id.LocalAddr(), c.id.RemoteAddr()
	return c.setPeer(ctx, Peer{Path: ev.Path, QPNum: ev.QPNum, QKey: ev.QKey})
}

// DialDatagramInfo is like DialDatagram, but takes the result of a lookup. Use
// it for PortSpaceIPoIB and for native InfiniBand addresses. The source address
// is the one in info; DialDatagramInfo ignores Dialer.LocalAddr.
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
	conn, err := d.askDatagram(ctx, info, complete)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", info.name(info.DstIB, info.Dst), err)
	}
	return conn, nil
}

// ListenDatagramInfo is like ListenDatagram, but takes the result of a lookup
// with AddrPassive. Use it for PortSpaceIPoIB and for native InfiniBand
// addresses. The config may be nil.
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

// forDatagrams returns a copy with a datagram port space.
func (a AddrInfo) forDatagrams() (AddrInfo, error) {
	a.PortSpace = cmp.Or(a.PortSpace, PortSpaceUDP)
	return a, checkDatagrams(a.PortSpace)
}

// checkDatagrams rejects port spaces for connections.
func checkDatagrams(ps PortSpace) error {
	if ps != PortSpaceUDP && ps != PortSpaceIPoIB {
		return cerr.Refuse("rdma_create_id", "", "port space is %v, not PortSpaceUDP or PortSpaceIPoIB", ps)
	}
	return nil
}

// name returns ib if the family is FamilyIB, and ip otherwise.
func (a AddrInfo) name(ib, ip fmt.Stringer) fmt.Stringer {
	if a.Family == FamilyIB {
		return ib
	}
	return ip
}

// Send sends the segments as one datagram to the peer or to the group's
// members. It fails with an error matching syscall.EMSGSIZE if they exceed MTU
// bytes, and with one matching syscall.EDESTADDRREQ at the accepting end. The
// error of a datagram that could not be sent names its length and its
// destination.
func (c *DatagramConn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendTo)
}

// SendImm is like Send, but also sends 32 bits of immediate data.
func (c *DatagramConn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendImmTo(imm))
}

// SendTo is like Send, but sends to the given peer, such as the sender of a
// datagram. The first SendTo on a path may block for up to three seconds while
// the kernel resolves the peer's hardware address. If the peer does not answer,
// SendTo fails with an error matching syscall.ETIMEDOUT, and for the next three
// seconds fails at once. The kernel resolves at most eight paths at a time and
// 64 more may wait; beyond that, SendTo fails with an error matching
// syscall.ENOBUFS. On a path that is already resolved, SendTo does not wait for
// the kernel.
func (c *DatagramConn) SendTo(ctx context.Context, to Peer, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, to, segments, sendTo)
}

// SendImmTo is like SendTo, but also sends 32 bits of immediate data.
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
		return cerr.Argument("DatagramConn.Send", "", cerr.InvalidAs(syscall.EMSGSIZE, "datagram has %d bytes, more than the port's MTU of %d", size, c.mtu))
	}
	what := &work{kind: sendingDatagram, key: to.QPNum, bytes: size}
	h, err := c.handles.get(ctx, to.Path)
	if err != nil {
		path := to.Path // allocated only if there is an error
		what.path = &path
		return fmt.Errorf("%v: %w", what, err)
	}
	what.path = &h.path
	d := ibverbs.Destination{AH: h.ah, QPNum: to.QPNum, QKey: to.QKey}
	flags := c.ops.sendFlags(segments)
	t, err := c.ops.postSend(ctx, what, func(b *ibverbs.SendBatch, id uint64) error {
		return add(b, id, d, flags, segments)
	}, func() { c.handles.put(h) })
	if err != nil {
		c.handles.put(h)
		return err
	}
	return c.ops.finish(ctx, t)
}

// Done returns a channel that is closed when Err starts to return an error.
func (c *DatagramConn) Done() <-chan struct{} { return c.queues.Done() }

// PD returns the protection domain. Register memory with it.
func (c *DatagramConn) PD() *ibverbs.PD { return c.queues.PD() }

// QP returns the queue pair, for work requests that have no method here. The
// IDs of these work requests must be 1<<63 or more. The program does not get
// their completions. If one of them fails, Err returns the error. They must
// leave room in the queues for other work requests.
func (c *DatagramConn) QP() *ibverbs.QP { return c.queues.QP() }

// ID returns the underlying ID.
func (c *DatagramConn) ID() *ID { return c.queues.ID() }

// PostRecv posts a receive, and does not block. Receives take datagrams in the
// order in which they were posted. A datagram goes into its receive's segments
// in order, without the header that the device puts before it. At most
// DatagramConfig.RecvQueue receives may be posted.
//
// Make receives MTU bytes long: a datagram that is larger than its receive is
// lost and, on many devices, ends the DatagramConn.
func (c *DatagramConn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	return c.post(nil, segments)
}

// Recv posts a receive, waits for its datagram, and returns the datagram's
// length in bytes and its sender. If ctx ends first, the receive stays posted
// for the next Recv with the same segments; while it is posted, a Recv with
// other segments fails with an error matching syscall.EBUSY.
func (c *DatagramConn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, Peer, error) {
	if err := c.self().check(); err != nil {
		return 0, Peer{}, err
	}
	r, err := c.ops.receive(ctx, segments)
	if err != nil {
		return 0, Peer{}, err
	}
	defer c.ops.recycleReceive(r)
	r.conn = c
	from, err := r.Sender()
	return r.len(), from, err
}

// post posts a receive: r, or a new one.
func (c *DatagramConn) post(r *Receive, segments []ibverbs.Segment) (*Receive, error) {
	r, err := c.ops.postRecv(r, segments)
	if err != nil {
		return nil, err
	}
	r.conn = c
	return r, nil
}

// headers is memory for the headers that the device puts before datagrams, so
// that the caller's segments contain only the datagram. On a device with too
// few segments for that, it is also memory for the datagrams, which are copied
// to the caller's segments. It is guarded by the operations' mutex.
type headers struct {
	mr       *ibverbs.MR
	size     int               // bytes of a slot: those of a header, or more if there is room for a datagram, too
	free     []int             // free slots, one for each receive
	segments []ibverbs.Segment // segments of the receive being posted
}

// newHeaders returns headers with a slot for each receive that can be posted.
func newHeaders(mr *ibverbs.MR, receives int) *headers {
	h := &headers{mr: mr, size: mr.Len() / receives}
	for slot := range receives {
		h.free = append(h.free, slot)
	}
	return h
}

// copies reports whether the slots have room for datagrams.
func (h *headers) copies() bool { return h.size > ibverbs.GRHLen }

// add puts room for a header before the segments of a receive. If datagrams are
// copied, the result has room for the datagram instead of the segments; then
// add fails if the program cannot copy to the segments.
func (h *headers) add(op *operation, segments []ibverbs.Segment) ([]ibverbs.Segment, error) {
	room := ibverbs.GRHLen
	if h.copies() {
		if err := checkRecv(segments); err != nil {
			return nil, err
		}
		op.segments = append(op.segments[:0], segments...)
		room = min(room+lengthOf(segments), h.size)
		segments = nil
	}
	last := len(h.free) - 1
	op.slot, h.free = h.free[last], h.free[:last]
	h.segments = append(h.segments[:0], h.mr.Sub(op.slot*h.size, room))
	h.segments = append(h.segments, segments...)
	return h.segments, nil
}

// take copies the header of a completed receive, and the datagram if it is not
// in the segments, and frees the slot.
func (h *headers) take(op *operation) {
	slot := h.mr.Bytes()[op.slot*h.size:][:h.size]
	copy(op.header[:], slot)
	if h.copies() && !op.failed {
		if err := fill(op.segments, slot[ibverbs.GRHLen:max(op.wc.ByteLen(), ibverbs.GRHLen)]); err != nil {
			op.err = err
		}
	}
	h.release(op)
}

// release frees the slot of a receive that was not posted.
func (h *headers) release(op *operation) { h.free = append(h.free, op.slot) }
