// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Where a network is congested, its routers mark packets that say they can be marked (ECN), instead of dropping them. Who gets a
// marked one notifies its sender (CNP), which sends more slowly for a while. Annex A17 of the specification says so much; how
// slowly is left to the sender.

// The two bits of ECN in the traffic class.
const (
	ecnBits    = 3
	ecnCapable = 2
	ecnMarked  = 3
)

const (
	// notifyInterval is what is between two notifications of a queue pair at least.
	notifyInterval = 50 * time.Microsecond
	// slowInterval is how long a notification stands for those that follow it: they are about what was sent before.
	slowInterval = 200 * time.Microsecond
	// easeInterval is after how long without a notification a queue pair sends faster again.
	easeInterval = time.Millisecond

	// The shortest and longest time from one packet to the next of a queue pair that sends slowly. The longest is short
	// enough for a peer that waits for a part of the answer to a READ.
	shortestGap = 8 * time.Microsecond
	longestGap  = time.Millisecond
)

// congestion is how fast a queue pair sends what has a payload, but for datagrams.
type congestion struct {
	notified bool // the peer was
	told     time.Duration

	gap   time.Duration // from packet to packet; 0: none
	slow  time.Duration // when a notification was last heeded
	eased time.Duration // when gap was last changed
	next  time.Duration // when there may be another packet
	timer timer
}

// notify tells the peer that what it sends meets congestion.
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

// receiveNotification is told that what q sends meets congestion. It halves the rate.
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

// ease lets q send faster for the time that has passed without a notification.
func (q *QP) ease() {
	c, now := &q.congestion, q.device.now
	for ; c.gap != 0 && now-c.eased >= easeInterval; c.eased += easeInterval {
		if c.gap -= c.gap / 4; c.gap < shortestGap {
			c.gap = 0
		}
	}
}

// held reports whether q has to wait before it sends another packet. It has a turn then.
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

// paced notes that a packet is sent. A queue pair whose turn comes late makes up for a turn.
func (q *QP) paced() {
	if c := &q.congestion; c.gap != 0 {
		c.next = max(c.next, q.device.now-turnPackets*c.gap) + c.gap
	}
}

// forgetCongestion ends what q has learnt about the way to its peer.
func (q *QP) forgetCongestion() {
	q.device.schedule.timers.remove(&q.congestion.timer)
	q.congestion = congestion{}
}

// markable reports whether the packets of q say that they can be marked.
func (q *QP) markable() bool { return q.device.config.ECN && q.kind != libibverbs.IBV_QPT_UD }
