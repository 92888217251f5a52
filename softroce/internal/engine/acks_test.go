// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// laziness is a node that hears acknowledgements late while it spares them:
// when another packet comes, or after an Advance that says that work is left.
type laziness struct {
	awaiting int
	spares   bool
	unheard  []*wire.Packet
}

func (l *laziness) Await(n int) {
	if l.awaiting += n; l.awaiting > 0 {
		l.spares = false
	}
}

func (l *laziness) Spare() { l.spares = l.spares || l.awaiting == 0 }

// lazy makes a pair of which a hears acknowledgements late. No timeout makes up
// for one that it does not hear.
func (n *network) lazy(kind libibverbs.QpType, size int) (a, b *end, l *laziness) {
	node := n.node(1)
	l = &laziness{}
	node.lazy, node.config.Acks = l, l
	node.config.Outgoing = &gate{open: true, ways: map[uint32]*gateWay{}}
	a, b, g := n.gated(kind, size)
	g.open, a.qp.attr.Timeout = true, 0
	return a, b, l
}

// An end that waits for no acknowledgement spares them, and gets all that it
// waits for.
func TestSparedAcks(t *testing.T) {
	const size = 600 * 1024 // more packets than the window has
	send := SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}
	// quiet posts a request whose acknowledgement nothing waits for.
	quiet := func(a, b *end) { a.postQuiet(send.remote(b, 0), a.mr.sge(0, 8)) }
	// after posts one, and calls then when it is acknowledged.
	after := func(then func(a, b *end)) func(a, b *end) {
		return func(a, b *end) {
			quiet(a, b)
			a.n.run()
			then(a, b)
		}
	}
	// refused posts a request with a key that the peer does not have.
	refused := func(post func(a *end, s SendSlot, sges ...libibverbs.Sge)) func(a, b *end) {
		return func(a, b *end) {
			s := send.remote(b, 0)
			s.RKey ^= 1 << 16
			post(a, s, a.mr.sge(0, 8))
		}
	}
	for name, tt := range map[string]struct {
		run     func(a, b *end)
		unheard bool // whether acknowledgements are unheard in the end
		want    []result
		drained bool
	}{
		"unsignaled": {
			run:     quiet,
			unheard: true,
		},
		"signaled": {
			run:  func(a, b *end) { a.post(send.remote(b, 0), a.mr.sge(0, 8)) },
			want: []result{ok(0)},
		},
		"unsignaled, then signaled": {
			run: after(func(a, b *end) {
				a.post(send.remote(b, 8), a.mr.sge(0, 8))
			}),
			want: []result{ok(0)},
		},
		"signaled, then unsignaled": {
			run: func(a, b *end) {
				a.post(send.remote(b, 8), a.mr.sge(0, 8))
				quiet(a, b)
				a.n.run()
				quiet(a, b)
			},
			unheard: true,
			want:    []result{ok(0)},
		},
		"all signaled": {
			run: func(a, b *end) {
				a.qp.signalAll = true
				quiet(a, b)
			},
			want: []result{ok(0)},
		},
		"more than the window": {
			run:     func(a, b *end) { a.postQuiet(send.remote(b, 0), a.mr.sge(0, size)) },
			unheard: true,
		},
		"fence": {
			run: after(func(a, b *end) {
				a.postQuiet(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(8, 8))
				s := send
				s.ID, s.Flags = 1, uint32(libibverbs.IBV_SEND_FENCE)
				a.post(s.remote(b, 16), a.mr.sge(8, 8))
			}),
			want: []result{ok(1)},
		},
		"invalidation": {
			run: after(func(a, b *end) {
				a.post(SendSlot{Opcode: libibverbs.IBV_WR_LOCAL_INV, Imm: a.mr.key})
			}),
			want: []result{{0, libibverbs.IBV_WC_MW_BIND_ERR}},
		},
		"full window": {
			run: func(a, b *end) {
				a.qp.device.config.Window = 8
				for range 8 {
					quiet(a, b)
					a.n.run()
				}
				a.post(send.remote(b, 0), a.mr.sge(0, 8))
			},
			want: []result{ok(0)},
		},
		"refused": {
			run: after(func(a, b *end) {
				a.post(send.remote(b, 0), b.mr.sge(0, 8))
			}),
			want: []result{{0, libibverbs.IBV_WC_LOC_PROT_ERR}},
		},
		"failure": {
			run:  refused((*end).postQuiet),
			want: []result{{0, libibverbs.IBV_WC_REM_ACCESS_ERR}},
		},
		"failure of a signaled request": {
			run:  refused((*end).post),
			want: []result{{0, libibverbs.IBV_WC_REM_ACCESS_ERR}},
		},
		"counted": {
			run: func(a, b *end) {
				a.qp.counters = &counters{}
				quiet(a, b)
			},
		},
		"no receive": {
			run: func(a, b *end) {
				a.postQuiet(SendSlot{Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
				a.n.runFor(wire.RNRDelay(12) / 2)
				b.postRecv(0, b.mr.sge(0, 8))
			},
			unheard: true,
		},
		"draining": {
			run: after(func(a, b *end) {
				toSQD := &libibverbs.QpAttr{QpState: qpsSQD, EnSqdAsyncNotify: 1}
				require.NoError(t, a.qp.Modify(toSQD, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY))
			}),
			drained: true,
		},
		"destroyed": {
			run: func(a, b *end) {
				b.n.filter = func(p *wire.Packet) bool { return !p.IsAck() }
				a.post(send.remote(b, 0), a.mr.sge(0, 8))
				a.n.run()
				require.NoError(t, a.qp.Destroy())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, l := n.lazy(libibverbs.IBV_QPT_RC, size)
			n.fillRandom(a.mr.memory)
			tt.run(a, b)
			n.run()
			require.Equal(t, Never, a.Publish())
			require.Equal(t, Never, b.Publish())
			require.Equal(t, tt.want, results(a.send))
			require.Equal(t, tt.drained, len(a.takeEvents()) > 0)
			require.Equal(t, tt.unheard, len(l.unheard) > 0)
			require.Zero(t, l.awaiting)
			if name == "more than the window" {
				require.True(t, bytes.Equal(a.mr.memory, b.mr.memory))
			}
		})
	}
}
