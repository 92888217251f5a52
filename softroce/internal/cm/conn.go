// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// conn is one side of the exchange of messages that sets up and ends a
// connection, or that resolves a datagram service. It outlives its ID if the ID
// is destroyed before the time wait of the connection is over.
type conn struct {
	m      *Manager
	id     *ID // ID to which the connection belongs; nil once the ID is destroyed
	serial uint64
	state  connState

	node        int        // the peer's node; 0: the peer has not answered yet
	asked       int        // node that got the last request, while node is 0
	local, peer netip.Addr // addresses of the two ends

	localID, remoteID   uint32 // communication IDs that the two sides chose; remoteID is 0 until it is known
	remoteGUID          uint64
	localQPN, remoteQPN uint32
	tid                 uint64 // transaction ID of the messages

	path               Path
	remotePSN          wire.PSN // first PSN of the packets that this side sends; the peer chose it
	responderResources uint8
	initiatorDepth     uint8
	retry, rnrRetry    uint8 // retry counts of the queue pair
	ackTimeout         uint8 // acknowledgement timeout of the queue pair, as a code

	sent       []byte        // message that awaits an answer and is repeated
	service    uint64        // service ID of the request
	delayed    bool          // whether an MRA of the peer has announced a later answer
	timeout    time.Duration // time for which this side waits for an answer
	interval   time.Duration // time between repetitions of sent: timeout or, if delayed, the time that the MRA announced
	repeat     uint8         // number of times that a message is repeated
	repeatLeft uint8         // number of times that sent will still be repeated
	due        time.Duration // time at which the timer expires
	timer      int           // index in Manager.timers, or -1 if the timer is not running
}

// connState is the state of a conn. Its values are the states of Linux's ib_cm,
// except those that follow an MRA: the manager stays in the state before the
// MRA.
type connState uint8

const (
	connIdle connState = iota
	connREQSent
	connREQReceived
	connREPSent
	connREPReceived
	connEstablished
	connDREQSent
	connDREQReceived
	connTimeWait
	connSIDRReqSent
	connSIDRReqReceived
)

const (
	// responseTimeout is the code of the time within which Linux expects an
	// answer: 4 s.
	responseTimeout = 20
	// serviceTimeout is the code of the time that Linux announces in an
	// MRA: 67 s.
	serviceTimeout = 24
	maxRepeat      = 15 // number of times that a message is repeated, as on Linux
)

// newConn creates the connection of an ID.
func (m *Manager) newConn(id *ID) *conn {
	m.serial++
	c := &conn{m: m, id: id, serial: m.serial, timer: -1, local: id.local.Addr(), peer: id.peer.Addr()}
	for c.localID == 0 || m.conns[c.localID] != nil {
		c.localID = m.random()
	}
	m.conns[c.localID] = c
	return c
}

// ackTimeout computes the acknowledgement timeout of a queue pair from the
// peer's acknowledgement delay and the packet lifetime of the path. All three
// are codes, so that one more means twice the time. The result is the larger of
// the delay and the round trip time, or one more than that if they are close.
func ackTimeout(delay, lifeTime uint8) uint8 {
	path, end := int(lifeTime)+1, int(delay)
	code := max(path, end)
	if code-min(path, end) <= 1 {
		code++
	}
	return uint8(min(code, 31))
}

// send sends a message to the peer.
func (c *conn) send(message wire.Message) {
	data := wire.MAD(message)
	c.post(data[:])
}

// post sends an encoded message to the peer.
func (c *conn) post(data []byte) {
	mad := MAD{Node: c.node, Src: c.local, Dst: c.peer, Data: data}
	if c.node == 0 {
		mad.Service, mad.Routed = c.service, func(node int) { c.asked = node }
	}
	c.m.host.Send(mad)
}

// ask sends a message to the peer, and repeats it until an answer arrives. It
// sets the state of the connection.
func (c *conn) ask(now time.Duration, message wire.Message, state connState) {
	c.state = state
	c.interval, c.repeatLeft = c.timeout, c.repeat
	data := wire.MAD(message)
	c.sent = data[:]
	c.post(c.sent)
	c.wait(now, c.interval)
}

// expire handles the expiry of c's timer.
func (c *conn) expire(now time.Duration) {
	switch {
	case c.state == connTimeWait:
		c.endTimeWait()
	case c.repeatLeft > 0:
		c.repeatLeft--
		c.post(c.sent)
		c.wait(now, c.interval)
	case c.state == connDREQSent:
		c.timeWait(now)
		c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED, Status: -int(syscall.ETIMEDOUT)})
	default:
		c.reset()
		c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_UNREACHABLE, Status: -int(syscall.ETIMEDOUT)})
	}
}

// report queues an event for the program if the ID's state permits it. A
// connection reports DISCONNECTED once. Only TIMEWAIT_EXIT may follow it.
func (c *conn) report(e *Event) {
	id := c.id
	if id == nil {
		return
	}
	want := stateConnect
	if e.Type == librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT {
		want = stateDisconnect
	}
	if id.state != want {
		return
	}
	if e.Type == librdmacm.RDMA_CM_EVENT_DISCONNECTED {
		id.state = stateDisconnect
	}
	id.report(e)
}

// reset ends the exchange, and makes the connection's communication IDs and the
// peer's queue pair number free for other connections.
func (c *conn) reset() {
	c.stop()
	m := c.m
	if c.state == connTimeWait {
		m.timeWaits--
	}
	c.state, c.sent = connIdle, nil
	if m.conns[c.localID] == c {
		delete(m.conns, c.localID)
	}
	if key := c.remoteKey(); m.remoteIDs[key] == c {
		delete(m.remoteIDs, key)
	}
	if key := c.sidrKey(); m.sidr[key] == c {
		delete(m.sidr, key)
	}
	c.forgetQPN()
}

// timeWait ends the connection. Its communication IDs stay in use while
// messages of the connection may still arrive.
func (c *conn) timeWait(now time.Duration) {
	c.m.boundTimeWaits()
	c.m.timeWaits++
	c.state, c.sent = connTimeWait, nil
	c.forgetQPN()
	c.wait(now, wire.LinuxCMTimeout(c.ackTimeout))
}

// end returns the remote end of the connection.
func (c *conn) end() peer         { return peerOf(c.node, c.peer) }
func (c *conn) remoteKey() remote { return remote{c.end(), c.remoteGUID, c.remoteID} }
func (c *conn) sidrKey() sidrKey  { return sidrKey{c.end(), c.remoteID} }
func (c *conn) remoteQP() remote  { return remote{c.end(), c.remoteGUID, c.remoteQPN} }

// forgetQPN makes the number of the peer's queue pair free for another
// connection.
func (c *conn) forgetQPN() {
	if key := c.remoteQP(); c.m.remoteQPNs[key] == c {
		delete(c.m.remoteQPNs, key)
	}
}

// destroy ends the exchange because the ID is being destroyed. If the peer
// takes part in the exchange, destroy sends the message that ends it.
func (c *conn) destroy(now time.Duration) {
	switch c.state {
	case connSIDRReqReceived:
		_ = c.sendSIDRRep(&wire.SIDRRep{Status: wire.SIDRRejected}, nil)
	case connREQSent:
		_ = c.reject(now, wire.RejectTimeout, nil)
	case connREQReceived, connREPSent, connREPReceived:
		_ = c.reject(now, wire.RejectConsumer, nil)
	case connEstablished, connDREQReceived:
		c.disconnect(now)
	}
	c.id = nil
	switch c.state {
	case connDREQSent:
		c.timeWait(now)
	case connTimeWait:
	default:
		c.reset()
	}
}

// peerGone ends the exchange with a peer whose process has ended. The effect is
// as if the peer had sent the message that ends the exchange.
func (c *conn) peerGone(now time.Duration) {
	switch c.state {
	case connREQReceived, connSIDRReqReceived:
		c.reset()
	case connREQSent, connREPSent:
		c.reset()
		c.reportREJ(wire.RejectConsumer, make([]byte, maxREJData))
	case connREPReceived:
		c.timeWait(now)
		c.reportREJ(wire.RejectConsumer, make([]byte, maxREJData))
	case connEstablished, connDREQSent:
		c.timeWait(now)
		c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED})
	case connDREQReceived:
		c.timeWait(now)
	}
}

// ipHeader returns the header that precedes the program's private data in a
// request.
func (id *ID) ipHeader() (b [wire.IPHeaderLen]byte) {
	wire.IPHeader{Src: id.local.Addr(), Dst: id.peer.Addr(), SrcPort: id.local.Port()}.Put(&b)
	return b
}

// sendREQ sends a connection request to the peer.
func (c *conn) sendREQ(now time.Duration, param ConnParam) {
	id := c.id
	c.localQPN = id.qpn
	c.path = *id.path
	c.tid = uint64(c.localID)
	c.service = wire.ServiceID(uint16(id.space), id.peer.Port())
	c.responderResources, c.initiatorDepth = param.ResponderResources, param.InitiatorDepth
	c.retry = min(param.RetryCount, 7)
	c.ackTimeout = c.path.PacketLifeTime + 1
	c.timeout = 2*wire.LinuxCMTimeout(c.path.PacketLifeTime) + wire.LinuxCMTimeout(responseTimeout)
	c.repeat = maxRepeat

	req := &wire.REQ{
		Header:                wire.Header{TID: c.tid, AttrMod: id.localECE.Options},
		LocalCommID:           c.localID,
		VendorID:              id.localECE.VendorId,
		ServiceID:             c.service,
		LocalCAGUID:           c.m.guid,
		LocalQPN:              c.localQPN,
		ResponderResources:    param.ResponderResources,
		InitiatorDepth:        param.InitiatorDepth,
		RemoteResponseTimeout: responseTimeout,
		FlowControl:           param.FlowControl,
		StartingPSN:           id.psn,
		LocalResponseTimeout:  responseTimeout,
		RetryCount:            c.retry,
		PKey:                  wire.DefaultPKey,
		PathMTU:               uint8(c.path.MTU),
		RNRRetryCount:         min(param.RNRRetryCount, 7),
		MaxCMRetries:          maxRepeat,
		SRQ:                   id.srq,
		Primary: wire.Path{
			LocalLID: 0xFFFF, RemoteLID: 0xFFFF,
			LocalGID: c.path.SGID, RemoteGID: c.path.DGID,
			FlowLabel:    c.path.FlowLabel,
			Rate:         c.path.Rate,
			TrafficClass: c.path.TrafficClass,
			HopLimit:     c.path.HopLimit,
			SL:           c.path.SL,
			AckTimeout:   ackTimeout(id.port.AckDelay, c.path.PacketLifeTime),
		},
	}
	switch id.qpType {
	case libibverbs.IBV_QPT_UC:
		req.Transport = 1
	case libibverbs.IBV_QPT_XRC_SEND: // it only requests, and has no receives
		req.Transport, req.ExtendedTransport = 3, 1
		req.ResponderResources, req.RetryCount, req.RNRRetryCount, req.SRQ = 0, 0, 0, false
	}
	header := id.ipHeader()
	copy(req.PrivateData[copy(req.PrivateData[:], header[:]):], param.PrivateData)
	c.ask(now, req, connREQSent)
}

// receiveREQ handles a connection request. If an ID listens for it, receiveREQ
// creates an ID for the connection.
func (m *Manager) receiveREQ(now time.Duration, in MAD, req *wire.REQ) {
	reject := func(reason wire.RejectReason) {
		m.answer(in, &wire.REJ{
			Header: wire.Header{TID: req.TID}, RemoteCommID: req.LocalCommID, Rejected: wire.AnswersREQ, Reason: reason,
		})
	}
	from := remote{in.sender(), req.LocalCAGUID, req.LocalCommID}
	qp := remote{in.sender(), req.LocalCAGUID, req.LocalQPN}
	if c := m.remoteIDs[from]; c != nil {
		c.repeatedREQ(in, req, reject)
		return
	}
	if old := m.remoteQPNs[qp]; old != nil {
		// The peer uses its queue pair for a new connection, so it no longer
		// knows the old one.
		reject(wire.RejectStale)
		if old.state == connEstablished {
			old.disconnect(now)
		}
		return
	}
	asked, ok := m.find(req.ServiceID, in, req.PrivateData[:])
	if !ok {
		reject(wire.RejectServiceID)
		return
	}
	if req.Primary.LocalGID != wire.GIDOf(in.Src) || req.Primary.RemoteGID != wire.GIDOf(in.Dst) {
		reject(wire.RejectGID)
		return
	}
	var qpType libibverbs.QpType
	switch req.Transport {
	case 0:
		qpType = libibverbs.IBV_QPT_RC
	case 1:
		qpType = libibverbs.IBV_QPT_UC
	case 3:
		if req.ExtendedTransport == 1 {
			qpType = libibverbs.IBV_QPT_XRC_RECV
		}
	}
	if asked.listener == nil || asked.listener.qpType != qpType {
		reject(wire.RejectConsumer)
		return
	}
	if !m.host.Answers(in.Dst, in.Src) || !asked.listener.hasRoom(in) {
		return
	}
	id := asked.newID()
	id.responderResources, id.initiatorDepth = req.InitiatorDepth, req.ResponderResources
	id.remoteECE = libibverbs.Ece{VendorId: req.VendorID, Options: req.AttrMod}

	c := m.newConn(id)
	id.conn = c
	c.state = connREQReceived
	c.node, c.local, c.peer = in.Node, in.Dst, in.Src
	c.tid = req.TID
	c.remoteID, c.remoteGUID, c.remoteQPN = req.LocalCommID, req.LocalCAGUID, req.LocalQPN
	c.remotePSN = req.StartingPSN
	c.responderResources, c.initiatorDepth = id.responderResources, id.initiatorDepth
	c.retry, c.rnrRetry = req.RetryCount, req.RNRRetryCount
	c.timeout = peersTime(req.LocalResponseTimeout, maxResponseTimeout)
	c.repeat = req.MaxCMRetries
	life := min(req.Primary.AckTimeout, maxAckTimeout)
	life -= min(life, 1)
	c.ackTimeout = life + 1
	c.path = Path{
		SGID:           req.Primary.RemoteGID,
		DGID:           req.Primary.LocalGID,
		FlowLabel:      req.Primary.FlowLabel,
		TrafficClass:   req.Primary.TrafficClass,
		HopLimit:       req.Primary.HopLimit,
		SL:             req.Primary.SL,
		Rate:           req.Primary.Rate,
		MTU:            libibverbs.Mtu(req.PathMTU),
		PKey:           req.PKey,
		PacketLifeTime: life,
	}
	id.path = &c.path
	m.remoteIDs[from] = c
	m.remoteQPNs[qp] = c

	asked.listener.requested(&Event{
		ID: id,
		Conn: ConnParam{
			PrivateData:        req.PrivateData[wire.IPHeaderLen:],
			ResponderResources: id.responderResources,
			InitiatorDepth:     id.initiatorDepth,
			FlowControl:        req.FlowControl,
			RetryCount:         req.RetryCount,
			RNRRetryCount:      req.RNRRetryCount,
			SRQ:                req.SRQ,
			QPNum:              req.LocalQPN,
		},
		ECE: id.remoteECE,
	})
}

// request has the two ends of a connection or service that a peer requests.
type request struct {
	listener    *ID // ID that listens at the requested address; nil: none
	local, peer netip.AddrPort
	port        Port
}

// errOtherEnds is the error for a request whose IP header, in the private data,
// names other addresses than the packet.
var errOtherEnds = errors.New("the IP header in the request's private data names other addresses than the packet")

// find returns the two ends of a request, and the ID that listens for it. It
// returns false if no ID listens on the port of serviceID on the device that
// got the message. The listener is nil if no ID listens at the requested
// address. It is also nil if the IP header in private, the private data of the
// request, is malformed or names other addresses than the packet.
func (m *Manager) find(serviceID uint64, in MAD, private []byte) (request, bool) {
	space, number, ok := wire.ServicePort(serviceID)
	if !ok {
		return request{}, false
	}
	arrived, err := m.host.Port(in.Dst)
	if err != nil {
		return request{}, false
	}
	var asked request
	header, err := wire.ParseIPHeader(private)
	if err == nil && (wire.GIDOf(header.Src) != wire.GIDOf(in.Src) || wire.GIDOf(header.Dst) != wire.GIDOf(in.Dst)) {
		err = errOtherEnds
	}
	if err == nil {
		asked.local = netip.AddrPortFrom(header.Dst, number)
		asked.peer = netip.AddrPortFrom(header.Src, header.SrcPort)
		asked.port, err = m.host.Port(header.Dst)
	}
	some := false
	for _, id := range m.bound[service{librdmacm.PortSpace(space), number}] {
		if id.state != stateListen || id.port.Device != nil && id.port.Device != arrived.Device {
			continue
		}
		some = true
		if err == nil && id.covers(header.Dst) {
			asked.listener = id
			break
		}
	}
	return asked, some
}

// newID creates the ID of the requested connection.
func (r request) newID() *ID {
	l := r.listener
	id := l.m.newID(l.channel, l.space, l.qpType, l.Context)
	id.state = stateConnect
	id.local, id.peer, id.port = r.local, r.peer, r.port
	return id
}

// requested queues e as a CONNECT_REQUEST for the program.
func (id *ID) requested(e *Event) {
	e.Type, e.Listen, e.owner = librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST, id, id
	id.backlog--
	id.channel.add(e)
}

// repeatedREQ answers a repetition of the request from which c was created.
func (c *conn) repeatedREQ(in MAD, req *wire.REQ, reject func(wire.RejectReason)) {
	switch c.state {
	case connREQReceived:
		c.m.answer(in, &wire.MRA{
			Header:      wire.Header{TID: req.TID},
			LocalCommID: c.localID, RemoteCommID: c.remoteID,
			Received:       wire.AnswersREQ,
			ServiceTimeout: serviceTimeout,
		})
	case connREPSent:
		c.post(c.sent)
	case connTimeWait:
		reject(wire.RejectStale)
	}
}

// sendREP sends the acceptance of a connection request.
func (c *conn) sendREP(now time.Duration, param ConnParam) error {
	if c.state != connREQReceived || len(param.PrivateData) > maxREPData {
		return syscall.EINVAL
	}
	id := c.id
	c.localQPN = id.qpn
	c.responderResources, c.initiatorDepth = param.ResponderResources, param.InitiatorDepth
	rep := &wire.REP{
		Header:      wire.Header{TID: c.tid, AttrMod: id.localECE.Options},
		LocalCommID: c.localID, RemoteCommID: c.remoteID,
		LocalQPN:           c.localQPN,
		VendorID:           id.remoteECE.VendorId,
		StartingPSN:        id.psn,
		ResponderResources: param.ResponderResources,
		InitiatorDepth:     param.InitiatorDepth,
		TargetAckDelay:     id.port.AckDelay,
		FlowControl:        param.FlowControl,
		RNRRetryCount:      min(param.RNRRetryCount, 7),
		SRQ:                id.srq,
		LocalCAGUID:        c.m.guid,
	}
	if id.qpType == libibverbs.IBV_QPT_XRC_RECV { // it requests nothing
		rep.LocalQPN, rep.LocalEECN = 0, c.localQPN
		rep.InitiatorDepth, rep.FlowControl, rep.SRQ = 0, false, true
	}
	copy(rep.PrivateData[:], param.PrivateData)
	c.ask(now, rep, connREPSent)
	return nil
}

// receiveREP handles the acceptance of a connection request.
func (m *Manager) receiveREP(now time.Duration, in MAD, rep *wire.REP) {
	reject := func(reason wire.RejectReason) {
		m.answer(in, &wire.REJ{
			Header:      wire.Header{TID: rep.TID},
			LocalCommID: rep.RemoteCommID, RemoteCommID: rep.LocalCommID,
			Rejected: wire.AnswersREP,
			Reason:   reason,
		})
	}
	c := m.conns[rep.RemoteCommID]
	if c == nil || !c.isOf(in) {
		reject(wire.RejectCommID)
		return
	}
	if c.state != connREQSent {
		if c.remoteID == rep.LocalCommID {
			c.repeatedREP(in, rep)
		}
		return
	}
	from := remote{in.sender(), rep.LocalCAGUID, rep.LocalCommID}
	qpn := rep.LocalQPN
	if c.id.qpType == libibverbs.IBV_QPT_XRC_SEND {
		qpn = rep.LocalEECN
	}
	qp := remote{in.sender(), rep.LocalCAGUID, qpn}
	if m.remoteIDs[from] != nil {
		return
	}
	if old := m.remoteQPNs[qp]; old != nil {
		reject(wire.RejectStale)
		if old.state == connEstablished {
			old.disconnect(now)
		}
		return
	}
	c.stop()
	c.state = connREPReceived
	c.node, c.peer = in.Node, in.Src
	c.remoteID, c.remoteGUID, c.remoteQPN = rep.LocalCommID, rep.LocalCAGUID, qpn
	c.remotePSN = rep.StartingPSN
	c.responderResources, c.initiatorDepth = rep.InitiatorDepth, rep.ResponderResources
	c.rnrRetry = rep.RNRRetryCount
	c.ackTimeout = ackTimeout(min(rep.TargetAckDelay, maxAckTimeout-1), c.ackTimeout-1)
	m.remoteIDs[from] = c
	m.remoteQPNs[qp] = c
	c.id.remoteECE = libibverbs.Ece{VendorId: rep.VendorID, Options: rep.AttrMod}
	c.report(&Event{
		Type: librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE,
		Conn: ConnParam{
			PrivateData:        rep.PrivateData[:],
			ResponderResources: rep.InitiatorDepth,
			InitiatorDepth:     rep.ResponderResources,
			FlowControl:        rep.FlowControl,
			RNRRetryCount:      rep.RNRRetryCount,
			SRQ:                rep.SRQ,
			QPNum:              qpn,
		},
		ECE: c.id.remoteECE,
	})
}

// repeatedREP answers a repetition of the acceptance.
func (c *conn) repeatedREP(in MAD, rep *wire.REP) {
	switch c.state {
	case connREPReceived:
		c.m.answer(in, &wire.MRA{
			Header:      wire.Header{TID: rep.TID},
			LocalCommID: c.localID, RemoteCommID: c.remoteID,
			Received:       wire.AnswersREP,
			ServiceTimeout: serviceTimeout,
		})
	case connEstablished:
		c.m.answer(in, c.rtu())
	}
}

// rtu returns the message that confirms the peer's acceptance.
func (c *conn) rtu() *wire.RTU {
	return &wire.RTU{Header: wire.Header{TID: c.tid}, LocalCommID: c.localID, RemoteCommID: c.remoteID}
}

// sendRTU confirms the peer's acceptance, which establishes the connection.
func (c *conn) sendRTU() error {
	if c.state != connREPReceived {
		return syscall.EINVAL
	}
	c.state = connEstablished
	c.send(c.rtu())
	return nil
}

// establish makes the connection established: the peer has confirmed it, or the
// program knows that the peer is ready. It returns false unless c is waiting
// for the confirmation.
func (c *conn) establish() bool {
	if c.state != connREPSent {
		return false
	}
	c.stop()
	c.state = connEstablished
	c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ESTABLISHED})
	return true
}

// receiveMRA handles a message by which the peer asks for more time to answer.
func (m *Manager) receiveMRA(now time.Duration, in MAD, mra *wire.MRA) {
	remoteID, want := mra.LocalCommID, connREPSent
	if mra.Received == wire.AnswersREQ {
		remoteID, want = 0, connREQSent
	}
	c := m.between(in, mra.RemoteCommID, remoteID)
	if c == nil || c.state != want || c.delayed {
		return
	}
	c.node, c.delayed = in.Node, true
	c.interval = peersTime(mra.ServiceTimeout, maxServiceTimeout) + wire.LinuxCMTimeout(c.ackTimeout)
	c.wait(now, c.interval)
}

// reject rejects the peer's message, or cancels this side's request or
// acceptance.
func (c *conn) reject(now time.Duration, reason wire.RejectReason, private []byte) error {
	if len(private) > maxREJData {
		return syscall.EINVAL
	}
	rej := &wire.REJ{
		Header:      wire.Header{TID: c.tid},
		LocalCommID: c.localID, RemoteCommID: c.remoteID,
		Rejected: wire.AnswersOther,
		Reason:   reason,
	}
	copy(rej.PrivateData[:], private)
	if reason == wire.RejectTimeout {
		// The peer may not know this side's communication ID yet, only its GUID.
		binary.BigEndian.PutUint64(rej.Info[:], c.m.guid)
		rej.InfoLength = 8
	}
	switch c.state {
	case connREQReceived:
		rej.Rejected = wire.AnswersREQ
	case connREPReceived:
		rej.Rejected = wire.AnswersREP
	case connREQSent, connREPSent:
	default:
		return syscall.EINVAL
	}
	c.send(rej)
	if c.state == connREPSent {
		c.timeWait(now)
	} else {
		c.reset()
	}
	return nil
}

// receiveREJ handles a rejection.
func (m *Manager) receiveREJ(now time.Duration, in MAD, rej *wire.REJ) {
	var c *conn
	switch {
	case rej.Reason == wire.RejectTimeout:
		c = m.remoteIDs[remote{in.sender(), binary.BigEndian.Uint64(rej.Info[:]), rej.LocalCommID}]
	case rej.Rejected == wire.AnswersREQ:
		c = m.between(in, rej.RemoteCommID, 0)
	default:
		c = m.between(in, rej.RemoteCommID, rej.LocalCommID)
	}
	if c == nil {
		return
	}
	switch c.state {
	case connREQSent, connREQReceived, connREPSent:
		if rej.Reason == wire.RejectStale {
			c.timeWait(now)
		} else {
			c.reset()
		}
	case connREPReceived, connEstablished, connDREQSent:
		c.timeWait(now)
	default:
		return
	}
	c.reportREJ(rej.Reason, rej.PrivateData[:])
}

// reportREJ reports REJECTED with the peer's reason and private data.
func (c *conn) reportREJ(reason wire.RejectReason, private []byte) {
	c.report(&Event{
		Type:   librdmacm.RDMA_CM_EVENT_REJECTED,
		Status: int(reason),
		Conn:   ConnParam{PrivateData: private},
	})
}

// disconnect ends an established connection, or confirms that the peer has
// ended it.
func (c *conn) disconnect(now time.Duration) {
	switch c.state {
	case connEstablished:
		c.tid = uint64(c.localID)
		c.ask(now, &wire.DREQ{
			Header:      wire.Header{TID: c.tid},
			LocalCommID: c.localID, RemoteCommID: c.remoteID,
			RemoteQPN: c.remoteQPN,
		}, connDREQSent)
	case connDREQReceived:
		c.send(&wire.DREP{Header: wire.Header{TID: c.tid}, LocalCommID: c.localID, RemoteCommID: c.remoteID})
		c.timeWait(now)
	}
}

// receiveDREQ handles a message by which the peer ends the connection.
func (m *Manager) receiveDREQ(now time.Duration, in MAD, dreq *wire.DREQ) {
	agree := func() {
		m.answer(in, &wire.DREP{
			Header:      wire.Header{TID: dreq.TID},
			LocalCommID: dreq.RemoteCommID, RemoteCommID: dreq.LocalCommID,
		})
	}
	c := m.between(in, dreq.RemoteCommID, dreq.LocalCommID)
	if c == nil {
		agree()
		return
	}
	if c.localQPN != dreq.RemoteQPN {
		return
	}
	switch c.state {
	case connREPSent, connEstablished, connDREQSent:
		c.stop()
		c.state = connDREQReceived
		c.forgetQPN() // the peer may reuse the queue pair
		c.tid = dreq.TID
		c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED})
	case connTimeWait:
		agree()
	}
}

// receiveDREP handles the peer's confirmation that the connection has ended.
func (c *conn) receiveDREP(now time.Duration) {
	if c.state == connDREQSent || c.state == connDREQReceived {
		c.timeWait(now)
		c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED})
	}
}
