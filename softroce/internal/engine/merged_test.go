// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// carry lets the device work until nothing is left to happen. Packets are lost
// with the probability drop. It returns the number of packets with data that
// were sent, and for how many they stood.
func (l *loop) carry(random *rand.Rand, drop float64) (sent, stood int) {
	for now := time.Duration(0); now != Never; {
		next := l.Advance(now)
		inbox := l.inbox
		l.inbox = nil
		for _, p := range inbox {
			if p.Opcode.HasPayload() {
				sent++
				stood += 1 + int(p.More)
			}
			if drop > 0 && random.Float64() < drop {
				l.Device.config.Packets.Put(p)
			} else {
				l.Receive(p)
			}
		}
		if len(inbox) == 0 {
			now = next
		}
	}
	return sent, stood
}

// Packets that stand for several move the same bytes as these, give the same
// completions and counts, and are fewer.
func TestMerged(t *testing.T) {
	const mtu = 4096
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		recv   bool
	}{
		"send":      {libibverbs.IBV_WR_SEND, true},
		"send imm":  {libibverbs.IBV_WR_SEND_WITH_IMM, true},
		"write":     {libibverbs.IBV_WR_RDMA_WRITE, false},
		"write imm": {libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, true},
		"read":      {libibverbs.IBV_WR_RDMA_READ, false},
	} {
		for _, size := range []int{0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu + 5, 16 * mtu, 16*mtu + 1, 17 * mtu, 40*mtu + 7, 300 * mtu} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				move := func(merges bool) (sent int) {
					l, a, b := newLoop(t, size+64)
					l.Device.config.Merges = func() bool { return merges }
					from, to := a, b
					if tt.opcode == libibverbs.IBV_WR_RDMA_READ {
						from, to = b, a
					}
					pattern(from.mr.memory, 7)
					b.postRecv(1, b.mr.split(0, size, 100, 5*mtu+3)...)
					a.post(SendSlot{ID: 2, Opcode: tt.opcode}.remote(b, 0), a.mr.split(0, size, 3*mtu-1, 3*mtu)...)
					sent, stood := l.carry(nil, 0)
					require.Equal(t, max(1, (size+mtu-1)/mtu), stood)
					require.Equal(t, []result{ok(2)}, results(a.send))
					if tt.recv {
						require.Equal(t, []result{ok(1)}, results(b.recv))
					}
					require.Equal(t, from.mr.memory[:size], to.mr.memory[:size])
					require.Equal(t, l.Counters().PacketsSent, l.Counters().PacketsReceived)
					require.Zero(t, a.qp.retries)
					return sent
				}
				each, merged := move(false), move(true)
				if size > 2*mtu {
					require.Less(t, merged, each)
				}
				require.LessOrEqual(t, merged, each)
			})
		}
	}
}

// Packets that are lost are sent again, merged in another way.
func TestMergedLost(t *testing.T) {
	const size = 90*4096 + 5
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			l, a, b := newLoop(t, size)
			l.Device.config.Merges = func() bool { return random.IntN(3) > 0 }
			for _, e := range []*end{a, b} {
				e.qp.attr.RetryCnt, e.qp.requester.retries = 7, 7
			}
			for i, opcode := range []libibverbs.WrOpcode{
				libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ,
			} {
				from, to := a, b
				if opcode == libibverbs.IBV_WR_RDMA_READ {
					from, to = b, a
				} else {
					b.postRecv(1, b.mr.sge(0, size))
				}
				pattern(from.mr.memory, seed+uint64(i))
				a.post(SendSlot{ID: 2, Opcode: opcode}.remote(b, 0), a.mr.sge(0, size))
				l.carry(random, 0.03)
				require.Equal(t, []result{ok(2)}, results(a.send), opcode)
				if from == a {
					require.Equal(t, []result{ok(1)}, results(b.recv), opcode)
				}
				require.Equal(t, from.mr.memory, to.mr.memory, opcode)
			}
		})
	}
}

// A long WRITE whose end needs a receive is refused until there is one.
func TestMergedNotReady(t *testing.T) {
	const size = 20 * 4096
	l, a, b := newLoop(t, size)
	l.Device.config.Merges = func() bool { return true }
	a.qp.attr.RnrRetry, a.qp.requester.rnrRetries = 7, 7
	pattern(a.mr.memory, 1)
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}.remote(b, 0), a.mr.sge(0, size))
	refused := 0
	for now := time.Duration(0); now != Never; {
		next := l.Advance(now)
		inbox := l.inbox
		l.inbox = nil
		for _, p := range inbox {
			if p.Syndrome.IsRNR() {
				if refused++; refused == 3 {
					b.postRecv(1)
				}
			}
			l.Receive(p)
		}
		if len(inbox) == 0 {
			now = next
		}
	}
	require.Equal(t, 3, refused)
	require.Equal(t, []result{ok(2)}, results(a.send))
	require.Equal(t, []result{ok(1)}, results(b.recv))
	require.Equal(t, a.mr.memory, b.mr.memory)
}

// Only packets of reliable connections stand for several, and not where their
// rate is limited, nor on the network.
func TestMerges(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(l *loop, a, b *end)
		want    bool
	}{
		"usual":      {func(*loop, *end, *end) {}, true},
		"seen":       {func(l *loop, _, _ *end) { l.Device.config.Merges = func() bool { return false } }, false},
		"process":    {func(l *loop, a, _ *end) { a.qp.outside, l.Device.config.LongPacket = true, 1<<15 }, true},
		"network":    {func(_ *loop, a, _ *end) { a.qp.outside = true }, false},
		"rate":       {func(_ *loop, a, _ *end) { a.qp.limit.rate = 1 }, false},
		"congestion": {func(_ *loop, a, _ *end) { a.qp.congestion.gap = time.Second }, false},
		"extended":   {func(_ *loop, a, _ *end) { a.qp.kind = libibverbs.IBV_QPT_XRC_SEND }, false},
		"unreliable": {func(_ *loop, a, _ *end) { a.qp.kind = libibverbs.IBV_QPT_UC }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, a, b := newLoop(t, 64)
			l.Device.config.Merges = func() bool { return true }
			tt.prepare(l, a, b)
			require.Equal(t, tt.want, a.qp.merges())
		})
	}
}

// A response that stands for more packets than were requested is refused: the
// peer process may be hostile.
func TestMergedTooMany(t *testing.T) {
	const packets = 3
	for more, want := range map[uint16]libibverbs.WcStatus{
		packets - 1: success,
		packets:     libibverbs.IBV_WC_BAD_RESP_ERR,
		65535:       libibverbs.IBV_WC_BAD_RESP_ERR,
	} {
		for _, opcode := range []wire.Opcode{wire.RCReadOnly, wire.RCReadFirst} {
			if opcode == wire.RCReadFirst && want == success {
				continue
			}
			l, a, b := newLoop(t, packets*4096)
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, packets*4096))
			l.Advance(0)
			require.Len(t, l.inbox, 1)
			p := b.qp.packet(opcode, a.qp.requester.acked)
			p.More, p.Payload = more, append(p.Payload, make([]byte, packets*4096))
			l.Receive(p)
			require.Equal(t, []result{{2, want}}, results(a.send), "%v %v", opcode, more)
			require.False(t, a.qp.requester.acked.After(a.qp.requester.psn))
		}
	}
}

// A request that stands for more or fewer packets than it has data for is
// refused.
func TestMergedWrongNumber(t *testing.T) {
	for more, want := range map[uint16]libibverbs.WcStatus{
		1:     libibverbs.IBV_WC_REM_INV_REQ_ERR,
		2:     success,
		3:     libibverbs.IBV_WC_REM_INV_REQ_ERR,
		65535: libibverbs.IBV_WC_REM_INV_REQ_ERR,
	} {
		l, a, b := newLoop(t, 3*4096)
		l.Device.config.Merges = func() bool { return true }
		a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 3*4096))
		l.Advance(0)
		require.Len(t, l.inbox, 1)
		require.EqualValues(t, 2, l.inbox[0].More)
		l.inbox[0].More = more
		l.settle()
		require.Equal(t, []result{{2, want}}, results(a.send), more)
	}
}
