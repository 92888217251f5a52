// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// shortestRNR is the timer code of an RNR NAK for 10 microseconds.
	shortestRNR = 1
	// messagesPerRNR is the mean number of messages for which a receiver in
	// hostile mode sends one RNR NAK.
	messagesPerRNR = 16
)

// pretendsNotReady decides, at random, whether a receiver in hostile mode sends
// an RNR NAK although a receive is posted. It sends at most one for a message,
// and only to a queue pair of this process that retries. It must be called in
// hostile mode only.
func (q *QP) pretendsNotReady() bool {
	d, r := q.device, &q.responder
	if !q.reliable || r.nak || d.config.Hostile.IntN(messagesPerRNR) != 0 {
		return false
	}
	peer := d.find(q.attr.DestQpNum)
	return peer != nil && peer.attr.RnrRetry > 0
}

// RetryLimits returns the acknowledgement timeout and the number of retries of
// the requester of a reliable connection. p is a packet from or to that
// requester. find returns the queue pair with a number, or nil. ok is false
// unless it finds both queue pairs of the connection.
func RetryLimits(p *wire.Packet, find func(number uint32) *QP) (timeout time.Duration, retries uint8, ok bool) {
	q := find(p.DestQP)
	if q == nil || !q.reliable {
		return 0, 0, false
	}
	peer := find(q.attr.DestQpNum)
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
