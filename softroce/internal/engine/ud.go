// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	multicastQPN = 0xFFFFFF
	ownQKey      = 1 << 31 // if a work request's Q_Key has this bit, the queue pair's Q_Key is used
)

// sendDatagram sends the datagram of the oldest request. A datagram that is
// longer than the port's MTU is completed but not sent.
func (q *QP) sendDatagram(req *request) {
	d, r := q.device, &q.requester
	s := q.send.send(r.head)
	ah := d.ahs[s.AH]
	if ah == nil || ah.pd != q.pd {
		q.failHead(libibverbs.IBV_WC_LOC_QP_OP_ERR)
		return
	}
	var way Way
	if req.length <= uint32(q.mtu) {
		p := d.config.Packets.Get()
		p.Opcode = wire.UDSendOnly
		if req.opcode == libibverbs.IBV_WR_SEND_WITH_IMM {
			p.Opcode, p.Imm = wire.UDSendOnlyImm, s.Imm
		}
		p.PSN, p.DestQP, p.SrcQP, p.QKey = req.psn, s.RemoteQPN&0xFFFFFF, q.number, s.RemoteQKey
		if p.QKey&ownQKey != 0 {
			p.QKey = q.attr.Qkey
		}
		p.Solicited = req.flags&libibverbs.IBV_SEND_SOLICITED != 0
		ah.path.address(p)
		if !q.gather(p, req, s, 0, req.length) {
			d.config.Packets.Put(p)
			q.failHead(libibverbs.IBV_WC_LOC_PROT_ERR)
			return
		}
		src, dst, qpn := p.SGID, p.DGID, p.DestQP
		d.transmit(p)
		if out := d.config.Outgoing; out != nil && !out.Idle() {
			way = out.Way(src, dst, qpn)
		}
	}
	r.send++
	r.acked = req.end()
	q.complete(libibverbs.IBV_WC_SUCCESS, way)
}

// receiveDatagram handles a datagram. It drops the datagram if q has no
// receive, if the receive is too short, or if the Q_Key is wrong, since packets
// of a peer must not fail the queue pair. If the memory of the receive cannot
// be written, the queue pair fails, since that is a fault of the program.
func (q *QP) receiveDatagram(p *wire.Packet) {
	n := uint32(p.PayloadLen())
	if p.QKey != q.attr.Qkey || n > uint32(q.mtu) {
		return
	}
	q.noteFirst()
	r := &q.responder
	if !r.receive.taken && !q.takeReceive() {
		return
	}
	d := q.device
	d.header = p.GRH()
	d.source = append(append(d.source[:0], d.header[:]), p.Payload...)
	n += wire.GRHLen
	switch refused := q.fill(d.source, 0, n); refused {
	case nil:
		c := q.receiveCompletion(libibverbs.IBV_WC_SUCCESS)
		c.Opcode, c.ByteLen, c.SrcQp, c.WcFlags = libibverbs.IBV_WC_RECV, n, p.SrcQP, libibverbs.IBV_WC_GRH
		c.Sl = packetType(p)
		c.setHeaders(p)
		q.completeReceive(&c, dependency{solicited: p.Solicited})
	case badReceive:
		q.refuse(refused)
	default: // the receive serves the next datagram
		q.noteOverwritten(0)
	}
}

// packetType returns the service level in the completion of a received
// datagram. RoCE's packets have no service level. Like NICs that the driver
// mlx5 supports, the device reports the type of the packet instead. UCX needs
// that type to find the addresses in the route header.
func packetType(p *wire.Packet) uint8 {
	const udp, ipv6, ipv4 = 1 << 3, 1, 2
	if p.DGID.Is4() {
		return udp | ipv4
	}
	return udp | ipv6
}

// receiveMulticast delivers a datagram to each queue pair of its multicast
// group.
func (d *Device) receiveMulticast(p *wire.Packet) {
	if p.Opcode.Transport() != wire.UD {
		return
	}
	for _, q := range d.groups[p.DGID] {
		switch q.attr.QpState {
		case libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
			q.receiveDatagram(p)
		}
	}
}
