// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Each reason to send again is counted as what it is.
func TestCounters(t *testing.T) {
	notReady := func(p *wire.Packet) bool { return p.Opcode == wire.RCAck && p.Syndrome.IsRNR() }
	for name, tt := range map[string]struct {
		lost   int // of the packets that is says
		is     func(p *wire.Packet) bool
		opcode libibverbs.WrOpcode
		size   int
		late   bool // the receive is
		want   Retries
	}{
		"nothing lost": {0, isSend, libibverbs.IBV_WR_SEND, 3000, false, Retries{}},
		"all packets":  {3, isSend, libibverbs.IBV_WR_SEND, 3000, false, Retries{PacketsSentAgain: 3, Timeouts: 1}},
		"one, twice":   {2, isSend, libibverbs.IBV_WR_SEND, 8, false, Retries{PacketsSentAgain: 2, Timeouts: 2}},
		"the first":    {1, isSend, libibverbs.IBV_WR_SEND, 3000, false, Retries{PacketsSentAgain: 3, SequenceErrors: 1}},
		"a part of an answer": {
			1, func(p *wire.Packet) bool { return p.Opcode.IsReadResponse() && p.Opcode.IsFirst() }, libibverbs.IBV_WR_RDMA_READ, 3000, false,
			Retries{PacketsSentAgain: 1, MissedAnswers: 1},
		},
		"no receive": {0, isSend, libibverbs.IBV_WR_SEND, 8, true, Retries{PacketsSentAgain: 1, ReceiversNotReady: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
			if tt.late {
				n.filter = func(p *wire.Packet) bool {
					if notReady(p) {
						b.postRecv(1, b.mr.sge(0, tt.size))
					}
					return true
				}
			} else {
				n.dropping(tt.lost, tt.is)
				b.postRecv(1, b.mr.sge(0, tt.size))
			}
			a.post(SendSlot{ID: 1, Opcode: tt.opcode}.remote(b, 1<<13), a.mr.sge(0, tt.size))
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, tt.want, a.qp.Retries())
			require.Zero(t, b.qp.Retries())

			sent := a.qp.device.Counters()
			require.Equal(t, tt.want, sent.Retries)
			require.NotZero(t, sent.PacketsReceived)
			require.GreaterOrEqual(t, sent.PacketsSent, b.qp.device.Counters().PacketsReceived)
			require.NoError(t, a.qp.Destroy())
			require.Equal(t, sent, a.qp.device.Counters(), "those of queue pairs that are gone stay")
		})
	}
}
