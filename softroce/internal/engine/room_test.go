// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// What finds no room waits, and goes on where it was.
func TestNoRoom(t *testing.T) {
	const packets = 100
	for name, opcode := range map[string]libibverbs.WrOpcode{"write": libibverbs.IBV_WR_RDMA_WRITE, "read": libibverbs.IBV_WR_RDMA_READ} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, packets*4096)
			n.fillRandom(a.mr.memory)
			n.watch = true
			sender := map[libibverbs.WrOpcode]*end{libibverbs.IBV_WR_RDMA_WRITE: a, libibverbs.IBV_WR_RDMA_READ: b}[opcode]
			room, asked := false, 0
			sender.config.Room = func(qpn uint32) bool {
				require.Equal(t, sender.qp.attr.DestQpNum, qpn)
				asked++
				return room
			}
			a.post(SendSlot{ID: 1, Opcode: opcode}.remote(b, 0), a.mr.sge(0, packets*4096))
			n.runFor(time.Millisecond)
			require.LessOrEqual(t, len(n.opcodes()), turnPackets)
			require.Equal(t, 1, asked, "it does not ask again and again")
			sender.Resume()
			sender.Advance(time.Millisecond)
			require.Empty(t, sender.sent)
			require.Equal(t, 2, asked)
			room = true
			sender.Resume()
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, a.mr.memory, b.mr.memory)
		})
	}
}

// A peer to which there is no room any more is as one that does not answer.
func TestNoRoomForLong(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64*4096)
	a.config.Room = func(uint32) bool { return false }
	b.config.Room = a.config.Room
	n.filter = func(p *wire.Packet) bool { return false }
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 64*4096))
	n.run()
	require.Equal(t, []result{{1, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(a.send))

	// So is one that does not send what was asked for.
	a, b = n.pair(libibverbs.IBV_QPT_RC, 64*4096)
	n.filter = nil
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 64*4096))
	n.run()
	require.Equal(t, []result{{2, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(a.send))
}

// Queue pairs that are destroyed while they wait for room leave nothing behind.
func TestNoRoomAndDestroyed(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64*4096)
	a.config.Room = func(uint32) bool { return false }
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 64*4096))
	n.step()
	n.step()
	require.Len(t, a.schedule.blocked, 1)
	require.NoError(t, a.qp.Destroy())
	a.Resume()
	n.run()
	require.Empty(t, a.schedule.blocked)
	require.Empty(t, results(a.send))
}
