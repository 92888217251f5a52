// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// ID is struct rdma_cm_id: one end of a connection, a listener, or an address
// for datagrams.
type ID struct {
	Context any // value that the caller may use

	m       *Manager
	channel *Channel
	serial  uint64
	space   librdmacm.PortSpace
	qpType  libibverbs.QpType
	state   state
	removed bool // whether the device was removed or the ID destroyed

	local, peer netip.AddrPort
	claimed     Claim  // claim of the port in local
	silence     func() // for a listener, result of Host.Announce; otherwise nil
	port        Port   // port of the device; its Device is nil until the ID is bound to one
	path        *Path  // path that ResolveRoute, SetPath or an incoming request has set; nil: none

	reuse, afOnly, afOnlySet bool
	tos                      uint8
	ackTimeout               uint8
	ackTimeoutSet            bool

	psn                wire.PSN // first PSN of the packets that the peer sends
	qpn                uint32
	srq                bool
	qkey               uint32
	responderResources uint8 // limit that the peer has requested
	initiatorDepth     uint8
	localECE           libibverbs.Ece
	remoteECE          libibverbs.Ece
	conn               *conn

	// accepted is false for an incoming connection that the program has not
	// accepted yet. Such an ID reports no events.
	accepted bool
	backlog  int // for a listener, the number of further requests that may be queued
	reported int // number of events that Next has returned
	groups   []*group
}

// state is the state of an ID.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateAddrResolved
	stateRouteResolved
	stateListen
	stateConnect    // from the time at which a request was sent or received until the connection ends
	stateDisconnect // after DISCONNECTED was reported
)

// NewID creates an ID whose events go to channel. The port space determines the
// type of its queue pair, except that RDMA_PS_IB uses qpType. NewID fails with
// EINVAL for an unknown port space.
func (m *Manager) NewID(channel *Channel, space librdmacm.PortSpace, qpType libibverbs.QpType, context any) (*ID, error) {
	switch space {
	case librdmacm.RDMA_PS_TCP:
		qpType = libibverbs.IBV_QPT_RC
	case librdmacm.RDMA_PS_UDP, librdmacm.RDMA_PS_IPOIB:
		qpType = libibverbs.IBV_QPT_UD
	case librdmacm.RDMA_PS_IB:
	default:
		return nil, syscall.EINVAL
	}
	id := m.newID(channel, space, qpType, context)
	id.accepted = true
	return id, nil
}

func (m *Manager) newID(channel *Channel, space librdmacm.PortSpace, qpType libibverbs.QpType, context any) *ID {
	m.serial++
	id := &ID{
		Context: context, m: m, channel: channel, serial: m.serial, space: space, qpType: qpType,
		psn: wire.PSN(m.random() & 0xFFFFFF),
	}
	m.ids[id] = struct{}{}
	return id
}

// Channel returns the channel to which the ID's events go.
func (id *ID) Channel() *Channel { return id.channel }

// PortSpace returns the ID's port space.
func (id *ID) PortSpace() librdmacm.PortSpace { return id.space }

// QPType returns the type of the ID's queue pairs.
func (id *ID) QPType() libibverbs.QpType { return id.qpType }

// LocalAddr returns the ID's own address. It is valid after Bind, Listen or
// ResolveAddr.
func (id *ID) LocalAddr() netip.AddrPort { return id.local }

// PeerAddr returns the peer's address. It is valid after ResolveAddr, and for
// incoming connections.
func (id *ID) PeerAddr() netip.AddrPort { return id.peer }

// Port returns the device port of the ID. It returns false if the ID is not
// bound, or bound to all addresses.
func (id *ID) Port() (Port, bool) { return id.port, id.port.Device != nil }

// Path returns the path to the peer. It returns false if none is set yet.
func (id *ID) Path() (Path, bool) {
	if id.path == nil {
		return Path{}, false
	}
	return *id.path, true
}

// Reported returns the number of the ID's events that Next of its channel has
// returned. rdma_destroy_id waits until all of them are acknowledged. A
// CONNECT_REQUEST counts for the listener.
func (id *ID) Reported() int { return id.reported }

// SetLocalECE sets the options for enhanced connection establishment (ECE) that
// Connect and Accept send to the peer.
func (id *ID) SetLocalECE(ece libibverbs.Ece) { id.localECE = ece }

// RemoteECE returns the ECE options that the peer has sent.
func (id *ID) RemoteECE() libibverbs.Ece { return id.remoteECE }

// SetOption is rdma_set_option for all options but paths. It fails with ENOSYS
// for an unknown option. It fails with EINVAL for a value of the wrong length,
// and for an option that an ID of this type, or in this state, does not have.
func (id *ID) SetOption(level librdmacm.OptionLevel, option librdmacm.IDOption, value []byte) error {
	if id.removed {
		return syscall.ENXIO
	}
	if level != librdmacm.RDMA_OPTION_ID {
		return syscall.ENOSYS
	}
	length := 1
	switch option {
	case librdmacm.RDMA_OPTION_ID_TOS, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT:
	case librdmacm.RDMA_OPTION_ID_REUSEADDR, librdmacm.RDMA_OPTION_ID_AFONLY:
		length = 4
	default:
		return syscall.ENOSYS
	}
	if len(value) != length {
		return syscall.EINVAL
	}
	on := length == 4 && binary.NativeEndian.Uint32(value) != 0
	switch option {
	case librdmacm.RDMA_OPTION_ID_TOS:
		id.tos = value[0]
	case librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT:
		if id.qpType != libibverbs.IBV_QPT_RC && id.qpType != libibverbs.IBV_QPT_XRC_SEND {
			return syscall.EINVAL
		}
		id.ackTimeout, id.ackTimeoutSet = value[0], true
	case librdmacm.RDMA_OPTION_ID_REUSEADDR:
		if id.state == stateListen || !on && id.state != stateIdle {
			return syscall.EINVAL
		}
		id.reuse = on
	case librdmacm.RDMA_OPTION_ID_AFONLY:
		if id.state != stateIdle && id.state != stateBound {
			return syscall.EINVAL
		}
		id.afOnly, id.afOnlySet = on, true
	}
	return nil
}

// Bind is rdma_bind_addr. As in Linux, a loopback address that the device does
// not have stands for all addresses of its family.
func (id *ID) Bind(addr netip.AddrPort) error { return id.bind(addr, true) }

// bind binds the ID to an address and port. If fromHost is true, it claims
// these from the host, so that peers can find the ID there.
func (id *ID) bind(addr netip.AddrPort, fromHost bool) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case !addr.Addr().IsValid():
		return syscall.EAFNOSUPPORT
	case id.state != stateIdle, zoneMissing(addr.Addr()):
		return syscall.EINVAL
	}
	if !addr.Addr().IsUnspecified() {
		err := id.acquire(addr.Addr())
		if err != nil && (err != syscall.EADDRNOTAVAIL || !addr.Addr().IsLoopback()) {
			return err
		}
	}
	if !id.afOnlySet {
		id.afOnly = addr.Addr().Is4()
	}
	id.local = addr
	if err := id.bindPort(fromHost); err != nil {
		id.local, id.port = netip.AddrPort{}, Port{}
		return err
	}
	id.state = stateBound
	return nil
}

// zoneMissing reports whether an address is link-local and lacks the zone.
func zoneMissing(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" }

// acquire binds the ID to the device port that has the address addr.
func (id *ID) acquire(addr netip.Addr) error {
	if id.space == librdmacm.RDMA_PS_IPOIB {
		return syscall.EINVAL // IPoIB does not exist on Ethernet
	}
	port, err := id.m.host.Port(addr)
	if err == nil {
		id.port = port
	}
	return err
}

// ResolveAddr is rdma_resolve_addr; a zero src stands for a null pointer. It
// binds an ID that is not bound. It queues ADDR_RESOLVED or ADDR_ERROR before
// it returns. After ADDR_ERROR, ResolveAddr may be called again.
func (id *ID) ResolveAddr(src, dst netip.AddrPort) error {
	to := dst.Addr()
	switch {
	case id.removed:
		return syscall.ENXIO
	case !to.IsValid(), id.state != stateIdle && id.state != stateBound:
		return syscall.EINVAL
	}
	if id.state == stateIdle {
		if !src.Addr().IsValid() {
			src = netip.AddrPortFrom(unspecified(to), 0)
		}
		if err := id.bind(src, false); err != nil {
			return err
		}
	}
	own := id.local.Addr()
	if own.Is4() != to.Is4() || zoneMissing(to) {
		return syscall.EINVAL
	}
	if to.IsUnspecified() {
		to = loopback(to)
	}
	if own.IsUnspecified() {
		own = netip.Addr{}
	}
	own, err := id.m.host.Route(to, own)
	if err != nil {
		return err
	}
	if id.port.Device == nil {
		if err := id.acquire(own); err != nil {
			if err == syscall.EADDRNOTAVAIL {
				err = syscall.ENODEV // the machine has the address, says Route
				if own.IsLoopback() {
					return err // as rdma_resolve_route in Linux, without an event
				}
			}
			id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ADDR_ERROR, Status: status(err)})
			return nil
		}
	}
	id.local = netip.AddrPortFrom(own, id.local.Port())
	id.peer = netip.AddrPortFrom(to, dst.Port())
	id.state = stateAddrResolved
	id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED})
	return nil
}

// unspecified returns the unspecified address of the address family of like.
func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// loopback returns the loopback address of the address family of like.
func loopback(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// status returns the status of an event that reports err: a negative errno.
func status(err error) int {
	if errno, ok := err.(syscall.Errno); ok {
		return -int(errno)
	}
	return -int(syscall.EIO)
}

const (
	hopLimit = 64
	// packetLifeTime is the code for the packet lifetime that Linux assumes
	// on networks without a subnet administrator.
	packetLifeTime = 18
)

// ResolveRoute is rdma_resolve_route. It queues ROUTE_RESOLVED before it
// returns.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case timeout == 0, id.state != stateAddrResolved:
		return syscall.EINVAL
	}
	id.path = &Path{
		SGID: wire.GIDOf(id.local.Addr()),
		DGID: wire.GIDOf(id.peer.Addr()),
		// Linux derives the flow label in this way, to spread flows over links.
		FlowLabel:      (uint32(id.local.Port())*31 + uint32(id.peer.Port())) & 0xFFFFF,
		TrafficClass:   id.tos,
		HopLimit:       hopLimit,
		MTU:            id.port.MTU,
		PKey:           wire.DefaultPKey,
		PacketLifeTime: packetLifeTime,
	}
	if id.ackTimeoutSet && id.ackTimeout > 0 {
		id.path.PacketLifeTime = id.ackTimeout - 1
	}
	id.state = stateRouteResolved
	id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED})
	return nil
}

// SetPath is rdma_set_option with RDMA_OPTION_IB_PATH, in place of
// ResolveRoute. It queues ROUTE_RESOLVED before it returns.
func (id *ID) SetPath(path Path) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.state != stateAddrResolved:
		return syscall.EINVAL
	}
	id.path = &path
	id.state = stateRouteResolved
	id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED})
	return nil
}

// maxBacklog is Linux's limit of requests that are queued for a listener.
const maxBacklog = 1024

// Listen is rdma_listen. An ID that is not bound listens on all IPv4 addresses.
// Requests that exceed the backlog are dropped, and the peer repeats them. Each
// CONNECT_REQUEST that the program takes makes room for another.
func (id *ID) Listen(backlog int) error {
	if id.removed {
		return syscall.ENXIO
	}
	if id.state != stateBound {
		if err := id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.reuse {
		if err := id.portFree(false); err != nil {
			return err
		}
		id.reuse = false
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id.backlog = backlog
	id.state = stateListen
	id.silence = id.m.host.Announce(id.claimed)
	return nil
}

// Settle replaces RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH in param by
// numbers: by the device's limits or, on an ID that the peer has asked to
// connect, by the peer's numbers if these are lower. In the port space
// RDMA_PS_TCP, it fails with EINVAL for numbers above the device's limits.
//
// Connect and Accept call Settle. A caller that takes the queue pair to RTS
// before Accept needs the numbers earlier, and calls Settle as well.
func (id *ID) Settle(param *ConnParam) error {
	responder, initiator := id.port.MaxResponderResources, id.port.MaxInitiatorDepth
	most := func(number *uint8, all, limit uint8, asked uint8) error {
		switch {
		case *number == all && id.conn != nil:
			*number = min(asked, limit)
		case *number == all:
			*number = limit
		case *number > limit && id.space == librdmacm.RDMA_PS_TCP:
			return syscall.EINVAL
		}
		return nil
	}
	if err := most(&param.ResponderResources, librdmacm.RDMA_MAX_RESP_RES, responder, id.responderResources); err != nil {
		return err
	}
	return most(&param.InitiatorDepth, librdmacm.RDMA_MAX_INIT_DEPTH, initiator, id.initiatorDepth)
}

// Largest private data of a program in each message, in bytes.
const (
	maxREQData     = 92 - wire.IPHeaderLen
	maxREPData     = 196
	maxREJData     = 148
	maxSIDRReqData = 216 - wire.IPHeaderLen
	maxSIDRRepData = 136
)

// Connect is rdma_connect.
func (id *ID) Connect(now time.Duration, param ConnParam) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.state != stateRouteResolved:
		return syscall.EINVAL
	}
	if err := id.Settle(&param); err != nil {
		return err
	}
	limit := maxREQData
	switch id.qpType {
	case libibverbs.IBV_QPT_UD:
		limit = maxSIDRReqData
	case libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_XRC_SEND:
	default:
		return syscall.EINVAL
	}
	if len(param.PrivateData) > limit {
		return syscall.EINVAL
	}
	id.qpn, id.srq = param.QPNum&0xFFFFFF, param.SRQ
	id.state = stateConnect
	id.conn = id.m.newConn(id)
	if id.qpType == libibverbs.IBV_QPT_UD {
		id.conn.sendSIDRReq(now, param.PrivateData)
	} else {
		id.conn.sendREQ(now, param)
	}
	return nil
}

// Accept is rdma_accept for a connection request. If it fails, it also rejects
// the request, unless the ID is in the wrong state.
func (id *ID) Accept(now time.Duration, param ConnParam) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.state != stateConnect:
		return syscall.EINVAL
	}
	if err := id.Settle(&param); err != nil {
		return err
	}
	id.qpn, id.srq = param.QPNum&0xFFFFFF, param.SRQ
	var err error
	if id.qpType == libibverbs.IBV_QPT_UD {
		err = id.conn.acceptSIDR(param.PrivateData)
	} else {
		err = id.conn.sendREP(now, param)
	}
	if err != nil {
		_ = id.Reject(now, 0, nil)
		return err
	}
	id.accepted = true
	return nil
}

// Establish tells the peer, which has accepted the connection, that the queue
// pair is ready. It does what rdma_establish does, and what rdma_get_cm_event
// does when it takes CONNECT_RESPONSE. If it fails, it also rejects the
// connection, unless the ID is in the wrong state.
func (id *ID) Establish(now time.Duration) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.state != stateConnect, id.qpType == libibverbs.IBV_QPT_UD:
		return syscall.EINVAL
	}
	if err := id.conn.sendRTU(); err != nil {
		_ = id.Reject(now, 0, nil)
		return err
	}
	return nil
}

// reasonVendorOption is the reason of a rejection by rdma_reject_ece.
const reasonVendorOption = 35

// Reject is rdma_reject if reason is 0, and rdma_reject_ece if reason is 35. It
// fails with EINVAL for other reasons but 28, which has the effect of 0.
func (id *ID) Reject(now time.Duration, reason uint8, private []byte) error {
	if id.removed {
		return syscall.ENXIO
	}
	if reason == 0 {
		reason = uint8(wire.RejectConsumer)
	}
	if id.conn == nil || reason != uint8(wire.RejectConsumer) && reason != reasonVendorOption {
		return syscall.EINVAL
	}
	if id.qpType == libibverbs.IBV_QPT_UD {
		return id.conn.sendSIDRRep(&wire.SIDRRep{Status: wire.SIDRRejected}, private)
	}
	return id.conn.reject(now, wire.RejectReason(reason), private)
}

// Disconnect is rdma_disconnect. It ends a connection or, after DISCONNECTED,
// confirms that the peer has ended it. In other states of a connection it does
// nothing.
func (id *ID) Disconnect(now time.Duration) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.conn == nil:
		return syscall.EINVAL
	}
	id.conn.disconnect(now)
	return nil
}

// Notify is rdma_notify. With IBV_EVENT_COMM_EST, the ID reports ESTABLISHED
// before the peer's confirmation arrives. If the confirmation has arrived,
// Notify fails with EISCONN.
func (id *ID) Notify(event libibverbs.EventType) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case id.conn == nil || event != libibverbs.IBV_EVENT_COMM_EST:
		return syscall.EINVAL
	case id.conn.state == connEstablished:
		return syscall.EISCONN
	case !id.conn.establish():
		return syscall.EINVAL
	}
	return nil
}

// WriteEvent is rdma_write_cm_event.
func (id *ID) WriteEvent(event librdmacm.CmEventType, status int, arg uint64) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case event != librdmacm.RDMA_CM_EVENT_USER:
		return syscall.EINVAL
	}
	id.report(&Event{Type: event, Status: status, Arg: arg})
	return nil
}

// Report queues an event on behalf of the caller, such as ADDRINFO_RESOLVED.
func (id *ID) Report(event librdmacm.CmEventType, status int) error {
	if id.removed {
		return syscall.ENXIO
	}
	id.report(&Event{Type: event, Status: status})
	return nil
}

// Migrate moves the ID and its queued events to another channel, as
// rdma_migrate_id does. It does not wait for acknowledgements.
func (id *ID) Migrate(to *Channel) error {
	if id.removed {
		return syscall.ENXIO
	}
	if to == id.channel {
		return nil
	}
	moved := id.channel.take(func(e *Event) bool { return e.owner == id })
	id.channel = to
	for _, e := range moved {
		if e.Listen == id {
			e.ID.channel = to
		}
		to.add(e)
	}
	return nil
}

// Destroy destroys the ID, as rdma_destroy_id does, but does not wait for
// acknowledgements. It ends the connection, rejects queued requests, and drops
// the ID's events. The ID must not be used afterwards.
func (id *ID) Destroy(now time.Duration) {
	for _, e := range id.channel.take(func(e *Event) bool { return e.owner == id }) {
		if e.Listen == id {
			e.ID.Destroy(now)
		}
	}
	if !id.removed {
		id.end(now)
		id.removed = true
	}
	delete(id.m.ids, id)
}

// end ends the ID's connection, leaves its multicast groups and releases its
// port.
func (id *ID) end(now time.Duration) {
	if id.conn != nil {
		id.conn.destroy(now)
	}
	for len(id.groups) > 0 {
		id.leave(id.groups[0])
	}
	id.releasePort()
}

// report queues an event of the ID. It drops the event if the ID is an incoming
// connection that the program has not accepted.
func (id *ID) report(e *Event) {
	if !id.accepted {
		return
	}
	e.ID, e.owner = id, id
	id.channel.add(e)
}
