// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// router is one on the way of all packets with a payload. It passes them on in
// turn, marks those that can be marked when some wait, and drops them when more
// do.
type router struct {
	n            *network
	each         time.Duration
	mark, room   int
	free         time.Duration // when it has passed on all
	marked, lost int
	notified     int
}

func (n *network) route(each time.Duration, mark, room int) *router {
	x := &router{n: n, each: each, mark: mark, room: room}
	n.filter = x.pass
	return x
}

func (x *router) pass(p *wire.Packet) bool {
	if p.Opcode == wire.CNP {
		x.notified++
	}
	if len(p.Payload) == 0 {
		return true
	}
	x.free = max(x.free, x.n.now)
	waiting := int((x.free - x.n.now) / x.each)
	if waiting >= x.room {
		x.lost++
		return false
	}
	if waiting >= x.mark && p.TrafficClass&ecnBits != 0 {
		p.TrafficClass |= ecnMarked
		x.marked++
	}
	x.free += x.each
	return true
}

// congested makes a connection whose ends heed congestion, if ecn is set.
func (n *network) congested(kind libibverbs.QpType, bytes int, ecn bool) (a, b *end) {
	a, b = n.pair(kind, bytes)
	for _, e := range []*end{a, b} {
		e.config.ECN = ecn
		e.limit(window)
		e.qp.mtu = 1024
	}
	return a, b
}

// TestCongestion sends more through a router than it passes on. With marks
// almost nothing gets lost, which it does without.
func TestCongestion(t *testing.T) {
	const size, count = 256 << 10, 8
	run := func(t *testing.T, op libibverbs.WrOpcode, ecn bool) (x *router, a, b *end) {
		n := newNetwork(t, 1)
		a, b = n.congested(libibverbs.IBV_QPT_RC, 2*size, ecn)
		n.fillRandom(a.mr.memory[:size])
		n.fillRandom(b.mr.memory[:size])
		x = n.route(20*time.Microsecond, 16, 96)
		for i := range count {
			if op == libibverbs.IBV_WR_RDMA_READ {
				a.post(SendSlot{ID: uint64(i), Opcode: op}.remote(b, 0), a.mr.sge(size, size))
			} else {
				a.post(SendSlot{ID: uint64(i), Opcode: op}.remote(b, size), a.mr.sge(0, size))
			}
		}
		n.run()
		for i, r := range results(a.send) {
			require.Equal(t, ok(uint64(i)), r)
		}
		return x, a, b
	}
	for name, op := range map[string]libibverbs.WrOpcode{"write": libibverbs.IBV_WR_RDMA_WRITE, "read": libibverbs.IBV_WR_RDMA_READ} {
		t.Run(name, func(t *testing.T) {
			without, _, _ := run(t, op, false)
			require.Zero(t, without.marked)
			require.Zero(t, without.notified)
			require.Positive(t, without.lost)

			with, a, b := run(t, op, true)
			require.Positive(t, with.marked)
			require.Less(t, 5*with.lost, without.lost)
			sender, receiver := a, b
			if op == libibverbs.IBV_WR_RDMA_READ {
				sender, receiver = b, a
			}
			require.Equal(t, sender.mr.memory[:size], receiver.mr.memory[size:])
			s, r := sender.Counters(), receiver.Counters()
			require.Equal(t, uint64(with.notified), r.NotificationsSent)
			require.Equal(t, uint64(with.notified), s.NotificationsReceived)
			require.Equal(t, uint64(with.marked), r.PacketsMarked)
			require.Zero(t, s.PacketsMarked)
			require.Less(t, with.notified, with.marked)
		})
	}
}

// TestPace has connections of all kinds send after they were notified.
func TestPace(t *testing.T) {
	const packets = 200
	for name, test := range map[string]struct {
		kind libibverbs.QpType
		op   libibverbs.WrOpcode
	}{
		"write":            {libibverbs.IBV_QPT_RC, libibverbs.IBV_WR_RDMA_WRITE},
		"read":             {libibverbs.IBV_QPT_RC, libibverbs.IBV_WR_RDMA_READ},
		"unreliable write": {libibverbs.IBV_QPT_UC, libibverbs.IBV_WR_RDMA_WRITE},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.congested(test.kind, packets*1024, true)
			sender := a
			if test.op == libibverbs.IBV_WR_RDMA_READ {
				sender = b
			}
			for range 3 {
				n.runFor(ignoreInterval)
				sender.Advance(n.now)
				sender.qp.receiveNotification()
			}
			began, last, sent := n.now, n.now, 0
			n.filter = func(p *wire.Packet) bool {
				if len(p.Payload) == 0 {
					return true
				}
				sent++
				last = n.now
				sender.qp.congestion.changedAt = n.now // so that it stays as it is
				early := max(0, sent-1-turnPackets) * int(4*shortestGap)
				require.GreaterOrEqual(t, n.now-began, time.Duration(early), sent)
				return true
			}
			a.post(SendSlot{ID: 1, Opcode: test.op}.remote(b, 0), a.mr.sge(0, packets*1024))
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, packets, sent)
			require.Less(t, last-began, (packets+10)*4*shortestGap)
		})
	}
}

// TestNoTimeoutOfSlowSender has a sender whose packets follow each other so
// slowly that the timeout would expire before it asks for an acknowledgement,
// if it asked as seldom as one that sends fast. Nothing is sent again.
func TestNoTimeoutOfSlowSender(t *testing.T) {
	const packets = 200
	for name, tt := range map[string]struct {
		window  int
		timeout uint8
	}{
		"short timeout": {window, 10},
		"usual timeout": {2 * window, 14},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.congested(libibverbs.IBV_QPT_RC, packets*1024, true)
			a.limit(tt.window)
			a.qp.attr.Timeout = tt.timeout
			n.fillRandom(a.mr.memory)
			n.filter = func(*wire.Packet) bool {
				a.qp.congestion.gap, a.qp.congestion.changedAt = longestGap, n.now // so that it stays as slow
				return true
			}
			a.qp.congestion.gap = longestGap
			a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, packets*1024))
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, a.mr.memory, b.mr.memory)
			require.Zero(t, a.qp.retries)
		})
	}
}

// TestNotifications has all packets marked. The peer is notified no more than
// once in an interval, by packets as cards send them.
func TestNotifications(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.congested(libibverbs.IBV_QPT_RC, 1<<20, true)
	var last time.Duration
	count := 0
	n.filter = func(p *wire.Packet) bool {
		if p.Opcode != wire.CNP {
			require.Equal(t, uint8(ecnCapable), p.TrafficClass&ecnBits, p.Opcode)
			if p.SGID == a.gids[0].GID {
				p.TrafficClass |= ecnMarked
			}
			return true
		}
		require.True(t, count == 0 || n.now-last >= notifyInterval)
		count, last = count+1, n.now
		require.Equal(t, wire.Packet{
			SGID: b.gids[0].GID, DGID: a.gids[0].GID, TrafficClass: p.TrafficClass &^ ecnBits, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
			Opcode: wire.CNP, BECN: true, PKey: defaultPKey, DestQP: a.qp.number, Payload: p.Payload,
		}, *p)
		return true
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 1<<20))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, longestGap, a.qp.congestion.gap)
	require.Greater(t, count, 100)
}

// TestNotificationsOfOthers sends notifications that are not for a connection,
// or not from its peer.
func TestNotificationsOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		kind   libibverbs.QpType
		off    bool
		change func(p *wire.Packet)
		heeded bool
	}{
		"right":                   {kind: libibverbs.IBV_QPT_RC, heeded: true},
		"unreliable":              {kind: libibverbs.IBV_QPT_UC, heeded: true},
		"from another address":    {kind: libibverbs.IBV_QPT_RC, change: func(p *wire.Packet) { p.SGID[15]++ }},
		"to an unused number":     {kind: libibverbs.IBV_QPT_RC, change: func(p *wire.Packet) { p.DestQP++ }},
		"to another partition":    {kind: libibverbs.IBV_QPT_RC, change: func(p *wire.Packet) { p.PKey = 1 }},
		"where there are no bits": {kind: libibverbs.IBV_QPT_RC, off: true},
		"to datagrams":            {kind: libibverbs.IBV_QPT_UD},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			var a, b *end
			if test.kind == libibverbs.IBV_QPT_UD {
				a, b = n.end(n.node(1), test.kind, nil, 64), n.end(n.node(2), test.kind, nil, 64)
				a.datagrams(a.qp, 1)
			} else {
				a, b = n.pair(test.kind, 64)
			}
			a.config.ECN = !test.off
			p := &wire.Packet{
				SGID: b.gids[0].GID, DGID: a.gids[0].GID, Opcode: wire.CNP, BECN: true, PKey: defaultPKey, DestQP: a.qp.number, TrafficClass: ecnMarked,
			}
			if test.change != nil {
				test.change(p)
			}
			a.Receive(p)
			require.Equal(t, test.heeded, a.qp.congestion.gap != 0)
			require.Equal(t, test.heeded, a.Counters().NotificationsReceived == 1)
		})
	}
}

// TestRecovery notifies a sender and leaves it alone. It sends with half of the
// rate for each notification, and as fast as it can after a while.
func TestRecovery(t *testing.T) {
	n := newNetwork(t, 1)
	a, _ := n.congested(libibverbs.IBV_QPT_RC, 64, true)
	for i := range 12 {
		a.qp.receiveNotification()
		a.qp.receiveNotification() // of the same
		require.Equal(t, min(shortestGap<<i, longestGap), a.qp.congestion.gap)
		n.runFor(ignoreInterval)
		a.Advance(n.now)
	}
	last := a.qp.congestion.gap
	steps := 0
	for ; a.qp.held() || a.qp.congestion.gap != 0; steps++ {
		n.runFor(raiseInterval)
		a.Advance(n.now)
		a.qp.paced()
		a.qp.raiseRate()
		require.Less(t, a.qp.congestion.gap, last)
		last = a.qp.congestion.gap
	}
	require.Equal(t, 17, steps)

	a.qp.receiveNotification()
	n.runFor(time.Hour)
	a.Advance(n.now)
	require.False(t, a.qp.held())
	require.Zero(t, a.qp.congestion.gap)
	a.qp.receiveNotification()
	require.Equal(t, shortestGap, a.qp.congestion.gap)
	a.qp.fail()
	require.Zero(t, a.qp.congestion)
}
