// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/turns"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// packetPort is the queue pair of a PacketConn on one of its addresses.
type packetPort struct {
	conn   *PacketConn
	local  netip.Addr
	isRoCE bool
	gid    ibverbs.GIDEntry // of local on RoCE; otherwise zero
	mtu    int
	id     *rdmacm.ID
	pd     *ibverbs.PD
	qp     *ibverbs.QP
	pkey   int // index of qp's P_Key
	region *ibverbs.MR
	memory []byte // of region: slots for receives, and after these the slots for sends
	slot   int    // bytes of a slot for a receive
	header []byte // before the data of each datagram
	pump   pump
	wanted chan struct{} // makes the goroutine take completions
	broken atomic.Bool   // whether nothing may be posted until mend has mended the queue pair
	mended time.Time     // when mend last tried; used by mend

	// The fields below are guarded by the PacketConn's mu.

	recv     *ibverbs.RecvBatch
	send     *ibverbs.SendBatch
	receives int           // number of slots for receives
	free     []int         // slots for sends that are free; its capacity is the number of such slots
	paths    []*packetPath // for each slot for sends, the path that the datagram in it takes
}

// sendSlot has the bytes of a slot for a send.
const sendSlot = protocol.DatagramLen

// packetQKey is the queue key of all queue pairs that rdma_cm makes for
// datagrams.
const packetQKey = 0x01234567

// sendID marks the IDs of sends. The rest of an ID is the number of the slot.
const sendID = 1 << 32

// refusal is why a port could not be made.
type refusal struct {
	err   error
	until time.Time
}

// port returns the port with an address, which it makes if there is none.
func (c *PacketConn) port(local netip.Addr) (*packetPort, error) {
	c.mu.Lock()
	p := c.ports[local]
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	c.making.Lock()
	defer c.making.Unlock()
	c.mu.Lock()
	p, err := c.ports[local], c.err
	c.mu.Unlock()
	switch {
	case p != nil || err != nil:
		return p, err
	case fired(c.closed):
		return nil, net.ErrClosed
	}
	if r := c.refused[local]; time.Now().Before(r.until) {
		return nil, r.err
	}
	p, err = c.makePort(local)
	if err != nil {
		c.refused[local] = refusal{err, time.Now().Add(refusedFor)}
		return nil, err
	}
	delete(c.refused, local)
	c.mu.Lock()
	if fired(c.closed) { // Close waits until c.making is free, but not for a goroutine of p
		c.mu.Unlock()
		return nil, errors.Join(net.ErrClosed, p.closeQP(), p.close())
	}
	defer c.mu.Unlock()
	c.ports[local] = p
	all := append(append([]*packetPort(nil), *c.all.Load()...), p)
	c.all.Store(&all)
	c.serving.Go(p.serve)
	if c.waiting.Load() > 0 {
		p.start()
	}
	return p, nil
}

// makePort makes a port.
func (c *PacketConn) makePort(local netip.Addr) (*packetPort, error) {
	defer turns.Make()()
	p := &packetPort{conn: c, local: local, wanted: make(chan struct{}, 1)}
	p.header = protocol.AppendHeader(nil, netip.AddrPortFrom(local, c.local.Port()))
	p.pump.init(p.handle, nil)
	if err := p.create(); err != nil {
		return nil, errors.Join(err, p.closeQP(), p.close())
	}
	return p, nil
}

// errNoDatagrams is the error for an iWARP device.
var errNoDatagrams = cerr.Argument("rsocket", "", cerr.InvalidAs(errors.ErrUnsupported, "the device uses iWARP, which has no datagrams"))

func (p *packetPort) create() (err error) {
	if p.id, err = p.conn.channel.NewID(rdmacm.PortSpaceUDP); err != nil {
		return err
	}
	if err := p.id.BindAddr(netip.AddrPortFrom(p.local, 0)); err != nil {
		return err
	}
	device, err := p.id.Device()
	if err != nil {
		return err
	}
	if isIWARP(device) {
		return errNoDatagrams
	}
	port, err := device.QueryPort(p.id.PortNum())
	if err != nil {
		return err
	}
	p.mtu = port.ActiveMTU.Bytes()
	if p.isRoCE = port.LinkLayer == link.Ethernet; p.isRoCE {
		if p.gid, err = device.FindGID(p.local.WithZone("")); err != nil {
			return err
		}
	}
	attr, err := device.QueryDevice()
	if err != nil {
		return err
	}
	most := min(attr.MaxQPWR, attr.MaxCQE/2, math.MaxUint16)
	config := &p.conn.config
	p.receives = max(min(config.RecvQueue, config.ReadBuffer/protocol.DatagramLen, most), 1)
	sends := max(min(config.SendQueue, config.WriteBuffer/protocol.DatagramLen, most), 1)
	if p.pd, err = device.AllocPD(); err != nil {
		return err
	}
	if err := p.pump.create(device, p.receives+sends, config.Spin); err != nil {
		return err
	}
	// A datagram that is longer than its receive would end the queue pair.
	p.slot = (ibverbs.GRHLen + max(protocol.DatagramLen, p.mtu) + 63) / 64 * 64
	p.memory = mem.Pages(p.receives*p.slot + sends*sendSlot)
	if p.region, err = p.pd.Register(p.memory, ibverbs.AccessLocalWrite); err != nil {
		return err
	}
	p.qp, err = p.id.CreateQP(p.pd, ibverbs.QPConfig{
		Type: ibverbs.QPTypeUD, SendCQ: p.pump.cq, RecvCQ: p.pump.cq, SendQueue: sends, RecvQueue: p.receives,
	})
	if err != nil {
		return err
	}
	now, err := p.qp.Query()
	if err != nil {
		return err
	}
	p.pkey = now.PKeyIndex
	return p.fill(sends)
}

// fill makes all slots free.
func (p *packetPort) fill(sends int) (err error) {
	if p.recv, err = ibverbs.NewRecvBatch(p.receives, 1); err != nil {
		return err
	}
	if p.send, err = ibverbs.NewSendBatch(1, 1); err != nil {
		return err
	}
	p.paths = make([]*packetPath, sends)
	p.free = make([]int, sends)
	for slot := range p.free {
		p.free[slot] = slot
	}
	for slot := range p.receives {
		if err := p.recv.Recv(uint64(slot), p.region.Sub(slot*p.slot, p.slot)); err != nil {
			return err
		}
	}
	_, err = p.qp.PostRecv(p.recv)
	return err
}

// start makes the goroutine take completions while a call waits for them.
func (p *packetPort) start() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// serve takes completions while calls wait for them.
func (p *packetPort) serve() {
	c := p.conn
	for {
		select {
		case <-p.wanted:
		case <-c.ctx.Done():
			return
		}
		p.pump.lock <- struct{}{}
		for c.waiting.Load() > 0 && c.ctx.Err() == nil && !p.broken.Load() {
			n, err := p.pump.cq.Wait(c.ctx, p.pump.wcs)
			if err != nil && c.ctx.Err() != nil {
				err = nil
			}
			p.pump.pass(n, err)
			if err != nil {
				p.pump.unlock()
				return
			}
		}
		p.pump.unlock()
	}
}

// handle handles completions. If the completion queue has failed, err is the
// reason. The caller holds the pump.
func (p *packetPort) handle(wcs []ibverbs.WC, _ []message, err error) {
	c := p.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	var now time.Time
	if len(wcs) > 0 {
		now = time.Now()
	}
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID() >= sendID {
			p.completed(int(wc.ID() - sendID))
		} else if wc.Status() == ibverbs.WCSuccess {
			p.received(wc, now)
		}
		if wc.Status() != ibverbs.WCSuccess {
			p.fail()
		}
	}
	if err != nil {
		c.failed(err)
	}
}

// fail makes datagrams go over UDP until mend has mended the queue pair. The
// caller holds the PacketConn's mu.
func (p *packetPort) fail() {
	c := p.conn
	if c.err != nil || fired(c.closed) || !p.broken.CompareAndSwap(false, true) {
		return
	}
	c.serving.Go(p.mend)
	c.writer.signal()
	c.changed()
}

// mend makes the queue pair work again, at most once in refusedFor. It gives up
// when the PacketConn has failed, for example as its device was removed.
func (p *packetPort) mend() {
	c := p.conn
	for {
		select {
		case <-time.After(time.Until(p.mended.Add(refusedFor))):
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
		failed := c.err != nil
		c.mu.Unlock()
		if failed {
			return
		}
		p.mended = time.Now()
		p.pump.cq.Wake() // the goroutine of serve then gives up the pump
		select {
		case p.pump.lock <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		err := p.reset()
		p.pump.unlock()
		if err == nil {
			if c.waiting.Load() > 0 {
				p.start()
			}
			return
		}
	}
}

// reset resets the queue pair, and posts what receives there are. Its number
// remains, so peers notice nothing. The caller holds the pump.
func (p *packetPort) reset() error {
	if err := p.qp.ToReset(); err != nil {
		return err
	}
	for { // those from before the reset, as the queue has room for no more
		n, err := p.pump.cq.Poll(p.pump.wcs)
		p.pump.pass(n, nil)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	if err := p.qp.ToInit(ibverbs.InitAttr{Port: p.id.PortNum(), PKeyIndex: p.pkey, QKey: packetQKey}); err != nil {
		return err
	}
	if err := p.qp.ToRTR(ibverbs.RTRAttr{}); err != nil {
		return err
	}
	if err := p.qp.ToRTS(ibverbs.RTSAttr{}); err != nil {
		return err
	}
	c := p.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot, path := range p.paths {
		if path != nil {
			p.completed(slot)
		}
	}
	unread := map[int]bool{}
	for _, packet := range c.unread {
		if packet.port == p {
			unread[packet.slot] = true
		}
	}
	p.broken.Store(false)
	for slot := range p.receives {
		if !unread[slot] {
			p.repost(slot)
		}
	}
	return nil
}

// completed frees the slot of a datagram that was sent. The caller holds the
// PacketConn's mu.
func (p *packetPort) completed(slot int) {
	path := p.paths[slot]
	path.users--
	path.closeUnused()
	p.paths[slot], p.free = nil, append(p.free, slot)
	c := p.conn
	c.writer.signal()
	select {
	case c.sent <- struct{}{}:
	default:
	}
	c.changed()
}

// received handles a datagram. It drops what is no datagram, and what does not
// come from the host that it names. The caller holds the PacketConn's mu.
func (p *packetPort) received(wc *ibverbs.WC, now time.Time) {
	c, slot := p.conn, int(wc.ID())
	b := p.memory[slot*p.slot:][:max(wc.ByteLen(), ibverbs.GRHLen)]
	from, data, err := protocol.ParseDatagram(b[ibverbs.GRHLen:])
	if err != nil || len(b) > ibverbs.GRHLen+protocol.DatagramLen || !p.sentBy(from.Addr(), wc, b) {
		p.repost(slot)
		return
	}
	from = p.zoned(from)
	if peer := c.peers[from]; peer != nil && peer.wanted == wc.SrcQPNum() {
		peer.heard = now
	}
	if !c.takes(from) {
		p.repost(slot)
		return
	}
	c.deliver(packet{from: from, data: data, port: p, slot: slot})
}

// sentBy reports whether the device has received a datagram from an address.
// On InfiniBand it does not say, and the address of a link need not be the
// one in the header.
func (p *packetPort) sentBy(ip netip.Addr, wc *ibverbs.WC, grh []byte) bool {
	return !p.isRoCE || !wc.HasGRH() || isFrom(ip, grh)
}

// isFrom reports whether a route header of RoCE names an address as the source.
func isFrom(ip netip.Addr, grh []byte) bool {
	header, err := ibverbs.ParseGRH(grh)
	source := header.SGID.Addr()
	return err == nil && (source == ip || source.IsLinkLocalUnicast() && ip.IsLinkLocalUnicast())
}

// zoned adds the zone of the port's address to that of a peer on the same link.
func (p *packetPort) zoned(from netip.AddrPort) netip.AddrPort {
	if ip := from.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(ip.WithZone(p.local.Zone()), from.Port())
	}
	return from
}

// repost posts a receive again. If the queue pair is broken, mend will. The
// caller holds the PacketConn's mu.
func (p *packetPort) repost(slot int) {
	if p.conn.err != nil || p.broken.Load() {
		return
	}
	p.recv.Reset()
	err := p.recv.Recv(uint64(slot), p.region.Sub(slot*p.slot, p.slot))
	if err == nil {
		_, err = p.qp.PostRecv(p.recv)
	}
	if err != nil {
		p.fail()
	}
}

// post posts a datagram, unless it has to go over UDP. It fails with an error
// matching syscall.EAGAIN if all slots are in use.
func (c *PacketConn) post(peer *packetPeer, from [][]byte, total int) (posted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := peer.port, time.Now()
	switch {
	case c.err != nil:
		return false, c.err
	case fired(c.closed):
		return false, net.ErrClosed
	case peer.path == nil || peer.qpNum != peer.wanted:
		c.find(peer)
		fallthrough
	case p.broken.Load(), peer.isSilent(now), len(p.header)+total > p.mtu:
		peer.greeted = now
		return false, nil
	case len(p.free) == 0:
		return false, errWouldBlock
	}
	slot := p.free[len(p.free)-1]
	at := p.receives*p.slot + slot*sendSlot
	n := copy(p.memory[at:], p.header)
	for _, b := range from {
		n += copy(p.memory[at+n:], b)
	}
	p.send.Reset()
	to := ibverbs.Destination{AH: peer.path.ah, QPNum: peer.qpNum, QKey: packetQKey}
	if err := p.send.SendTo(sendID+uint64(slot), to, ibverbs.SendSignaled, p.region.Sub(at, n)); err != nil {
		return false, err
	}
	if _, err := p.qp.PostSend(p.send); err != nil {
		p.fail()
		return false, nil
	}
	p.free = p.free[:len(p.free)-1]
	p.paths[slot] = peer.path
	peer.path.users++
	return true, nil
}

// closeQP destroys the queue pair, so that the device does not use paths and
// memory any more.
func (p *packetPort) closeQP() error {
	if p.qp == nil {
		return nil
	}
	return p.qp.Close()
}

// close releases the rest, after closeQP.
func (p *packetPort) close() error {
	for _, path := range p.paths {
		if path != nil && path.retired {
			if path.users--; path.users == 0 {
				_ = path.ah.Close()
			}
		}
	}
	errs := []error{p.pump.close()}
	if p.region != nil {
		errs = append(errs, p.region.Close())
	}
	if p.pd != nil {
		errs = append(errs, p.pd.Close())
	}
	if p.id != nil {
		errs = append(errs, p.id.Close())
	}
	return errors.Join(errs...)
}
