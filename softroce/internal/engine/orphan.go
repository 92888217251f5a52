// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// PeersGone tells that a process has ended, whose queue pairs are n from number first on. What reliable connections have under way to them fails when the
// time is at, and so does what they send from then on.
func (d *Device) PeersGone(first, n uint32, at time.Duration) {
	for _, q := range d.QPs() {
		if q.kind != libibverbs.IBV_QPT_RC || q.attr.DestQpNum-first >= n {
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

// advanceOrphans fails queue pairs whose peers are gone for long enough. It returns when there are more, or 0.
func (d *Device) advanceOrphans() (next time.Duration) {
	d.orphans = slices.DeleteFunc(d.orphans, func(q *QP) bool {
		switch {
		case q.peerLasts == 0: // it was reset
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

// Unreachable tells that a packet that was sent has found no process at its destination. It counts only if an answer to the packet is
// missing: the host that tells so has seen the packet then, or has guessed two random numbers.
func (d *Device) Unreachable(p *wire.Packet) {
	if p.Opcode.Transport() != wire.RC || p.Opcode.IsResponse() {
		return
	}
	for _, q := range d.QPs() {
		r := &q.requester
		if q.kind == libibverbs.IBV_QPT_RC && q.attr.DestQpNum == p.DestQP && q.path.sgid == p.SGID && q.path.dgid == p.DGID &&
			!p.PSN.Before(r.acked) && p.PSN.Before(r.sent) {
			q.abandon()
		}
	}
}

// abandon notes that the peer's process has ended. What is under way fails as if all retries had been in vain.
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
