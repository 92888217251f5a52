// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// gate is the ways out of a process. Packets leave on all of them while it is
// open.
type gate struct {
	open    bool
	flushes int
	ways    map[uint32]*gateWay // by the number of the queue pair
}

func (g *gate) Flush()     { g.flushes++ }
func (g *gate) Idle() bool { return g.open }

func (g *gate) Way(_, _ wire.GID, qpn uint32) Way {
	w := g.ways[qpn]
	if w == nil {
		w = &gateWay{gate: g}
		g.ways[qpn] = w
	}
	return w
}

// gateWay is a way on which packets leave while it is open, or the gate is.
type gateWay struct {
	gate         *gate
	open, gaveUp bool
	slow         bool // packets leave, but not those that are waited for
	closed       int  // number of calls of Left after which packets leave
}

func (w *gateWay) Mark() uint64 { return 1 }
func (w *gateWay) GiveUp()      { w.gaveUp = true }

func (w *gateWay) Left(uint64) bool {
	if w.closed > 0 {
		w.closed--
		return false
	}
	return w.gate.open || w.open || w.gaveUp && !w.slow
}

// to returns the way to an end.
func (g *gate) to(e *end) *gateWay { return g.Way(wire.GID{}, wire.GID{}, e.qp.number).(*gateWay) }

// gated makes a pair of which b's packets go through a gate.
func (n *network) gated(kind libibverbs.QpType, size int) (a, b *end, g *gate) {
	for len(n.nodes) < 2 {
		n.node(byte(1 + len(n.nodes)))
	}
	g = &gate{ways: map[uint32]*gateWay{}}
	n.nodes[1].config.Outgoing = g
	a, b = n.pair(kind, size)
	return a, b, g
}

// A program sees what a peer has done when the answer has left the process, not
// before. What a peer has written is seen from the end.
func TestAnswersLeaveFirst(t *testing.T) {
	const size = 3000 // several packets, the last of which is not full
	for name, tt := range map[string]struct {
		slot   SendSlot
		recv   bool
		memory bool
	}{
		"send":           {slot: SendSlot{Opcode: libibverbs.IBV_WR_SEND}, recv: true},
		"write":          {slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, memory: true},
		"write with imm": {slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}, recv: true, memory: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, g := n.gated(libibverbs.IBV_QPT_RC, size)
			n.fillRandom(a.mr.memory)
			last := size - 1
			b.mr.memory[last] = ^a.mr.memory[last]
			before := bytes.Clone(b.mr.memory[size-stagedBytes:])
			if tt.recv {
				b.postRecv(7, b.mr.sge(0, size))
			}
			a.post(tt.slot.remote(b, 0), a.mr.sge(0, size))
			b.Publish()
			n.run()
			require.Equal(t, b.now+stagedTimeout, b.Publish(), "when it has waited for too long")
			require.Empty(t, poll(b.recv.ring))
			if tt.memory {
				require.Equal(t, a.mr.memory[:size-stagedBytes], b.mr.memory[:size-stagedBytes])
				require.Equal(t, before, b.mr.memory[size-stagedBytes:])
			}
			require.Equal(t, []result{ok(0)}, results(a.send), "the answer is on its way")
			g.open = true
			require.Equal(t, Never, b.Publish())
			require.Equal(t, a.mr.memory, b.mr.memory)
			if tt.recv {
				require.Equal(t, []result{ok(7)}, results(b.recv))
			}
		})
	}
}

// Whether or not the packets can leave, what an answer has to wait for in the
// device keeps the completion back, for its own queue pair's sake, but not for
// ever.
func TestCompletionAwaitsAnswer(t *testing.T) {
	for name, mended := range map[string]bool{"room": true, "no room": false} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, g := n.gated(libibverbs.IBV_QPT_RC, 4096)
			g.open = true
			full := true
			b.config.Room = func(uint32) bool { return !full }
			b.postRecv(7, b.mr.sge(0, 8))
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 4096))
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
			n.runFor(stagedTimeout / 2)
			next := b.Publish()
			require.Greater(t, next, b.now)
			require.Empty(t, poll(b.recv.ring), "the ACK comes after the answer to the READ")
			if mended {
				full = false
				b.Resume()
				n.run()
				require.Equal(t, Never, b.Publish())
			} else {
				n.now = next
				b.Advance(n.now)
				b.Publish()
			}
			require.Equal(t, []result{ok(7)}, results(b.recv))
		})
	}
}

// What is staged is shown after some time although a packet has not left, and
// the next one does not wait for the same way.
func TestGiveUp(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
	send := func(id uint64) {
		b.postRecv(id, b.mr.sge(0, 8))
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		n.run()
	}
	send(1)
	next := b.Publish()
	require.Empty(t, poll(b.recv.ring))
	n.now = next
	b.Advance(n.now)
	require.Equal(t, Never, b.Publish())
	require.True(t, g.to(a).gaveUp)
	send(2)
	require.Equal(t, Never, b.Publish())
	require.Equal(t, []result{ok(1), ok(2)}, results(b.recv))
}

// What one process takes no answer of keeps back what this one has done for it,
// and nothing else.
func TestWaysAreApart(t *testing.T) {
	const size = 8
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 2*size)
	a2, b2 := n.end(n.nodes[0], libibverbs.IBV_QPT_RC, nil, 2*size), n.end(n.nodes[1], libibverbs.IBV_QPT_RC, nil, 2*size)
	n.join(a2, b2)
	g.to(a2).open = true
	for i, from := range []*end{a, a2} {
		to := []*end{b, b2}[i]
		n.fillRandom(from.mr.memory)
		to.postRecv(7, to.mr.sge(size, size))
		from.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(to, 0), from.mr.sge(0, size))
		from.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, from.mr.sge(size, size))
	}
	n.run()
	next := b.Publish()
	require.Equal(t, b.now+stagedTimeout, next)
	require.Equal(t, []result{ok(7)}, results(b2.recv))
	require.Equal(t, a2.mr.memory, b2.mr.memory)
	require.Empty(t, results(b.recv))
	require.NotEqual(t, a.mr.memory[:size], b.mr.memory[:size])
	n.now = next
	b.Advance(n.now)
	require.Equal(t, Never, b.Publish())
	require.Equal(t, []result{ok(7)}, results(b.recv))
	require.Equal(t, a.mr.memory, b.mr.memory)
	require.True(t, g.to(a).gaveUp)
	require.False(t, g.to(a2).gaveUp)
}

// What was answered at different times on a way that goes on slowly waits for
// one patience each, at the same time.
func TestSlowWay(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
	g.to(a).slow = true
	for id := range uint64(3) {
		b.postRecv(id, b.mr.sge(0, 8))
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		n.runFor(stagedTimeout / 4)
		b.Advance(n.now)
		b.Publish()
	}
	for id := range uint64(3) {
		require.Empty(t, poll(b.recv.ring))
		n.now = b.Publish()
		b.Advance(n.now)
		b.Publish()
		require.Equal(t, []result{ok(id)}, results(b.recv))
	}
}

// A message that is not acknowledged is complete when it has left the process.
func TestSendsLeave(t *testing.T) {
	for name, kind := range map[string]libibverbs.QpType{"UC": libibverbs.IBV_QPT_UC, "UD": libibverbs.IBV_QPT_UD} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			slot := SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}
			var a, b *end
			g := &gate{ways: map[uint32]*gateWay{}}
			if kind == libibverbs.IBV_QPT_UC {
				a, b, g = n.gated(kind, 64)
			} else {
				a, b = n.datagramPair()
				b.config.Outgoing = g
				slot = slot.to(b, a)
			}
			b.post(slot, b.mr.sge(0, 8))
			n.run()
			require.Equal(t, b.now+stagedTimeout, b.Publish())
			require.Empty(t, poll(b.send.ring))
			g.to(a).open = true
			require.Equal(t, Never, b.Publish())
			require.Equal(t, []result{ok(1)}, results(b.send))
		})
	}
}

// An event that comes of what the peer has done is there when the answer has
// left the process.
func TestAnswersLeaveBeforeEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		event libibverbs.EventType
		act   func(a, b *end)
		reset bool
	}{
		"access": {libibverbs.IBV_EVENT_QP_ACCESS_ERR, func(a, b *end) {
			s := SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0)
			s.RKey++
			a.post(s, a.mr.sge(0, 8))
		}, false},
		"request": {libibverbs.IBV_EVENT_QP_REQ_ERR, func(a, b *end) {
			b.postRecv(0, b.mr.sge(0, 1))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		}, false},
		"reset": {libibverbs.IBV_EVENT_QP_REQ_ERR, func(a, b *end) {
			b.postRecv(0, b.mr.sge(0, 1))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
			b.Publish()
			b.takeEvents()
			tt.act(a, b)
			n.run()
			require.Equal(t, b.now+stagedTimeout, b.Publish())
			b.requireEvents()
			require.Len(t, results(a.send), 1, "the answer is on its way")
			if tt.reset {
				require.NoError(t, b.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RESET}, libibverbs.IBV_QP_STATE))
			}
			g.to(a).open = true
			require.Equal(t, Never, b.Publish())
			b.requireEvents(AsyncEvent{tt.event, b.qp})
			require.Equal(t, Never, b.Publish())
			b.requireEvents()
		})
	}
	t.Run("queue pair is gone", func(t *testing.T) {
		n := newNetwork(t, 1)
		a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
		b.postRecv(0, b.mr.sge(0, 1))
		a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		n.run() // not published before it is destroyed
		require.NoError(t, b.qp.Destroy())
		require.Len(t, b.staged.events, 1)
		g.open = true
		require.Equal(t, Never, b.Publish())
		require.Empty(t, b.staged.events)
	})
	t.Run("shared receive queue", func(t *testing.T) {
		n := newNetwork(t, 1)
		n.node(1)
		b := n.node(2)
		g := &gate{ways: map[uint32]*gateWay{}}
		b.config.Outgoing = g
		s := b.srq(b.pd(), 4)
		from, to := n.shared(n.nodes[0], b, s, 64)
		postRecv(t, s.queue, 0, to.mr.sge(0, 64))
		require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: 1}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
		b.takeEvents()
		from.post(SendSlot{Opcode: send}, from.mr.sge(0, 64))
		n.run()
		b.Publish()
		b.requireEvents()
		require.NoError(t, to.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_ERR}, libibverbs.IBV_QP_STATE))
		b.Publish()
		b.requireEvents()
		g.open = true
		b.Publish()
		b.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED, s}, AsyncEvent{libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, to.qp})
	})
}

// Later requests find memory as the earlier ones have left it, seen or not.
func TestTailsInOrder(t *testing.T) {
	write := func(a, b *end, from, to, size int) {
		a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, to), a.mr.sge(from, size))
	}
	for name, act := range map[string]func(a, b *end, want []byte){
		"same place": func(a, b *end, want []byte) {
			write(a, b, 0, 128, 64)
			write(a, b, 64, 128, 64)
			copy(want[128:192], a.mr.memory[64:])
		},
		"longer": func(a, b *end, want []byte) {
			write(a, b, 0, 128, 8)
			write(a, b, 64, 100, 200)
			copy(want[100:300], a.mr.memory[64:])
		},
		"same end, longer": func(a, b *end, want []byte) {
			write(a, b, 0, 128, 64)
			write(a, b, 64, 64, 128)
			copy(want[64:192], a.mr.memory[64:])
		},
		"shorter": func(a, b *end, want []byte) {
			write(a, b, 0, 128, 64)
			write(a, b, 64, 140, 8)
			copy(want[128:192], a.mr.memory)
			copy(want[140:148], a.mr.memory[64:])
		},
		"many": func(a, b *end, want []byte) {
			for i := range 3 * maxStagedWrites {
				write(a, b, i, 8*i, 8)
				copy(want[8*i:][:8], a.mr.memory[i:])
			}
		},
		"send": func(a, b *end, want []byte) {
			b.postRecv(0, b.mr.sge(128, 8))
			write(a, b, 0, 128, 64)
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(64, 8))
			copy(want[128:192], a.mr.memory)
			copy(want[128:136], a.mr.memory[64:])
		},
		"atomic": func(a, b *end, want []byte) {
			write(a, b, 0, 128, 8)
			add := SendSlot{Opcode: libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, CompareAdd: 1}.remote(b, 128)
			a.post(add, a.mr.sge(1000, 8))
			copy(want[128:136], a.mr.memory)
			*word(want, 128)++
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, g := n.gated(libibverbs.IBV_QPT_RC, 1024)
			n.fillRandom(a.mr.memory)
			want := bytes.Clone(b.mr.memory)
			act(a, b, want)
			n.run()
			require.Less(t, len(b.staged.writes), maxStagedWrites+1)
			g.open = true
			b.Publish()
			require.Equal(t, want, b.mr.memory)
			for _, r := range results(a.send) {
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.status)
			}
		})
	}
	t.Run("read", func(t *testing.T) {
		n := newNetwork(t, 1)
		a, b, g := n.gated(libibverbs.IBV_QPT_RC, 1024)
		n.fillRandom(a.mr.memory)
		write(a, b, 0, 0, 64)
		a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(512, 64))
		n.run()
		require.Equal(t, a.mr.memory[:64], a.mr.memory[512:576])
		require.NotZero(t, g.flushes, "the ACK has left when the memory is shown")
	})
}

// A program that sees a completion sees what its queue pair has written before,
// whatever other answers wait for.
func TestTailsBeforeCompletions(t *testing.T) {
	const flag = 8
	for name, act := range map[string]func(n *network, a, b, a2, b2 *end){
		"another queue pair waits": func(n *network, a, b, a2, b2 *end) {
			a2.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b2, 0), a2.mr.sge(0, 4096))
			a2.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b2, 0), a2.mr.sge(0, flag))
			n.run()
			require.Len(n.t, b.staged.writes, 1)
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, flag))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 1))
		},
		"a later write to the same place waits": func(_ *network, a, b, _, _ *end) {
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, flag))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 1))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 4096))
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, flag))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, g := n.gated(libibverbs.IBV_QPT_RC, 4096)
			a2, b2 := n.end(n.nodes[0], libibverbs.IBV_QPT_RC, nil, 4096), n.end(n.nodes[1], libibverbs.IBV_QPT_RC, nil, 4096)
			n.join(a2, b2)
			g.open = true
			b.config.Room = func(uint32) bool { return false } // for answers to READs
			n.fillRandom(a.mr.memory)
			b.postRecv(7, b.mr.sge(2048, 1))
			act(n, a, b, a2, b2)
			n.runFor(stagedTimeout / 2)
			b.Publish()
			require.Equal(t, []result{ok(7)}, results(b.recv))
			require.Equal(t, a.mr.memory[:flag], b.mr.memory[:flag])
		})
	}
}

// What a program takes away gets what was written to it first; nothing is
// written to it later.
func TestTailsOfWhatEnds(t *testing.T) {
	window := func(b *end, kind libibverbs.MwType) (w *MW, key uint32) {
		w = b.window(b.pd, kind)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(b.qp, w, b.mr, 0, 64, remoteWrite))
		return w, w.Key()
	}
	for name, end := range map[string]func(b *end) error{
		"window": func(b *end) error {
			w, _ := window(b, libibverbs.IBV_MW_TYPE_1)
			return w.Dealloc()
		},
		"window's key": func(b *end) error {
			_, key := window(b, libibverbs.IBV_MW_TYPE_2)
			require.True(t, b.qp.invalidate(key, 0))
			return nil
		},
		"region":     func(b *end) error { return b.mr.Deregister() },
		"queue pair": func(b *end) error { return b.qp.Destroy() },
		"reset": func(b *end) error {
			return b.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RESET}, libibverbs.IBV_QP_STATE)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, _ := n.gated(libibverbs.IBV_QPT_RC, 64)
			n.fillRandom(a.mr.memory)
			memory := b.mr.memory
			b.Publish()
			a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 64))
			n.run()
			b.Publish()
			require.NotEqual(t, a.mr.memory, memory)
			require.NoError(t, end(b))
			require.Equal(t, a.mr.memory, memory)
			require.Empty(t, b.staged.writes)
			require.Zero(t, b.staged.queuedAnswers)
		})
	}
}

// Staged completions are the queue pair's and the queue's as others are.
func TestStagedCompletions(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
	a2, b2 := n.end(n.nodes[0], libibverbs.IBV_QPT_RC, nil, 64), n.end(n.nodes[1], libibverbs.IBV_QPT_RC, nil, 64)
	n.join(a2, b2)
	// Both have one queue for their receives.
	delete(b2.qp.recvCQ.qps, b2.qp)
	b2.qp.recvCQ = b.recv
	b.recv.qps[b2.qp] = true
	send := func(from, to *end, id uint64) {
		to.postRecv(id, to.mr.sge(0, 8))
		from.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, from.mr.sge(0, 8))
		n.run()
	}
	g.open = true
	send(a, b, 1)
	b.Publish()
	g.open = false
	send(a, b, 2)
	b.Publish() // answered
	send(a2, b2, 3)
	send(a, b, 4)
	send(a2, b2, 5)
	require.Len(t, b.recv.staged, 4)
	require.EqualValues(t, 1, b.recv.ring.Added-b.recv.ring.Polled)
	require.Error(t, b.recv.Resize(newCompletions(8).Entries, 8, 4), "five would not fit")
	require.NoError(t, b.recv.Resize(newCompletions(8).Entries, 8, 8))
	require.NoError(t, b.qp.Destroy())
	require.Len(t, b.recv.staged, 2)
	require.Zero(t, b.recv.answered)
	g.open = true
	b.Publish()
	require.Equal(t, []result{ok(3), ok(5)}, results(b.recv))

	g.open = false
	send(a2, b2, 6)
	b.recv.ring.Armed = ArmedSolicited
	b.completions = nil
	require.NoError(t, b2.qp.Destroy())
	require.NoError(t, b.recv.Destroy())
	g.open = true
	b.Publish()
	require.Empty(t, b.completions)
}

// What is under way to a process that has ended fails, a moment later, and so
// does what is sent later.
func TestPeersGone(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	other, _ := n.pair(libibverbs.IBV_QPT_RC, 64)
	n.filter = func(p *wire.Packet) bool { return false }
	gone := func() { a.PeersGone(b.qp.number&^0xFFFF, 1<<16, n.now+1000) }
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.runFor(1)
	a.PeersGone(b.qp.number+2, 1<<8, n.now)
	n.runFor(10)
	require.Empty(t, results(a.send), "others have ended")
	gone()
	gone()
	n.runFor(100)
	require.Empty(t, results(a.send))
	n.runFor(2000)
	require.Equal(t, []result{{1, libibverbs.IBV_WC_RETRY_EXC_ERR}, {2, libibverbs.IBV_WC_WR_FLUSH_ERR}}, results(a.send))

	require.Equal(t, libibverbs.IBV_QPS_RTS, other.qp.State(), "nothing was under way")
	other.post(SendSlot{ID: 3, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), other.mr.sge(0, 8))
	n.runFor(1000)
	require.Equal(t, []result{{3, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(other.send))

	// After a reset, a queue pair may have another peer.
	a, b = n.pair(libibverbs.IBV_QPT_RC, 64)
	gone()
	n.filter = nil
	for _, e := range []*end{a, b} {
		require.NoError(t, e.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RESET}, libibverbs.IBV_QP_STATE))
	}
	n.join(a, b)
	n.runFor(2000)
	b.postRecv(0, b.mr.sge(0, 8))
	a.post(SendSlot{ID: 4, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(4)}, results(a.send))
}

// A report that a packet has found no process counts if the packet is one
// without an answer.
func TestUnreachable(t *testing.T) {
	n := newNetwork(t, 1)
	a, _ := n.pair(libibverbs.IBV_QPT_RC, 64)
	var sent []wire.Packet
	n.filter = func(p *wire.Packet) bool {
		sent = append(sent, *p)
		return false
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.runFor(10)
	require.Len(t, sent, 1)
	for name, change := range map[string]func(p *wire.Packet){
		"before":          func(p *wire.Packet) { p.PSN = p.PSN.Add(-1) },
		"not sent":        func(p *wire.Packet) { p.PSN = p.PSN.Add(1) },
		"queue pair":      func(p *wire.Packet) { p.DestQP++ },
		"host":            func(p *wire.Packet) { p.DGID[15]++ },
		"source":          func(p *wire.Packet) { p.SGID[15]++ },
		"answer":          func(p *wire.Packet) { p.Opcode = wire.RCAck },
		"other transport": func(p *wire.Packet) { p.Opcode = wire.UDSendOnly },
	} {
		p := sent[0]
		change(&p)
		a.Unreachable(&p)
		n.runFor(10)
		require.Empty(t, results(a.send), name)
	}
	a.Unreachable(&sent[0])
	require.Equal(t, []result{{1, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(a.send))

	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	n.filter = nil
	b.postRecv(0, b.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.run()
	p := wire.Packet{Opcode: wire.RCSendOnly, PSN: a.qp.requester.acked.Add(-1), DestQP: b.qp.number, SGID: a.qp.path.sgid, DGID: a.qp.path.dgid}
	a.Unreachable(&p)
	require.Equal(t, []result{ok(2)}, results(a.send))
	require.Equal(t, libibverbs.IBV_QPS_RTS, a.qp.State(), "it was answered")
}

// bytesTo returns a WRITE with that PSN of 8 bytes, each of which is value, to
// offset of b's memory.
func (b *end) bytesTo(psn, offset int, value byte) *wire.Packet {
	p := b.asked(wire.RCWriteOnly, psn)
	p.Addr += uint64(offset)
	p.Length, p.Payload = 8, [][]byte{bytes.Repeat([]byte{value}, 8)}
	return p
}

// wordAt returns an atomic operation or ATOMIC WRITE with that PSN on the word
// at offset of b's memory. A compare and swap expects a word of 0.
func (b *end) wordAt(op wire.Opcode, psn, offset int) *wire.Packet {
	p := b.asked(op, psn)
	p.Addr += uint64(offset)
	p.SwapAdd = 9
	if op == wire.RCAtomicWrite {
		p.Length, p.Payload = 8, [][]byte{{9, 8, 7, 6, 5, 4, 3, 2}}
	}
	return p
}

// The answer to a READ makes staged bytes visible while a later request waits
// for other staged bytes.
func TestReadUnstagesFirst(t *testing.T) {
	const x, y = 0, 128
	for name, tt := range map[string]struct {
		last   func(b *end) *wire.Packet
		answer wire.Opcode
	}{
		"write": {func(b *end) *wire.Packet { return b.bytesTo(3, x, 3) }, wire.RCAck},
		"add":   {func(b *end) *wire.Packet { return b.wordAt(wire.RCFetchAdd, 3, x) }, wire.RCAtomicAck},
		"swap": {func(b *end) *wire.Packet {
			p := b.wordAt(wire.RCCompareSwap, 3, x)
			p.Compare = 0x0101010101010101
			return p
		}, wire.RCAtomicAck},
		"atomic write": {func(b *end) *wire.Packet { return b.wordAt(wire.RCAtomicWrite, 3, x) }, wire.RCReadOnly},
		"flush": {func(b *end) *wire.Packet {
			p := b.asked(wire.RCFlush, 3)
			p.FlushType, p.FlushLevel = uint8(global), uint8(libibverbs.IBV_FLUSH_MR)
			return p
		}, wire.RCReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			n.node(1)
			g := &gate{ways: map[uint32]*gateWay{}}
			n.node(2).config.Outgoing = g
			_, b, _ := n.flushPair(256)
			b.Receive(b.bytesTo(0, x, 1))
			read := b.asked(wire.RCReadRequest, 1)
			read.Length = 8
			b.Receive(read)
			b.Receive(b.bytesTo(2, y, 2))
			b.Receive(tt.last(b))
			b.Advance(0)
			g.open = true
			b.Publish()
			require.Equal(t, []answerOf{
				{wire.RCAck, 0, wire.Ack, 1}, {wire.RCReadOnly, 1, wire.Ack, 2}, {wire.RCAck, 2, wire.Ack, 3}, {tt.answer, 3, wire.Ack, 4},
			}, answersOf(b.sent))
			require.Equal(t, bytes.Repeat([]byte{2}, 8), b.mr.memory[y:y+8])
			require.Equal(t, name != "flush", b.mr.memory[x] != 1, "the last request has changed the memory")
			require.Empty(t, b.staged.writes)
		})
	}
}

// A program that polls a word sees the bytes that were written before an
// atomic operation or ATOMIC WRITE has changed the word.
func TestTailsBeforeWords(t *testing.T) {
	const data, flag = 128, 64
	for name, op := range map[string]wire.Opcode{"add": wire.RCFetchAdd, "swap": wire.RCCompareSwap, "atomic write": wire.RCAtomicWrite} {
		for from, other := range map[string]bool{"same queue pair": false, "another queue pair": true} {
			t.Run(name+"/"+from, func(t *testing.T) {
				n := newNetwork(t, 1)
				_, b, g := n.gated(libibverbs.IBV_QPT_RC, 256)
				writer, psn := b, 1
				if other {
					writer, psn = n.end(n.nodes[1], libibverbs.IBV_QPT_RC, nil, 256), 0
					n.join(n.end(n.nodes[0], libibverbs.IBV_QPT_RC, nil, 256), writer)
				}
				writer.Receive(writer.bytesTo(0, data, 1))
				require.Zero(t, writer.mr.memory[data])
				b.Receive(b.wordAt(op, psn, flag))
				require.NotZero(t, *word(b.mr.memory, flag))
				require.Equal(t, bytes.Repeat([]byte{1}, 8), writer.mr.memory[data:data+8])
				require.Len(t, b.sent, 2)
				require.Equal(t, wire.RCAck, b.sent[0].Opcode)
				require.Equal(t, 2, g.flushes, "each answer leaves at once")
			})
		}
	}
}

// If an answer that a request waits for fails the queue pair, the request has
// no effect.
func TestRefusedWhileUnstaging(t *testing.T) {
	const at = 128
	for name, last := range map[string]func(b *end) *wire.Packet{
		"write": func(b *end) *wire.Packet { return b.bytesTo(3, at+4, 2) },
		"write with imm": func(b *end) *wire.Packet {
			p := b.bytesTo(3, at+4, 2)
			p.Opcode = wire.RCWriteOnlyImm
			return p
		},
		"long write": func(b *end) *wire.Packet {
			p := b.bytesTo(3, at, 2)
			p.Length, p.Payload[0] = 100, bytes.Repeat([]byte{2}, 100)
			return p
		},
		"beginning of a write": func(b *end) *wire.Packet {
			p := b.asked(wire.RCWriteFirst, 3)
			p.Length, p.Payload = 2048, [][]byte{bytes.Repeat([]byte{2}, 1024)}
			return p
		},
		"send": func(b *end) *wire.Packet {
			p := b.asked(wire.RCSendOnly, 3)
			p.Payload = [][]byte{bytes.Repeat([]byte{2}, 8)}
			return p
		},
		"add":          func(b *end) *wire.Packet { return b.wordAt(wire.RCFetchAdd, 3, at) },
		"swap":         func(b *end) *wire.Packet { return b.wordAt(wire.RCCompareSwap, 3, at) },
		"atomic write": func(b *end) *wire.Packet { return b.wordAt(wire.RCAtomicWrite, 3, at) },
		"flush": func(b *end) *wire.Packet {
			p := b.asked(wire.RCFlush, 3)
			p.FlushType, p.FlushLevel = uint8(persistent), uint8(libibverbs.IBV_FLUSH_MR)
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			n.node(1)
			g := &gate{ways: map[uint32]*gateWay{}}
			n.node(2).config.Outgoing = g
			_, b, stored := n.flushPair(4096)
			w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
			require.Equal(t, success, bindMW(b.qp, w, b.mr, 0, 64, remoteRead))
			b.postRecv(1)
			b.postRecv(2, b.mr.sge(at, 8))
			read := b.asked(wire.RCReadRequest, 0)
			read.RKey, read.Length = w.Key(), 8
			b.Receive(read)
			invalidate := b.asked(wire.RCSendOnlyInv, 1)
			invalidate.InvKey = w.Key()
			b.Receive(invalidate)
			want := bytes.Clone(b.mr.memory)
			b.Receive(b.bytesTo(2, at, 0))
			b.Receive(last(b))
			b.Advance(0)
			g.open = true
			b.Publish()
			require.Equal(t, []answerOf{{wire.RCAck, 0, wire.NakRemoteAccess, 3}}, answersOf(b.sent))
			require.Equal(t, want, b.mr.memory)
			require.Empty(t, stored.ranges)
			second := result{2, flushed}
			if name == "write with imm" || name == "send" {
				second.status = locAccess
			}
			require.Equal(t, []result{ok(1), second}, results(b.recv))
			b.requireEvents(AsyncEvent{access, b.qp})
			require.Zero(t, b.qp.responder.message)
		})
	}
}

// Packets may leave while Publish checks what is ready. What a peer has done
// becomes visible in the order in which the peer has done it, also in several
// queues and counters.
func TestLeavesDuringPublish(t *testing.T) {
	for name, tt := range map[string]struct {
		kind libibverbs.QpType
		// receive makes b receive three requests of a. The result returns
		// which of them are visible.
		receive func(t *testing.T, a, b *end) (visible func() []bool)
	}{
		"writes": {libibverbs.IBV_QPT_RC, func(_ *testing.T, _, b *end) func() []bool {
			const x, y, z = 0, 64, 128
			for i, offset := range []int{x, y, z} {
				b.Receive(b.bytesTo(i, offset, 1))
			}
			m := b.mr.memory
			return func() []bool { return []bool{m[x] == 1, m[y] == 1, m[z] == 1} }
		}},
		"queues": {libibverbs.IBV_QPT_XRC_SEND, func(t *testing.T, a, b *end) func() []bool {
			other := b.xrcSRQ(b.srq.xrcd, b.pd, 4)
			for i, s := range []*SRQ{b.srq, other, b.srq} {
				postRecv(t, s.queue, uint64(i), b.mr.sge(0, 8))
				a.post(SendSlot{Opcode: send, RemoteQPN: s.number}, a.mr.sge(0, 8))
			}
			a.Advance(0)
			for _, p := range a.sent {
				b.Receive(p)
			}
			return func() []bool {
				first, second := b.srq.cq.ring.Added, other.cq.ring.Added
				return []bool{first > 0, second > 0, first > 1}
			}
		}},
		"counters": {libibverbs.IBV_QPT_RC, func(_ *testing.T, _, b *end) func() []bool {
			writes, recvs := b.counter(libibverbs.IBV_COMP_CNTR_TYPE_WRS, countRemoteWrites), b.counter(libibverbs.IBV_COMP_CNTR_TYPE_WRS, countRecvs)
			b.Receive(b.bytesTo(0, 0, 1))
			for psn := 1; psn < 3; psn++ {
				b.postRecv(1, b.mr.sge(0, 8))
				b.Receive(b.asked(wire.RCSendOnly, psn))
			}
			return func() []bool { return []bool{writes.done > 0, recvs.done > 0, recvs.done > 1} }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for closed := range 6 {
				n := newNetwork(t, 1)
				a, b, g := n.gated(tt.kind, 256)
				visible := tt.receive(t, a, b)
				b.Advance(0)
				g.to(a).open, g.to(a).closed = true, closed
				b.Publish()
				v := visible()
				require.False(t, v[1] && !v[0] || v[2] && !v[1], "%v if packets leave after %d checks", v, closed)
				g.to(a).closed = 0
				b.Publish()
				require.Equal(t, []bool{true, true, true}, visible())
			}
		})
	}
}
