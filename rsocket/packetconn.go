// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// PacketConn sends and receives datagrams, as a UDP socket does: a datagram may
// be lost, and there is no connection. It is a net.PacketConn. Its methods may
// be called concurrently.
//
// A datagram has at most 2032 bytes for peers with IPv4 addresses, and 2020 for
// others. The first datagrams to a peer go over UDP, together with the number
// of this end's queue pair. The peer answers with its own, and then datagrams
// go from queue pair to queue pair. When nothing has come from a peer for a
// second, the next datagram to it goes over UDP again, at most one a second.
// Datagrams that are longer than the device's MTU go over UDP always.
//
// Nothing proves that a datagram comes from the address that it names, as with
// UDP. On RoCE, a datagram counts only if the device names the same host as its
// source; of link-local addresses, each may name another.
//
// If a queue pair fails, datagrams go over UDP until it is reset, at once or
// after a few seconds. If one of the devices is removed, all calls fail.
type PacketConn struct {
	config   Config
	udp      *net.UDPConn
	local    Addr
	channel  *rdmacm.EventChannel // of the ports' IDs
	reader   side
	writer   side
	scratch  []byte // for datagrams that go over UDP; guarded by writer
	closed   chan struct{}
	closing  sync.Once
	closeErr error
	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	serving  sync.WaitGroup
	onChange atomic.Pointer[func()]
	waiting  atomic.Int32                  // number of calls, threads and sets that wait for completions
	all      atomic.Pointer[[]*packetPort] // the ports
	sent     chan struct{}                 // gets a value when a datagram was sent

	making  sync.Mutex // held while a port is made; guards refused
	refused map[netip.Addr]refusal

	mu        sync.Mutex // guards the fields below
	err       error      // why the PacketConn has failed, or nil
	ports     map[netip.Addr]*packetPort
	peers     map[netip.AddrPort]*packetPeer
	queued    []*packetPeer // peers that wait for a resolver
	resolvers int
	unread    []packet
	fromUDP   int            // number of unread datagrams that have come over UDP
	connected netip.AddrPort // if valid, the only peer
}

var _ net.PacketConn = (*PacketConn)(nil)

// packet is a datagram that was received.
type packet struct {
	from netip.AddrPort
	data []byte
	port *packetPort // nil if the datagram has come over UDP
	slot int         // the port's receive that has the data
}

// ListenPacket is ListenConfig.ListenPacket with the zero ListenConfig.
func ListenPacket(network, address string) (*PacketConn, error) {
	return new(ListenConfig).ListenPacket(context.Background(), network, address)
}

// ListenPacket returns a PacketConn with the address host:port. The network is
// "rdma", or "rdma4" or "rdma6" for addresses of one family only. If the host
// is empty or unspecified, such as 0.0.0.0, the PacketConn has all addresses of
// all devices. Datagrams then go from the address that the system's routes
// choose for the peer, also in answer to datagrams to another one. If the port
// is 0, the system chooses one. ctx limits the lookup of the host.
//
// Of lc.Config, ReadBuffer, WriteBuffer, RecvQueue, SendQueue and Spin apply,
// for each local address. A datagram takes 2048 bytes of ReadBuffer or
// WriteBuffer, and a place in RecvQueue or SendQueue.
//
// ListenPacket fails with an error matching syscall.EADDRNOTAVAIL or
// syscall.ENODEV if no device has the address. With an unspecified host it
// succeeds also without a device.
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (*PacketConn, error) {
	switch {
	case lc == nil:
		return nil, cerr.Nil("ListenConfig.ListenPacket", "config")
	case ctx == nil:
		return nil, cerr.Nil("ListenConfig.ListenPacket", "ctx")
	}
	c, at, err := lc.listenPacket(ctx, network, address)
	if err != nil {
		oe := &net.OpError{Op: "listen", Net: network, Err: err}
		if at.IsValid() {
			oe.Addr = Addr{at}
		}
		return nil, oe
	}
	return c, nil
}

func (lc *ListenConfig) listenPacket(ctx context.Context, network, address string) (c *PacketConn, at netip.AddrPort, err error) {
	if err := lc.Config.check(); err != nil {
		return nil, at, err
	}
	addrs, err := lookup(ctx, network, "udp", address)
	if err != nil {
		return nil, at, err
	}
	at = addrs[0]
	c = &PacketConn{
		config: lc.Config.complete(), closed: make(chan struct{}), sent: make(chan struct{}, 1),
		refused: map[netip.Addr]refusal{}, ports: map[netip.Addr]*packetPort{}, peers: map[netip.AddrPort]*packetPeer{},
	}
	c.config.SendQueue, c.config.RecvQueue = max(c.config.SendQueue, minQueue), max(c.config.RecvQueue, minQueue)
	c.reader.init()
	c.writer.init()
	c.reader.deadline.init(func() {})
	c.writer.deadline.init(func() {})
	c.all.Store(new([]*packetPort))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.channel, err = rdmacm.NewEventChannel(); err != nil {
		return nil, at, err
	}
	udp := map[string]string{"rdma": "udp", "rdma4": "udp4", "rdma6": "udp6"}[network]
	if at.Addr().Is4() { // which "udp" would take for all addresses if it is unspecified
		udp = "udp4"
	}
	socket := net.UDPAddr{Port: int(at.Port())}
	if at.Addr().IsValid() {
		socket.IP, socket.Zone = at.Addr().AsSlice(), at.Addr().Zone()
	}
	if c.udp, err = net.ListenUDP(udp, &socket); err != nil {
		if oe, ok := errors.AsType[*net.OpError](err); ok {
			err = oe.Err
		}
		return nil, at, errors.Join(err, c.channel.Close())
	}
	name := c.udp.LocalAddr().(*net.UDPAddr).AddrPort()
	c.local = Addr{netip.AddrPortFrom(name.Addr().Unmap(), name.Port())}
	if !c.local.Addr().IsUnspecified() {
		if _, err := c.port(c.local.Addr()); err != nil {
			return nil, at, errors.Join(err, c.Close())
		}
	}
	c.serving.Go(c.serve)
	c.serving.Go(c.watchDevices)
	return c, at, nil
}

// check returns an error if c is nil or was not made by this package.
func (c *PacketConn) check() error {
	if c == nil || c.closed == nil {
		return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the PacketConn is nil, or was not made by this package"))
	}
	return nil
}

// opError returns the error of the operation op.
func (c *PacketConn) opError(op string, to netip.AddrPort, err error) error {
	if err == nil {
		return nil
	}
	oe := &net.OpError{Op: op, Net: network, Source: c.local, Err: timed(err)}
	if to.IsValid() {
		oe.Addr = Addr{to}
	}
	return oe
}

// serve takes what comes over UDP.
func (c *PacketConn) serve() {
	b := make([]byte, protocol.DatagramLen+1)
	for {
		n, from, err := c.udp.ReadFromUDPAddrPort(b)
		if err != nil {
			if !fired(c.closed) {
				c.fail(err)
			}
			return
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if greeting, data, err := protocol.ParseGreeting(b[:n], from.Addr()); err == nil && n <= protocol.DatagramLen {
			c.greeted(from, greeting, data)
		}
	}
}

// watchDevices fails the PacketConn when a device is removed.
func (c *PacketConn) watchDevices() {
	for event, err := range c.channel.Events(c.ctx) {
		switch {
		case err != nil:
			if c.ctx.Err() == nil {
				c.fail(err)
			}
			return
		case event.Type == rdmacm.EventDeviceRemoval:
			c.fail(event.Err())
			return
		}
	}
}

// greeted handles a Greeting, and the datagram that has come with it.
func (c *PacketConn) greeted(from netip.AddrPort, greeting protocol.Greeting, data []byte) {
	peer, err := c.peer(from)
	if err != nil {
		return // as if the Greeting had been lost
	}
	if greeting.Data {
		answer := protocol.Greeting{QPNum: peer.port.qp.Num(), Local: peer.port.local}
		_ = c.sendUDP(answer.Append(nil), from) // the peer asks again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	peer.wanted, peer.heard = greeting.QPNum, time.Now()
	if greeting.Data && c.fromUDP < c.config.RecvQueue && c.takes(from) {
		c.fromUDP++
		c.deliver(packet{from: from, data: append([]byte(nil), data...)})
	}
}

// takes reports whether datagrams from an address are read. The caller holds
// c.mu.
func (c *PacketConn) takes(from netip.AddrPort) bool {
	return !c.connected.IsValid() || c.connected == from
}

// deliver makes a datagram one that can be read. The caller holds c.mu.
func (c *PacketConn) deliver(p packet) {
	c.unread = append(c.unread, p)
	c.reader.signal()
	c.changed()
}

// changed calls the function that was passed to NotifyOf, if any.
func (c *PacketConn) changed() {
	if f := c.onChange.Load(); f != nil {
		(*f)()
	}
}

// fail makes all calls fail with err. Only the first call has an effect.
func (c *PacketConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed(err)
}

// failed is fail. The caller holds c.mu.
func (c *PacketConn) failed(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.reader.signal()
	c.writer.signal()
	c.changed()
}

// watch makes the ports' goroutines take completions, until unwatch.
func (c *PacketConn) watch() {
	if c.waiting.Add(1) == 1 {
		for _, p := range *c.all.Load() {
			p.start()
		}
	}
}

func (c *PacketConn) unwatch() { c.waiting.Add(-1) }

// refresh takes the completions of ports whose goroutines do not.
func (c *PacketConn) refresh() {
	for _, p := range *c.all.Load() {
		p.pump.poll()
	}
}

// wait waits until the condition of the call that uses s may be true.
func (c *PacketConn) wait(s *side) error {
	passed := s.deadline.wait()
	select {
	case <-s.wake:
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-passed:
		return os.ErrDeadlineExceeded
	}
}

// ReadFrom reads the next datagram into b, and returns its length and its
// sender, of type Addr. What does not fit into b is lost.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, Addr{from}, nil
}

// ReadFromAddrPort is like ReadFrom, but returns a netip.AddrPort.
func (c *PacketConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	if err := c.check(); err != nil {
		return 0, netip.AddrPort{}, err
	}
	n, from, err := c.readFrom(b)
	return n, from, c.opError("read", netip.AddrPort{}, err)
}

func (c *PacketConn) readFrom(b []byte) (n int, from netip.AddrPort, err error) {
	if err := c.reader.begin(c.closed); err != nil {
		return 0, from, err
	}
	defer c.reader.end()
	to := [][]byte{b}
	if n, _, from, err = c.tryRead(to, false); !errors.Is(err, syscall.EAGAIN) {
		return n, from, err
	}
	c.watch()
	defer c.unwatch()
	for {
		if n, _, from, err = c.tryRead(to, false); !errors.Is(err, syscall.EAGAIN) {
			return n, from, err
		}
		if err := c.wait(&c.reader); err != nil {
			return 0, from, err
		}
	}
}

// tryRead reads a datagram into the buffers, one after the other, and returns
// its whole length as size. If peek is true, the datagram remains unread.
// tryRead fails with an error matching syscall.EAGAIN instead of waiting. The
// caller has locked c.reader.
func (c *PacketConn) tryRead(to [][]byte, peek bool) (n, size int, from netip.AddrPort, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unread) == 0 {
		c.mu.Unlock()
		c.refresh()
		c.mu.Lock()
	}
	switch {
	case len(c.unread) > 0:
	case c.err != nil:
		return 0, 0, from, c.err
	default:
		return 0, 0, from, errWouldBlock
	}
	p := c.unread[0]
	rest := p.data
	for _, b := range to {
		n += copy(b, rest)
		rest = p.data[n:]
	}
	if !peek {
		c.unread[0], c.unread = packet{}, c.unread[1:]
		if p.port == nil {
			c.fromUDP--
		} else {
			p.port.repost(p.slot)
		}
	}
	return n, len(p.data), p.from, nil
}

// WriteTo sends a datagram. addr is an Addr or a *net.UDPAddr. A nil error does
// not mean that the datagram has arrived, or was sent. WriteTo fails with an
// error matching syscall.EMSGSIZE if b is too long. It waits, until the
// deadline, while as many datagrams from the same local address are in flight
// as SendQueue and WriteBuffer have room for. It never waits for UDP: it drops
// a datagram for which the buffer of the UDP socket is full.
func (c *PacketConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	switch a := addr.(type) {
	case Addr:
		return c.WriteToAddrPort(b, a.AddrPort)
	case *net.UDPAddr:
		if a != nil {
			return c.WriteToAddrPort(b, a.AddrPort())
		}
	}
	if err := c.check(); err != nil {
		return 0, err
	}
	return 0, c.opError("write", netip.AddrPort{}, &net.AddrError{Err: "not an rsocket.Addr or a *net.UDPAddr", Addr: fmt.Sprintf("%T", addr)})
}

// WriteToAddrPort is like WriteTo, but takes a netip.AddrPort.
func (c *PacketConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	if err := c.writeTo(b, to); err != nil {
		return 0, c.opError("write", to, err)
	}
	return len(b), nil
}

func (c *PacketConn) writeTo(b []byte, to netip.AddrPort) error {
	if err := c.writer.begin(c.closed); err != nil {
		return err
	}
	defer c.writer.end()
	err := c.tryWrite([][]byte{b}, len(b), to)
	if !errors.Is(err, syscall.EAGAIN) {
		return err
	}
	c.watch()
	defer c.unwatch()
	for {
		if err = c.tryWrite([][]byte{b}, len(b), to); !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		if err := c.wait(&c.writer); err != nil {
			return err
		}
	}
}

// tryWrite sends the bytes of the buffers, which are total, as a datagram. It
// fails with an error matching syscall.EAGAIN instead of waiting. The caller
// has locked c.writer.
func (c *PacketConn) tryWrite(from [][]byte, total int, to netip.AddrPort) error {
	to, err := c.destination(to)
	if err != nil {
		return err
	}
	if most := protocol.MaxDatagram(to.Addr()); total > most {
		return cerr.InvalidAs(syscall.EMSGSIZE, "a datagram of %d bytes, more than %d", total, most)
	}
	peer, err := c.peer(to)
	if err != nil {
		return err
	}
	posted, err := c.post(peer, from, total)
	if errors.Is(err, syscall.EAGAIN) {
		c.refresh()
		posted, err = c.post(peer, from, total)
	}
	if posted || err != nil {
		return err
	}
	greeting := protocol.Greeting{QPNum: peer.port.qp.Num(), Local: peer.port.local, Data: true}
	c.scratch = greeting.Append(c.scratch[:0])
	for _, b := range from {
		c.scratch = append(c.scratch, b...)
	}
	err = c.sendUDP(c.scratch, to)
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		err = oe.Err
	}
	return err
}

// destination returns a destination in the form in which the PacketConn knows
// it: of the zones, only those of link-local addresses remain, as the names of
// interfaces. It fails if there can be no peer at the address.
func (c *PacketConn) destination(to netip.AddrPort) (netip.AddrPort, error) {
	ip := to.Addr().Unmap()
	switch {
	case !to.IsValid():
		return to, cerr.InvalidAs(syscall.EDESTADDRREQ, "no destination")
	case to.Port() == 0 || ip.WithZone("").IsUnspecified() || ip.IsMulticast():
		return to, cerr.InvalidAs(syscall.EINVAL, "%v is no destination", to)
	case !ip.Is6() || !ip.IsLinkLocalUnicast():
		ip = ip.WithZone("")
	case ip.Zone() == "":
		ip = ip.WithZone(c.local.Addr().Zone())
	default:
		ip = ip.WithZone(zoneName(ip.Zone()))
	}
	return netip.AddrPortFrom(ip, to.Port()), nil
}

// zoneName returns the name of the interface that a zone names by its number or
// name.
func zoneName(zone string) string {
	if n, err := strconv.Atoi(zone); err == nil {
		if i, err := net.InterfaceByIndex(n); err == nil {
			return i.Name
		}
	}
	return zone
}

// LocalAddr returns the local address, of type Addr.
func (c *PacketConn) LocalAddr() net.Addr {
	if c == nil {
		return Addr{}
	}
	return c.local
}

// setDeadline sets the deadlines of sides.
func (c *PacketConn) setDeadline(t time.Time, sides ...func(*PacketConn) *side) error {
	if err := c.check(); err != nil {
		return err
	}
	if fired(c.closed) {
		return c.opError("set", netip.AddrPort{}, net.ErrClosed)
	}
	for _, s := range sides {
		s(c).deadline.set(t)
	}
	return nil
}

func readerOf(c *PacketConn) *side { return &c.reader }
func writerOf(c *PacketConn) *side { return &c.writer }

// SetDeadline sets the time at which calls that read or write fail with an
// error matching os.ErrDeadlineExceeded, including calls in progress. The zero
// time means that there is no deadline.
func (c *PacketConn) SetDeadline(t time.Time) error { return c.setDeadline(t, readerOf, writerOf) }

// SetReadDeadline sets the deadline of calls that read; see SetDeadline.
func (c *PacketConn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, readerOf) }

// SetWriteDeadline sets the deadline of calls that write; see SetDeadline.
func (c *PacketConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, writerOf) }

// lastSends limits the time for which Close waits for the device to send.
const lastSends = time.Second

// Close waits until the device has sent the datagrams in flight, and releases
// all resources. Calls in progress fail with an error matching net.ErrClosed.
// Further calls have no effect.
func (c *PacketConn) Close() error {
	if err := c.check(); err != nil {
		return err
	}
	c.closing.Do(func() {
		c.mu.Lock() // no goroutine that Close waits for begins after this
		close(c.closed)
		c.mu.Unlock()
		c.changed()
		c.awaitSends()
		c.cancel()
		err := c.udp.Close()
		c.serving.Wait()
		c.making.Lock() // no port is being made, and none will be
		defer c.making.Unlock()
		c.closeErr = c.opError("close", netip.AddrPort{}, errors.Join(err, c.free(), c.channel.Close()))
		c.reader.deadline.set(time.Time{})
		c.writer.deadline.set(time.Time{})
	})
	return c.closeErr
}

// awaitSends waits until no datagram is in flight.
func (c *PacketConn) awaitSends() {
	c.watch()
	defer c.unwatch()
	limit := time.NewTimer(lastSends)
	defer limit.Stop()
	for {
		c.refresh()
		if c.isIdle() {
			return
		}
		select {
		case <-c.sent:
		case <-limit.C:
			return
		}
	}
}

// isIdle reports whether no datagram is in flight, or none will complete.
func (c *PacketConn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.ports {
		if len(p.free) < cap(p.free) && c.err == nil && !p.broken.Load() {
			return false
		}
	}
	return true
}

// free closes the ports and the paths to peers. Close has ended the goroutines
// that use them; other calls see c.err. As destroying a queue pair may take
// long, c.mu is not locked meanwhile.
func (c *PacketConn) free() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	ports, peers := *c.all.Load(), c.peers
	c.unread, c.peers, c.ports = nil, nil, nil
	c.mu.Unlock()
	var errs []error
	for _, p := range ports {
		p.pump.lock <- struct{}{} // never released: nothing takes completions any more
		errs = append(errs, p.closeQP())
	}
	for _, peer := range peers {
		if peer.path != nil {
			errs = append(errs, peer.path.ah.Close())
		}
	}
	for _, p := range ports {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}
