// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const (
	minRate = 1000           // smallest limit of a queue pair's rate, in kilobits per second
	maxRate = math.MaxUint32 // largest one
	// defaultBurst is the number of bytes that a queue pair with a limited
	// rate may send at once, unless the program chooses another one.
	defaultBurst = 16 << 10
	// headerBytes is counted for each packet in addition to its payload.
	headerBytes = 74
)

// rateLimit limits the rate at which a connected queue pair sends its requests.
// The answers to the peer's requests are not limited.
type rateLimit struct {
	rate  uint32        // kilobits per second; 0: no limit
	burst time.Duration // time that a burst takes at the rate
	next  time.Duration // earliest time of the next packet
	timer timer         // runs while the queue pair waits for next
}

// pacingCaps returns what the device says of limits of rates.
func (l *Limits) pacingCaps() libibverbs.PacketPacingCaps {
	if !l.Pacing {
		return libibverbs.PacketPacingCaps{}
	}
	return libibverbs.PacketPacingCaps{
		QpRateLimitMin: minRate, QpRateLimitMax: maxRate, SupportedQpts: 1<<libibverbs.IBV_QPT_RC | 1<<libibverbs.IBV_QPT_UC,
	}
}

// LimitRate limits the rate at which the queue pair sends requests to
// a.RateLimit kilobits per second, until it is reset; 0 removes the limit.
// a.MaxBurstSz is the burst in bytes; 0 means defaultBurst. LimitRate fails
// with EOPNOTSUPP if the device cannot limit the rates of this type of queue
// pair. It fails with EINVAL for rates below minRate, for unknown attributes,
// and in the reset, SQE and error states.
func (q *QP) LimitRate(a *libibverbs.QpRateLimitAttr) error {
	d := q.device
	if err := d.check(); err != nil {
		return err
	}
	if !d.limits.Pacing || q.kind != libibverbs.IBV_QPT_RC && q.kind != libibverbs.IBV_QPT_UC {
		return syscall.EOPNOTSUPP
	}
	switch q.attr.QpState {
	case libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD:
	default:
		return syscall.EINVAL
	}
	if a.CompMask != 0 || a.RateLimit != 0 && a.RateLimit < minRate {
		return syscall.EINVAL
	}
	q.forgetRate()
	l := &q.limit
	l.rate = a.RateLimit
	burst := a.MaxBurstSz
	if burst == 0 {
		burst = defaultBurst
	}
	l.burst = l.duration(uint64(burst))
	l.next = d.now
	d.schedule.add(q)
	return nil
}

// duration returns the time that bytes take at the rate.
func (l *rateLimit) duration(bytes uint64) time.Duration {
	if l.rate == 0 {
		return 0
	}
	return time.Duration(bytes * 8 * uint64(time.Millisecond) / uint64(l.rate))
}

// limited reports whether q must wait before it sends the next packet of a
// request, because of its limit. If so, limited sets a timer that schedules q
// again.
func (q *QP) limited() bool {
	l := &q.limit
	if l.rate == 0 || l.next <= q.device.now {
		return false
	}
	l.timer.qp = q
	q.device.schedule.timers.set(&l.timer, l.next)
	return true
}

// spend records that a packet with n bytes of payload is being sent, and
// computes the time of the next one.
func (q *QP) spend(n int) {
	if l := &q.limit; l.rate != 0 {
		l.next = max(l.next, q.device.now-l.burst) + l.duration(uint64(n+headerBytes))
	}
}

// forgetRate ends the limit of q's rate.
func (q *QP) forgetRate() {
	q.device.schedule.timers.remove(&q.limit.timer)
	q.limit = rateLimit{}
}
