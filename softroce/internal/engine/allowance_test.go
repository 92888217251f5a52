// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// TestManyPairsOverflow has queue pairs write at once through a router that has
// room for the window of one and a half of them.
func TestManyPairsOverflow(t *testing.T) {
	const pairs, size, count = 8, 64 << 10, 20
	n := newNetwork(t, 1)
	x := n.route(5*time.Microsecond, 1<<20, 96)
	var all [][2]*end
	for range pairs {
		a, b := n.pair(libibverbs.IBV_QPT_RC, size)
		a.limit(64)
		a.qp.mtu, b.qp.mtu = 1024, 1024
		n.fillRandom(a.mr.memory)
		all = append(all, [2]*end{a, b})
		for i := range count {
			a.post(SendSlot{ID: uint64(i), Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, size))
		}
	}
	n.run()
	for _, p := range all {
		got := results(p[0].send)
		require.Len(t, got, count)
		for i, r := range got {
			require.Equal(t, ok(uint64(i)), r)
		}
		require.Equal(t, p[0].mr.memory, p[1].mr.memory)
	}
	require.Less(t, x.lost, pairs*count*64/4) // three times as many as there are, if each sent its whole window again
	require.Less(t, n.now, time.Second)       // six seconds
}

// TestSilence loses everything for a while. Nothing is sent again but a packet
// with each timeout, and all of the window soon after an answer.
func TestSilence(t *testing.T) {
	const size = 256 << 10
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, size)
	a.limit(64)
	a.qp.mtu, b.qp.mtu = 1024, 1024
	a.qp.attr.RetryCnt = 7
	n.fillRandom(a.mr.memory)
	silent, sent, most := true, 0, 0
	n.filter = func(p *wire.Packet) bool {
		sent++
		if !silent {
			most = max(most, a.qp.inFlight())
		}
		return !silent
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, size))
	for n.step() && a.qp.retries.Timeouts < 3 {
	}
	require.Equal(t, 64+3, sent)
	silent = false
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, a.mr.memory, b.mr.memory)
	require.Equal(t, uint64(4), a.qp.retries.Timeouts)
	require.Greater(t, most, 32)
}
