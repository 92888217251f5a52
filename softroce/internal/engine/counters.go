// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"
	"sort"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Retries counts retransmissions of a queue pair and their causes.
type Retries struct {
	PacketsSentAgain  uint64 // retransmitted packets
	Timeouts          uint64 // expired acknowledgement timeouts
	SequenceErrors    uint64 // lost packets that the peer reported
	ReceiversNotReady uint64 // messages for which the peer had no receive posted
	MissedAnswers     uint64 // lost responses to READs and atomics
}

// add adds the counters in o.
func (r *Retries) add(o Retries) {
	r.PacketsSentAgain += o.PacketsSentAgain
	r.Timeouts += o.Timeouts
	r.SequenceErrors += o.SequenceErrors
	r.ReceiversNotReady += o.ReceiversNotReady
	r.MissedAnswers += o.MissedAnswers
}

// Counters counts the packets of a device, and what happened to them.
type Counters struct {
	PacketsSent, PacketsReceived uint64
	PacketsMarked                uint64  // received packets of connections that a router has marked
	NotificationsSent            uint64  // congestion notifications sent to peers
	NotificationsReceived        uint64  // congestion notifications from peers
	Retries                      Retries // sum over all queue pairs, including destroyed ones
}

// Counters returns the counters of the device.
func (d *Device) Counters() Counters {
	c := d.counters
	for _, q := range d.qps {
		c.Retries.add(q.retries)
	}
	return c
}

// GUID returns the device's GUID. It works even after Remove.
func (d *Device) GUID() uint64 { return d.config.GUID }

// QPs returns the queue pairs in the order of their numbers.
func (d *Device) QPs() []*QP {
	all := slices.Collect(maps.Values(d.qps))
	sort.Slice(all, func(i, j int) bool { return all[i].number < all[j].number })
	return all
}

// Retries returns the counters of the queue pair since its creation.
func (q *QP) Retries() Retries { return q.retries }

// Type returns the queue pair's type.
func (q *QP) Type() libibverbs.QpType { return q.kind }

// State returns the queue pair's state.
func (q *QP) State() libibverbs.QpState { return q.attr.QpState }

// Peer returns the GID and the queue pair number of the peer of a connected
// queue pair. It returns false if the queue pair has no peer.
func (q *QP) Peer() (libibverbs.Gid, uint32, bool) {
	connected := q.kind != libibverbs.IBV_QPT_UD && q.attr.DestQpNum != 0
	return q.attr.AhAttr.Grh.Dgid, q.attr.DestQpNum, connected
}
