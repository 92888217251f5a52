// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Congestion control. In a congested network, routers mark packets that declare
// themselves markable (ECN), instead of dropping them. The receiver of a marked
// packet notifies its sender (CNP), and the sender slows down for a while.
// Annex A17 of the specification says that much; it leaves the rate to the
// sender.

// The two ECN bits of the traffic class.
const (
	ecnBits    = 3
	ecnCapable = 2
	ecnMarked  = 3
)

const (
	// notifyInterval is the least time between two notifications of a queue
	// pair.
	notifyInterval = 50 * time.Microsecond
	// slowInterval is the time after a notification within which further ones
	// are ignored, since they are about packets that were sent before it.
	slowInterval = 200 * time.Microsecond
	// easeInterval is the time without a notification after which a queue pair
	// speeds up.
	easeInterval = time.Millisecond

	// The shortest and longest time between two packets of a queue pair that
	// was slowed down. The longest is short enough for a peer that waits for a
	// part of a READ response.
	shortestGap = 8 * time.Microsecond
	longestGap  = time.Millisecond
)

// congestion controls the rate at which a queue pair sends packets with a
// payload, except datagrams.
type congestion struct {
	notified bool          // whether the peer was ever notified
	told     time.Duration // time of the last notification sent

	gap   time.Duration // time between packets, or 0 for no limit
	slow  time.Duration // time of the last notification that had an effect
	eased time.Duration // time of the last change of gap
	next  time.Duration // earliest time of the next packet
	timer timer
}

// notify tells the peer that its packets meet congestion.
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

// receiveNotification handles the peer's notification that q's packets meet
// congestion. It halves the rate.
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

// ease raises q's rate for the time that has passed without a notification.
func (q *QP) ease() {
	c, now := &q.congestion, q.device.now
	for ; c.gap != 0 && now-c.eased >= easeInterval; c.eased += easeInterval {
		if c.gap -= c.gap / 4; c.gap < shortestGap {
			c.gap = 0
		}
	}
}

// held reports whether q must wait before it sends another packet. If so, it
// sets a timer that gives q a turn.
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

// paced records that a packet is sent. A queue pair whose turn comes late may
// catch up by one turn's packets.
func (q *QP) paced() {
	if c := &q.congestion; c.gap != 0 {
		c.next = max(c.next, q.device.now-turnPackets*c.gap) + c.gap
	}
}

// forgetCongestion resets what q has learnt about the way to its peer.
func (q *QP) forgetCongestion() {
	q.device.schedule.timers.remove(&q.congestion.timer)
	q.congestion = congestion{}
}

// markable reports whether q's packets declare themselves markable.
func (q *QP) markable() bool { return q.device.config.ECN && q.kind != libibverbs.IBV_QPT_UD }
