// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Retries count what a queue pair had to do again.
type Retries struct {
	PacketsSentAgain  uint64
	Timeouts          uint64 // no answer came in time
	SequenceErrors    uint64 // the peer has missed a packet
	ReceiversNotReady uint64 // the peer had no receive
	MissedAnswers     uint64 // one to a READ or atomic was lost
}

func (r *Retries) add(o Retries) {
	r.PacketsSentAgain += o.PacketsSentAgain
	r.Timeouts += o.Timeouts
	r.SequenceErrors += o.SequenceErrors
	r.ReceiversNotReady += o.ReceiversNotReady
	r.MissedAnswers += o.MissedAnswers
}

// Counters count what a device has sent and received.
type Counters struct {
	PacketsSent, PacketsReceived uint64
	PacketsMarked                uint64 // received, of connections, with the mark of congestion
	NotificationsSent            uint64 // of congestion, to peers
	NotificationsReceived        uint64
	Retries                      Retries // of all queue pairs that there are or were
}

// Counters returns the counters of the device.
func (d *Device) Counters() Counters {
	c := d.counters
	for _, q := range d.qps {
		c.Retries.add(q.retries)
	}
	return c
}

// GUID returns the GUID, also of a device that was removed.
func (d *Device) GUID() uint64 { return d.config.GUID }

// QPs returns the queue pairs in the order of their numbers.
func (d *Device) QPs() []*QP {
	var all []*QP
	for _, n := range slices.Sorted(maps.Keys(d.qps)) {
		all = append(all, d.qps[n])
	}
	return all
}

// Retries returns the counters of the queue pair, from its creation on.
func (q *QP) Retries() Retries { return q.retries }

// Type returns the queue pair's type.
func (q *QP) Type() libibverbs.QpType { return q.kind }

// State returns the queue pair's state.
func (q *QP) State() libibverbs.QpState { return q.attr.QpState }

// Peer returns the address and number of the queue pair that a connected one was told to send to, false if it has
// none.
func (q *QP) Peer() (libibverbs.Gid, uint32, bool) {
	connected := q.kind != libibverbs.IBV_QPT_UD && q.attr.DestQpNum != 0
	return q.attr.AhAttr.Grh.Dgid, q.attr.DestQpNum, connected
}
