// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// PeersGone handles the end of a process that had n queue pair numbers, the
// first of which is first. Requests in flight on connections to these queue
// pairs fail when Advance reaches the time at, and so do later requests.
func (d *Device) PeersGone(first, n uint32, at time.Duration) {
	for _, q := range d.QPs() {
		if !q.reliable || q.attr.DestQpNum-first >= n {
			continue
		}
		switch q.attr.QpState {
		case libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
			if !q.orphan && q.peerLasts == 0 {
				q.peerLasts = at
				d.orphans = append(d.orphans, q)
			}
		}
	}
}

// advanceOrphans fails the requests on connections to ended processes, once the
// time has come that was passed to PeersGone. next is the next such time, or 0.
func (d *Device) advanceOrphans() (next time.Duration) {
	d.orphans = slices.DeleteFunc(d.orphans, func(q *QP) bool {
		switch {
		case q.peerLasts == 0: // the queue pair was reset
			return true
		case q.peerLasts <= d.now:
			q.peerLasts = 0
			q.abandon()
			return true
		}
		if next == 0 || q.peerLasts < next {
			next = q.peerLasts
		}
		return false
	})
	return next
}

// Unreachable handles the report of a host that no process there has the port
// open. p is the packet of this device that the report quotes. Unreachable
// ignores the report unless p is unacknowledged. So a forged report has an
// effect only if it names the right queue pair number and PSN, which are
// random.
func (d *Device) Unreachable(p *wire.Packet) {
	if !p.Opcode.Transport().Reliable() || p.Opcode.IsResponse() {
		return
	}
	for _, q := range d.QPs() {
		r := &q.requester
		if q.transport == p.Opcode.Transport() && q.attr.DestQpNum == p.DestQP && q.path.sgid == p.SGID && q.path.dgid == p.DGID &&
			!p.PSN.Before(r.acked) && p.PSN.Before(r.sent) {
			q.abandon()
		}
	}
}

// abandon records that the peer's process has ended. Requests in flight fail as
// if all retries had timed out.
func (q *QP) abandon() {
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
	default:
		return
	}
	q.orphan = true
	r := &q.requester
	for n := r.head; n != r.next; n++ {
		if req := r.request(n); req.packets != 0 && req.status == libibverbs.IBV_WC_SUCCESS {
			q.failHead(libibverbs.IBV_WC_RETRY_EXC_ERR)
			return
		}
	}
	q.device.schedule.add(q)
}
