// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func (e *end) setState(s libibverbs.QpState) {
	e.t.Helper()
	require.NoError(e.t, e.qp.Modify(&libibverbs.QpAttr{QpState: s}, libibverbs.IBV_QP_STATE))
}

// In the state SQD what was begun is completed, what is posted waits, and
// receiving goes on.
func TestDrain(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<16)
	n.dropping(1, func(p *wire.Packet) bool { return p.Opcode == wire.RCWriteMiddle })
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 1<<15))
	n.step()
	attr := &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_SQD, EnSqdAsyncNotify: 1}
	require.NoError(t, a.qp.Modify(attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY))
	n.step()
	require.Empty(t, a.takeEvents())
	require.Equal(t, uint8(1), a.qp.attr.SqDraining)
	a.post(SendSlot{ID: 2, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
	b.post(SendSlot{ID: 3, Opcode: send}, b.mr.sge(0, 8))
	a.postRecv(4, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, []result{ok(4)}, results(a.recv))
	require.Equal(t, []AsyncEvent{{libibverbs.IBV_EVENT_SQ_DRAINED, a.qp}}, a.takeEvents())
	require.Zero(t, a.qp.attr.SqDraining)
	a.setState(libibverbs.IBV_QPS_RTS)
	n.run()
	require.Equal(t, []result{ok(2)}, results(a.send))
}

func TestCommunicationEstablished(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	c := n.end(b.node, libibverbs.IBV_QPT_RC, nil, 64)
	a.qp.attr.DestQpNum = c.qp.number
	attr := &libibverbs.QpAttr{
		PortNum: 1, QpAccessFlags: remoteAccess, PathMtu: libibverbs.IBV_MTU_1024, DestQpNum: a.qp.number, RqPsn: 1<<24 - 20,
	}
	attr.AhAttr = b.qp.attr.AhAttr
	attr.QpState = libibverbs.IBV_QPS_INIT
	require.NoError(t, c.qp.Modify(attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_PORT|libibverbs.IBV_QP_PKEY_INDEX|libibverbs.IBV_QP_ACCESS_FLAGS))
	c.postRecv(1, c.mr.sge(0, 8)) // in the state INIT
	attr.QpState = libibverbs.IBV_QPS_RTR
	require.NoError(t, c.qp.Modify(attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_AV|libibverbs.IBV_QP_PATH_MTU|libibverbs.IBV_QP_DEST_QPN|
		libibverbs.IBV_QP_RQ_PSN|libibverbs.IBV_QP_MIN_RNR_TIMER|libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC))
	a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: write}.remote(c, 0), a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
	require.Equal(t, []result{ok(1)}, results(c.recv))
	require.Equal(t, []AsyncEvent{{libibverbs.IBV_EVENT_COMM_EST, c.qp}}, b.takeEvents()) // once
}

// A queue pair does not answer if it is not ready to receive, or has another
// type, address or peer.
func TestNoAnswer(t *testing.T) {
	for name, spoil := range map[string]func(n *network, a, b *end){
		"no queue pair":   func(n *network, a, b *end) { a.qp.attr.DestQpNum = 0xFFFFF0 },
		"reset":           func(n *network, a, b *end) { b.setState(libibverbs.IBV_QPS_RESET) },
		"error":           func(n *network, a, b *end) { b.setState(libibverbs.IBV_QPS_ERR) },
		"destroyed":       func(n *network, a, b *end) { require.NoError(n.t, b.qp.Destroy()) },
		"another type":    func(n *network, a, b *end) { b.qp.transport = wire.UC },
		"another address": func(n *network, a, b *end) { b.qp.path.dgid = testGID(9) },
		"own address":     func(n *network, a, b *end) { b.qp.path.sgid = testGID(9) },
		"other packets":   func(n *network, a, b *end) { b.qp.responder.psn = 5; b.qp.responder.nak = true },
		"port down":       func(n *network, a, b *end) { b.SetPort(false) },
		"own port down":   func(n *network, a, b *end) { a.SetPort(false) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			spoil(n, a, b)
			a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
			a.post(SendSlot{ID: 2, Opcode: send}, a.mr.sge(0, 8))
			n.run()
			require.Equal(t, []result{{1, libibverbs.IBV_WC_RETRY_EXC_ERR}, {2, flushed}}, results(a.send))
		})
	}
}

// A queue pair may be destroyed as soon as it has received a message: the ACK
// is sent all the same.
func TestLeaveAfterReceiving(t *testing.T) {
	for name, leave := range map[string]func(b *end){
		"error":   func(b *end) { b.setState(libibverbs.IBV_QPS_ERR) },
		"reset":   func(b *end) { b.setState(libibverbs.IBV_QPS_RESET) },
		"destroy": func(b *end) { require.NoError(b.t, b.qp.Destroy()) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			b.postRecv(1, b.mr.sge(0, 8))
			a.post(SendSlot{ID: 1, Opcode: fetchAdd}.remote(b, 0), a.mr.sge(0, 8))
			a.post(SendSlot{ID: 2, Opcode: send}, a.mr.sge(0, 8))
			for b.recv.ring.Added == 0 {
				n.step()
			}
			leave(b)
			n.run()
			require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
		})
	}
}

// After a reset a queue pair works as a new one does.
func TestResetAndAgain(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
	for range 3 {
		n.dropping(1, isAck)
		b.postRecv(1, b.mr.sge(0, 8192))
		b.postRecv(2, b.mr.sge(0, 8192))
		a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, 5000))
		a.post(SendSlot{ID: 2, Opcode: read}.remote(b, 0), a.mr.sge(0, 5000))
		n.run()
		require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
		require.Equal(t, []result{ok(1)}, results(b.recv))
		a.post(SendSlot{ID: 3, Opcode: send}, a.mr.sge(0, 5000))
		n.step()
		for _, e := range []*end{a, b} {
			e.setState(libibverbs.IBV_QPS_RESET)
			require.Equal(t, Never, e.schedule.timers.next())
		}
		n.run()
		require.Empty(t, results(a.send))
		require.Empty(t, results(b.recv))
		n.join(a, b)
	}
}

func (n *network) sharedPair(receives uint32) (a, b *end, s *SRQ) {
	x, y := n.node(1), n.node(2)
	s = y.srq(y.pd(), receives)
	a, b = n.end(x, libibverbs.IBV_QPT_RC, nil, 1<<14), n.end(y, libibverbs.IBV_QPT_RC, s, 1<<14)
	n.join(a, b)
	return a, b, s
}

// Queue pairs share receives; the one that fails completes the receive that it
// has, and takes no other.
func TestSharedReceives(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, s := n.sharedPair(8)
	a2, b2 := n.end(a.node, libibverbs.IBV_QPT_RC, nil, 1<<14), n.end(b.node, libibverbs.IBV_QPT_RC, s, 1<<14)
	n.join(a2, b2)
	for i := range uint64(3) {
		postRecv(t, s.queue, 1+i, b.mr.sge(int(i)*4096, 4096))
	}
	n.fillRandom(a.mr.memory)
	a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, 3000))
	n.run()
	n.filter = func(p *wire.Packet) bool { return p.Opcode != wire.RCSendLast }
	a.post(SendSlot{ID: 2, Opcode: send}, a.mr.sge(0, 3000))
	n.runFor(time.Millisecond)
	b.setState(libibverbs.IBV_QPS_ERR)
	require.Equal(t, []AsyncEvent{{libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, b.qp}}, b.takeEvents())
	require.Equal(t, []result{ok(1), {2, flushed}}, results(b.recv))
	n.filter = nil
	a2.post(SendSlot{ID: 3, Opcode: send}, a.mr.sge(0, 0))
	n.run()
	require.Equal(t, []result{ok(1), {2, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(a.send))
	require.Equal(t, []result{ok(3)}, results(a2.send))
	require.Equal(t, []result{ok(3)}, results(b2.recv))
	require.Equal(t, a.mr.memory[:3000], b.mr.memory[:3000])
	require.Equal(t, s.queue.Posted, s.queue.Freed)
	require.Empty(t, b.takeEvents())

	a2.qp.attr.RnrRetry, a2.qp.requester.rnrRetries = 1, 1
	a2.post(SendSlot{ID: 4, Opcode: send}, a.mr.sge(0, 0))
	n.run()
	require.Equal(t, []result{{4, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR}}, results(a2.send))
}

// A window of type 2 is bound, used, and invalidated by work requests, in their
// order.
func TestWindowThroughRequests(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	n.fillRandom(a.mr.memory)
	w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
	bind := func(id uint64) uint32 {
		s := bindSlot(w, b.mr, 1000, 3000, libibverbs.IBV_ACCESS_REMOTE_WRITE)
		s.ID = id
		b.post(*s)
		return s.RKey
	}
	key := bind(1)
	n.run()
	into := SendSlot{ID: 1, Opcode: write, RemoteAddr: b.mr.iova + 1000, RKey: key}
	a.post(into, a.mr.sge(0, 3000))
	b.postRecv(2, b.mr.sge(8000, 8))
	a.post(SendSlot{ID: 2, Opcode: sendInv, Imm: key}, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
	require.Equal(t, a.mr.memory[:3000], b.mr.memory[1000:4000])
	c := poll(b.recv.ring)[0]
	require.Equal(t, libibverbs.IBV_WC_WITH_INV, c.WcFlags)
	require.Equal(t, key, *c.InvalidatedRkey())

	key = bind(3)
	b.post(SendSlot{ID: 4, Opcode: libibverbs.IBV_WR_LOCAL_INV, Imm: key})
	key = bind(5)
	n.run()
	require.Equal(t, []result{ok(1), ok(3), ok(4), ok(5)}, results(b.send))
	into.RKey = key
	a.post(into, a.mr.sge(0, 3000))
	into.RemoteAddr++ // past the end of the window
	a.post(into, a.mr.sge(0, 3000))
	n.run()
	require.Equal(t, []result{ok(1), {1, remAccess}}, results(a.send))
}

// A window that goes while a long message uses it ends the message.
func TestWindowTakenDuringMessage(t *testing.T) {
	for name, op := range map[string]libibverbs.WrOpcode{"write": write, "read": read} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<21)
			packets := 0
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode.IsWrite() || p.Opcode.IsReadResponse() {
					if packets++; packets == 20 {
						require.NoError(t, b.mr.Deregister())
					}
				}
				return true
			}
			a.post(SendSlot{ID: 1, Opcode: op}.remote(b, 0), a.mr.sge(0, 1<<21))
			n.run()
			require.Equal(t, []result{{1, remAccess}}, results(a.send))
			require.Equal(t, []AsyncEvent{{access, b.qp}}, b.takeEvents())
			require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.attr.QpState)
		})
	}
}

// Atomics whose packets come twice, or whose answers are lost, are done once.
func TestAtomicsOnce(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.qp.attr.Timeout = 7
	n.duplicate, n.drop, n.reorder = 0.5, 0.2, 0.5
	for i := range uint64(300) {
		a.post(SendSlot{ID: i, Opcode: fetchAdd, CompareAdd: 1}.remote(b, 0), a.mr.sge(0, 8))
		n.run()
		require.Equal(t, []result{ok(i)}, results(a.send))
		require.Equal(t, i, *word(a.mr.memory, 0))
		require.Equal(t, i+1, *word(b.mr.memory, 0))
	}
}

// A completion queue that is too small fails its queue pairs.
func TestCompletionQueueOverrun(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.send.ring.Max = 4
	for i := range uint64(6) {
		a.post(SendSlot{ID: i, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
	}
	n.run()
	require.Equal(t, []AsyncEvent{{libibverbs.IBV_EVENT_CQ_ERR, a.send}}, a.takeEvents())
	require.Equal(t, []result{ok(0), ok(1), ok(2), ok(3)}, results(a.send))
	require.Equal(t, libibverbs.IBV_QPS_ERR, a.qp.attr.QpState)
}

// Advance stops after a while, and takes queue pairs in turn.
func TestTurns(t *testing.T) {
	n := newNetwork(t, 1)
	x, y := n.node(1), n.node(2)
	var ends []*end
	const size = 1 << 15
	for range 3 {
		a, b := n.end(x, libibverbs.IBV_QPT_UC, nil, size), n.end(y, libibverbs.IBV_QPT_UC, nil, size)
		n.join(a, b)
		a.qp.mtu, b.qp.mtu = 256, 256
		for i := range uint64(20) {
			a.post(SendSlot{ID: i, Opcode: write}.remote(b, 0), a.mr.sge(0, size))
		}
		ends = append(ends, a)
	}
	require.Equal(t, time.Duration(0), x.Advance(0)) // now
	require.Len(t, x.sent, turns*turnPackets)
	for _, a := range ends {
		require.InDelta(t, turns*turnPackets/3, a.qp.requester.sent.Diff(1<<24-20), turnPackets)
	}
	n.run()
	for _, a := range ends {
		require.Len(t, results(a.send), 20)
		require.False(t, a.qp.queued)
	}
	require.False(t, x.schedule.busy())
	require.Equal(t, Never, x.Advance(n.now))
}

// Timers come up in their order, whatever was set, moved, stopped and removed.
func TestTimers(t *testing.T) {
	n := newNetwork(t, 1)
	d := n.node(1)
	var h timers
	want := map[*timer]time.Duration{}
	now := time.Duration(0)
	all := make([]*timer, 50)
	for i := range all {
		// A queue pair that rests ends its rest once its timer has come up.
		all[i] = &timer{qp: &QP{device: d.Device}}
	}
	for range 5000 {
		x := all[n.random.IntN(len(all))]
		switch n.random.IntN(4) {
		case 0, 1:
			at := now + 1 + time.Duration(n.random.IntN(100))
			h.set(x, at)
			x.qp.requester.pause = 1
			want[x] = at
		case 2:
			if n.random.IntN(2) == 0 {
				x.stop()
			} else {
				h.remove(x)
			}
			delete(want, x)
		case 3:
			now += time.Duration(n.random.IntN(20))
			h.expire(now)
			for x, at := range want {
				require.Equal(t, at > now, x.qp.requester.pause != 0, "timer of %d at %d", at, now)
				if at <= now {
					delete(want, x)
				}
			}
			for _, at := range want {
				require.LessOrEqual(t, h.next(), at)
			}
		}
	}
	h.expire(now + 200)
	require.Empty(t, h)
	require.Equal(t, Never, h.next())
}
