// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// sendSIDRReq requests the queue pair number and Q_Key of a datagram service.
func (c *conn) sendSIDRReq(now time.Duration, private []byte) {
	id := c.id
	c.tid = uint64(c.localID)
	c.service = wire.ServiceID(uint16(id.space), id.peer.Port())
	c.timeout = wire.LinuxCMTimeout(responseTimeout)
	c.repeat = maxRepeat
	req := &wire.SIDRReq{
		Header:    wire.Header{TID: c.tid},
		RequestID: c.localID,
		PKey:      wire.DefaultPKey,
		ServiceID: c.service,
	}
	header := id.ipHeader()
	copy(req.PrivateData[copy(req.PrivateData[:], header[:]):], private)
	c.ask(now, req, connSIDRReqSent)
}

// receiveSIDRReq handles a request for a datagram service. Until the program
// has answered a request, repetitions of it are dropped.
func (m *Manager) receiveSIDRReq(in MAD, req *wire.SIDRReq) {
	if m.sidr[sidrKey{in.sender(), req.RequestID}] != nil {
		return
	}
	refuse := func(status wire.SIDRStatus) {
		m.answer(in, &wire.SIDRRep{
			Header: wire.Header{TID: req.TID}, RequestID: req.RequestID, Status: status, ServiceID: req.ServiceID,
		})
	}
	asked, ok := m.find(req.ServiceID, in, req.PrivateData[:])
	if !ok {
		refuse(wire.SIDRNotSupported)
		return
	}
	if asked.listener == nil || asked.listener.qpType != libibverbs.IBV_QPT_UD {
		refuse(wire.SIDRRejected)
		return
	}
	if !m.host.Answers(in.Dst, in.Src) {
		return
	}
	if !asked.listener.hasRoom(in) {
		refuse(wire.SIDRRejected)
		return
	}
	id := asked.newID()
	c := m.newConn(id)
	id.conn = c
	c.state = connSIDRReqReceived
	c.node, c.local, c.peer = in.Node, in.Dst, in.Src
	c.tid = req.TID
	c.remoteID = req.RequestID
	c.service = req.ServiceID
	m.sidr[c.sidrKey()] = c
	asked.listener.requested(&Event{ID: id, UD: UDParam{PrivateData: req.PrivateData[wire.IPHeaderLen:]}})
}

// acceptSIDR sends the peer the ID's queue pair number and Q_Key.
func (c *conn) acceptSIDR(private []byte) error {
	id := c.id
	id.setDefaultQKey()
	return c.sendSIDRRep(&wire.SIDRRep{
		Header:   wire.Header{AttrMod: id.localECE.Options},
		Status:   wire.SIDRSuccess,
		VendorID: id.remoteECE.VendorId,
		QPN:      id.qpn,
		QKey:     id.qkey,
	}, private)
}

// sendSIDRRep sends the answer to a request, which ends the exchange.
func (c *conn) sendSIDRRep(rep *wire.SIDRRep, private []byte) error {
	if c.state != connSIDRReqReceived || len(private) > maxSIDRRepData {
		return syscall.EINVAL
	}
	rep.TID, rep.RequestID, rep.ServiceID = c.tid, c.remoteID, c.service
	copy(rep.PrivateData[:], private)
	c.send(rep)
	c.reset()
	return nil
}

// receiveSIDRRep handles the answer to a request.
func (m *Manager) receiveSIDRRep(in MAD, rep *wire.SIDRRep) {
	c := m.conns[rep.RequestID]
	if c == nil || c.state != connSIDRReqSent || !c.isOf(in) {
		return
	}
	c.reset()
	id := c.id
	e := &Event{UD: UDParam{PrivateData: rep.PrivateData[:]}}
	switch {
	case rep.Status != wire.SIDRSuccess:
		e.Type, e.Status = librdmacm.RDMA_CM_EVENT_UNREACHABLE, int(rep.Status)
	case rep.QKey == 0 || id.qkey != 0 && id.qkey != rep.QKey:
		e.Type, e.Status = librdmacm.RDMA_CM_EVENT_ADDR_ERROR, -int(syscall.EINVAL)
	default:
		id.qkey = rep.QKey
		e.Type = librdmacm.RDMA_CM_EVENT_ESTABLISHED
		e.UD.AhAttr = id.path.ahAttr(id.port)
		e.UD.QPNum, e.UD.QKey = rep.QPN, rep.QKey
	}
	c.report(e)
}
