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
// the sender of the marked packet reduces its rate for a while. By how much is
// left to the sender.

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
	// slowInterval is the time after a notification during which a queue
	// pair ignores further ones. They are about packets that it sent before
	// it reduced its rate.
	slowInterval = 200 * time.Microsecond
	// easeInterval is the time without a notification after which a queue
	// pair raises its rate, and again after each further interval.
	easeInterval = time.Millisecond

	// shortestGap and longestGap limit the time between two packets of a
	// queue pair with a reduced rate. longestGap is short enough for a peer
	// that waits for a part of a READ response.
	shortestGap = 8 * time.Microsecond
	longestGap  = time.Millisecond
)

// congestion controls the rate at which a queue pair sends packets with a
// payload, except datagrams.
type congestion struct {
	notified bool          // whether a notification was ever sent
	told     time.Duration // time of the last notification sent

	gap   time.Duration // time between two packets; 0: the rate is not limited
	slow  time.Duration // time of the last received notification that reduced the rate
	eased time.Duration // time of the last change of gap
	next  time.Duration // earliest time of the next packet; only while gap is not 0
	timer timer         // runs while the queue pair waits for next
}

// notify notifies the peer that its packets were marked by a router, at most
// once in notifyInterval.
func (q *QP) notify() {
	d, c := q.device, &q.congestion
	if c.notified && d.now-c.told < notifyInterval {
		return
	}
	c.notified, c.told = true, d.now
	d.counters.NotificationsSent++
	p := q.packet(wire.CNP, 0)
	p.BECN = true
	p.TrafficClass &^= ecnBits
	d.transmit(p)
}

// receiveNotification handles a notification that a router has marked q's
// packets. It halves q's rate.
func (q *QP) receiveNotification() {
	d, c := q.device, &q.congestion
	d.counters.NotificationsReceived++
	if c.gap != 0 && d.now-c.slow < slowInterval {
		return
	}
	q.ease()
	c.gap = min(max(2*c.gap, shortestGap), longestGap)
	c.slow, c.eased = d.now, d.now
}

// ease raises q's rate once for each easeInterval without a notification.
func (q *QP) ease() {
	c, now := &q.congestion, q.device.now
	for ; c.gap != 0 && now-c.eased >= easeInterval; c.eased += easeInterval {
		if c.gap -= c.gap / 4; c.gap < shortestGap {
			c.gap = 0
		}
	}
}

// held reports whether q's rate requires it to wait before the next packet. If
// so, held sets a timer that schedules q again.
func (q *QP) held() bool {
	c := &q.congestion
	if c.gap == 0 {
		return false
	}
	if q.ease(); c.gap == 0 || c.next <= q.device.now {
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
