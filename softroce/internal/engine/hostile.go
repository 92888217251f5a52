// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// shortestRNR is the code of 10 us.
	shortestRNR = 1
	// stall is the mean number of messages per RNR NAK of a hostile receiver.
	stall = 16
)

// stalls reports whether a hostile receiver answers that it is not ready. It
// does so at most once for a message, and only to a peer on this device that
// retries.
func (q *QP) stalls() bool {
	d, r := q.device, &q.responder
	if d.config.Hostile == nil || q.kind != libibverbs.IBV_QPT_RC || r.nak || d.config.Hostile.IntN(stall) != 0 {
		return false
	}
	peer := d.qps[q.attr.DestQpNum]
	return peer != nil && peer.attr.RnrRetry > 0
}

// Patience returns how long the requester of a reliable connection waits for
// answers and how often it retries. p is a packet from or to that requester. ok
// is false if the device does not have both ends.
func (d *Device) Patience(p *wire.Packet) (timeout time.Duration, retries uint8, ok bool) {
	q := d.qps[p.DestQP]
	if q == nil || q.kind != libibverbs.IBV_QPT_RC {
		return 0, 0, false
	}
	peer := d.qps[q.attr.DestQpNum]
	if peer == nil {
		return 0, 0, false
	}
	if !p.Opcode.IsResponse() {
		q = peer
	}
	if timeout = wire.AckTimeout(q.attr.Timeout); timeout == 0 {
		timeout = Never
	}
	return timeout, q.attr.RetryCnt, true
}
