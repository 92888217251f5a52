// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// TestShortWindow sends and reads messages that are longer than the window. No
// more packets than that are under way in either direction, and reads are asked
// for one part after the other, as the peer takes one at a time.
func TestShortWindow(t *testing.T) {
	const mtu, size = 1024, 100*1024 - 7
	for _, window := range []int{1, 2, 16, 64, 256} {
		for name, op := range map[string]libibverbs.WrOpcode{"write": libibverbs.IBV_WR_RDMA_WRITE, "read": libibverbs.IBV_WR_RDMA_READ} {
			t.Run(fmt.Sprint(name, " ", window), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 3*size)
				a.limit(window)
				a.qp.mtu, b.qp.mtu = mtu, mtu
				a.qp.attr.MaxRdAtomic, b.qp.attr.MaxDestRdAtomic = 1, 1
				n.fillRandom(b.mr.memory)
				n.fillRandom(a.mr.memory)
				var longest, requests int
				n.filter = func(p *wire.Packet) bool {
					longest = max(longest, a.qp.requester.sent.Diff(a.qp.requester.acked))
					if p.Opcode == wire.RCReadRequest {
						requests++
						require.LessOrEqual(t, a.qp.requester.sent.Diff(a.qp.requester.acked), window)
						require.LessOrEqual(t, int(p.Length), window*mtu)
					}
					return true
				}
				for i := range 2 {
					a.post(SendSlot{ID: uint64(i), Opcode: op}.remote(b, i*size), a.mr.sge(i*size, size))
				}
				n.run()
				require.Equal(t, []result{ok(0), ok(1)}, results(a.send))
				require.Equal(t, b.mr.memory[:2*size], a.mr.memory[:2*size])
				require.LessOrEqual(t, longest, window)
				if op == libibverbs.IBV_WR_RDMA_READ {
					require.Equal(t, 2*((100+window-1)/window), requests)
				}
			})
		}
	}
}

// TestReadInPartsLosesPackets loses each packet of a read in turn, once and
// then again.
func TestReadInPartsLosesPackets(t *testing.T) {
	const mtu, size, window = 256, 10*256 + 1, 4
	for losses := 1; losses <= 2; losses++ {
		for lost := 0; lost < 20; lost++ {
			t.Run(fmt.Sprint(losses, " of ", lost), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, size)
				a.limit(window)
				a.qp.mtu, b.qp.mtu = mtu, mtu
				n.fillRandom(b.mr.memory)
				count, left := 0, losses
				var victim string
				n.filter = func(p *wire.Packet) bool {
					name := fmt.Sprint(p.Opcode.IsResponse(), p.PSN)
					if count == lost && victim == "" {
						victim = name
					}
					count++
					if name == victim && left > 0 {
						left--
						return false
					}
					return true
				}
				a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, size))
				n.run()
				require.Equal(t, []result{ok(1)}, results(a.send))
				require.Equal(t, b.mr.memory[:size], a.mr.memory[:size])
			})
		}
	}
}
