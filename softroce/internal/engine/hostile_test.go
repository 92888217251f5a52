// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A hostile device sends few packets in a turn, and receivers that are ready
// say once in a while that they are not, to those that try again. Messages
// arrive nevertheless.
func TestHostile(t *testing.T) {
	for name, tt := range map[string]struct {
		rnrRetry uint8
		refuses  bool
	}{"peer that tries again": {1, true}, "peer that does not": {0, false}} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			d := n.node(1)
			d.config.Hostile = rand.New(rand.NewPCG(1, 2))
			a, b := n.end(d, libibverbs.IBV_QPT_RC, nil, 8192), n.end(d, libibverbs.IBV_QPT_RC, nil, 8192)
			n.join(a, b)
			a.qp.attr.RnrRetry = tt.rnrRetry
			refusals := 0
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode == wire.RCAck && p.Syndrome.IsRNR() {
					refusals++
				}
				return true
			}
			n.fillRandom(a.mr.memory)
			for id := range uint64(300) {
				b.postRecv(id, b.mr.sge(0, 8192))
				a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8192))
				n.run()
				require.Equal(t, []result{ok(id)}, results(a.send))
				require.Equal(t, []result{ok(id)}, results(b.recv))
			}
			require.Equal(t, a.mr.memory, b.mr.memory)
			require.Equal(t, tt.refuses, refusals > 0, "%d refusals", refusals)
		})
	}
}

func TestPatience(t *testing.T) {
	n := newNetwork(t, 1)
	d := n.node(1)
	a, b := n.end(d, libibverbs.IBV_QPT_RC, nil, 64), n.end(d, libibverbs.IBV_QPT_RC, nil, 64)
	n.join(a, b)
	a.qp.attr.Timeout, a.qp.attr.RetryCnt = 10, 3
	b.qp.attr.Timeout, b.qp.attr.RetryCnt = 0, 5
	for name, tt := range map[string]struct {
		op   wire.Opcode
		to   *end
		want uint8
	}{
		"request of a": {wire.RCSendOnly, b, 3},
		"answer to a":  {wire.RCAck, a, 3},
		"request of b": {wire.RCReadRequest, a, 5},
		"answer to b":  {wire.RCReadOnly, b, 5},
	} {
		timeout, retries, ok := RetryLimits(&wire.Packet{Opcode: tt.op, DestQP: tt.to.qp.number}, d.FindQP)
		require.True(t, ok, name)
		require.Equal(t, tt.want, retries, name)
		if tt.want == 3 {
			require.Equal(t, wire.AckTimeout(10), timeout, name)
		} else {
			require.Equal(t, Never, timeout, name)
		}
	}
	for _, number := range []uint32{0, 1, 1 << 20} {
		_, _, ok := RetryLimits(&wire.Packet{Opcode: wire.RCSendOnly, DestQP: number}, d.FindQP)
		require.False(t, ok)
	}
}
