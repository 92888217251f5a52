// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// split divides n bytes from offset on into segments at the given places.
func (m *MR) split(offset, n int, at ...int) (sges []libibverbs.Sge) {
	from := 0
	for _, to := range append(at, n) {
		to = min(to, n)
		sges = append(sges, m.sge(offset+from, to-from))
		from = to
	}
	return sges
}

// Every operation moves every byte, at the borders of packets and of segments.
func TestOperationsAtBorders(t *testing.T) {
	const mtu = 1024
	type operation struct {
		opcode libibverbs.WrOpcode
		wc     libibverbs.WcOpcode
		recv   bool
		inline bool
		uc     bool
	}
	for name, op := range map[string]operation{
		"send":        {opcode: libibverbs.IBV_WR_SEND, wc: libibverbs.IBV_WC_SEND, recv: true, uc: true},
		"send inline": {opcode: libibverbs.IBV_WR_SEND, wc: libibverbs.IBV_WC_SEND, recv: true, inline: true, uc: true},
		"send imm":    {opcode: libibverbs.IBV_WR_SEND_WITH_IMM, wc: libibverbs.IBV_WC_SEND, recv: true, uc: true},
		"write":       {opcode: libibverbs.IBV_WR_RDMA_WRITE, wc: libibverbs.IBV_WC_RDMA_WRITE, uc: true},
		"write imm":   {opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, wc: libibverbs.IBV_WC_RDMA_WRITE, recv: true, uc: true},
		"read":        {opcode: libibverbs.IBV_WR_RDMA_READ, wc: libibverbs.IBV_WC_RDMA_READ},
	} {
		for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_XRC_SEND} {
			if kind == libibverbs.IBV_QPT_UC && !op.uc {
				continue
			}
			t.Run(fmt.Sprint(name, " ", kind), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(kind, 8*mtu)
				id := uint64(0)
				for _, size := range []int{0, 1, 7, 8, 255, 256, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 5 * mtu, 5*mtu + 3} {
					for _, at := range [][]int{nil, {1}, {mtu - 1}, {mtu}, {mtu + 1}, {0, mtu, mtu}, {3, 2 * mtu, 2*mtu + 1}} {
						if op.inline && size > 256 {
							continue
						}
						id++
						n.fillRandom(a.mr.memory)
						n.fillRandom(b.mr.memory)
						from, to := a, b
						if op.opcode == libibverbs.IBV_WR_RDMA_READ {
							from, to = b, a
						}
						data := append([]byte(nil), from.mr.memory[5:5+size]...)
						want := append([]byte(nil), to.mr.memory...)
						copy(want[9:], data)
						slot := SendSlot{ID: id, Opcode: op.opcode, Imm: 0x01020304, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}
						if op.recv {
							b.postRecv(id, b.mr.split(9, size+4, at...)...)
						}
						switch {
						case op.inline:
							postInline(t, a.qp.send, a.aimed(slot), data)
							a.Ring(a.qp.send)
						case op.opcode == libibverbs.IBV_WR_RDMA_READ:
							a.post(slot.remote(b, 5), a.mr.split(9, size, at...)...)
						default:
							a.post(slot.remote(b, 9), a.mr.split(5, size, at...)...)
						}
						n.run()
						sent := poll(a.send.ring)
						require.Len(t, sent, 1)
						require.Equal(t, libibverbs.IBV_WC_SUCCESS, sent[0].Status)
						require.Equal(t, id, sent[0].WrId)
						require.Equal(t, op.wc, sent[0].Opcode)
						require.Equal(t, a.qp.number, sent[0].QpNum)
						require.Equal(t, want, to.mr.memory, "%d bytes, cut at %v", size, at)
						received := poll(b.recv.ring)
						if !op.recv {
							require.Empty(t, received)
							continue
						}
						require.Len(t, received, 1)
						c := received[0]
						require.Equal(t, result{id, libibverbs.IBV_WC_SUCCESS}, result{c.WrId, c.Status})
						require.Equal(t, uint32(size), c.ByteLen)
						require.Equal(t, b.qp.number, c.QpNum)
						wantOp, wantFlags := libibverbs.IBV_WC_RECV, libibverbs.WcFlags(0)
						switch op.opcode {
						case libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
							wantOp, wantFlags = libibverbs.IBV_WC_RECV_RDMA_WITH_IMM, libibverbs.IBV_WC_WITH_IMM
						case libibverbs.IBV_WR_SEND_WITH_IMM:
							wantFlags = libibverbs.IBV_WC_WITH_IMM
						}
						require.Equal(t, wantOp, c.Opcode)
						require.Equal(t, wantFlags, c.WcFlags)
						if wantFlags != 0 {
							require.Equal(t, uint32(0x01020304), uint32(*c.ImmData()))
						}
					}
				}
			})
		}
	}
}

func TestAtomics(t *testing.T) {
	for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_XRC_SEND} {
		t.Run(kind.String(), func(t *testing.T) { testAtomics(t, kind) })
	}
}

func testAtomics(t *testing.T, kind libibverbs.QpType) {
	n := newNetwork(t, 1)
	a, b := n.pair(kind, 64)
	*word(b.mr.memory, 8) = 40
	add := SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, CompareAdd: 2}.remote(b, 8)
	a.post(add, a.mr.sge(0, 8))
	cas := SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, CompareAdd: 42, Swap: 1 << 63}.remote(b, 8)
	a.post(cas, a.mr.sge(8, 4), a.mr.sge(16, 4))
	cas.ID = 3 // not what is there any more
	a.post(cas, a.mr.sge(24, 8))
	n.run()
	require.Equal(t, []result{ok(1), ok(2), ok(3)}, results(a.send))
	require.Equal(t, uint64(1<<63), *word(b.mr.memory, 8))
	require.Equal(t, uint64(40), *word(a.mr.memory, 0))
	copy(a.mr.memory[12:], a.mr.memory[16:20])
	require.Equal(t, uint64(42), *word(a.mr.memory, 8))
	require.Equal(t, uint64(1<<63), *word(a.mr.memory, 24))
}
