// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Congestion control follows Annex A17 of the specification. In a congested
// network, routers mark packets (ECN) instead of dropping them, if the packets
// permit it. The receiver of a marked packet sends a notification (CNP), and
// the sender of the marked packet reduces its rate for a while. The
// specification leaves it to the sender by how much.

// The two ECN bits of the traffic class.
const (
	ecnBits    = 3
	ecnCapable = 2
	ecnMarked  = 3
)

const (
	// notifyInterval is the least time between two notifications that a
	// queue pair sends.
	notifyInterval = 50 * time.Microsecond
	// ignoreInterval is the time after a notification during which a queue
	// pair ignores further ones. They are about packets that it sent before
	// it reduced its rate.
	ignoreInterval = 200 * time.Microsecond
	// raiseInterval is the time without a notification after which a queue
	// pair raises its rate. It raises the rate again after each further
	// interval.
	raiseInterval = time.Millisecond

	// shortestGap and longestGap limit the time between two packets of a
	// queue pair with a reduced rate. longestGap is short compared with the
	// usual timeout of a peer that waits for packets of a READ response.
	shortestGap = 8 * time.Microsecond
	longestGap  = time.Millisecond
)

// congestion controls the rate at which a queue pair sends packets with a
// payload, except datagrams.
type congestion struct {
	notified   bool          // whether a notification was ever sent
	notifiedAt time.Duration // time of the last notification sent

	gap       time.Duration // time between two packets; 0: the rate is not limited
	reducedAt time.Duration // time of the last received notification that reduced the rate
	changedAt time.Duration // time of the last change of gap
	next      time.Duration // earliest time of the next packet; only while gap is not 0
	timer     timer         // runs while the queue pair waits for next
}

// notify notifies the peer that its packets were marked by a router, at most
// once in notifyInterval.
func (q *QP) notify() {
	d, c := q.device, &q.congestion
	if c.notified && d.now-c.notifiedAt < notifyInterval {
		return
	}
	c.notified, c.notifiedAt = true, d.now
	d.counters.NotificationsSent++
	p := q.packet(0, 0)
	p.Opcode = wire.CNP
	p.BECN = true
	p.TrafficClass &^= ecnBits
	d.transmit(p)
}

// receiveNotification handles a notification that a router has marked q's
// packets. It halves q's rate.
func (q *QP) receiveNotification() {
	d, c := q.device, &q.congestion
	d.counters.NotificationsReceived++
	if c.gap != 0 && d.now-c.reducedAt < ignoreInterval {
		return
	}
	q.raiseRate()
	c.gap = min(max(2*c.gap, shortestGap), longestGap)
	c.reducedAt, c.changedAt = d.now, d.now
}

// raiseRate raises q's rate once for each raiseInterval without a notification.
func (q *QP) raiseRate() {
	c, now := &q.congestion, q.device.now
	for ; c.gap != 0 && now-c.changedAt >= raiseInterval; c.changedAt += raiseInterval {
		if c.gap -= c.gap / 4; c.gap < shortestGap {
			c.gap = 0
		}
	}
}

// held reports whether q must wait before it sends the next packet, because its
// rate is reduced. If so, held sets a timer that schedules q again.
func (q *QP) held() bool {
	c := &q.congestion
	if c.gap == 0 {
		return false
	}
	if q.raiseRate(); c.gap == 0 || c.next <= q.device.now {
		return false
	}
	c.timer.qp = q
	q.device.schedule.timers.set(&c.timer, c.next)
	return true
}

// paced records that a packet is being sent, and computes the time of the next
// one. A queue pair that was scheduled late may catch up by turnPackets
// packets.
func (q *QP) paced() {
	if c := &q.congestion; c.gap != 0 {
		c.next = max(c.next, q.device.now-turnPackets*c.gap) + c.gap
	}
}

// forgetCongestion lifts the limit of q's rate.
func (q *QP) forgetCongestion() {
	q.device.schedule.timers.remove(&q.congestion.timer)
	q.congestion = congestion{}
}

// markable reports whether q's packets permit routers to mark them.
func (q *QP) markable() bool { return q.device.config.ECN && q.kind != libibverbs.IBV_QPT_UD }
