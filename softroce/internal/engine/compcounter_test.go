// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const (
	countSends        = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND
	countRecvs        = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV
	countReads        = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
	countWrites       = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
	countRemoteReads  = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
	countRemoteWrites = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
)

// counter attaches a new counter of operations to the end's queue pair.
func (e *end) counter(kind libibverbs.CompCntrType, ops libibverbs.QpAttachCompCntrOp) *CompletionCounter {
	e.t.Helper()
	c, err := e.CreateCompletionCounter(&libibverbs.CompCntrInitAttr{Type: kind})
	require.NoError(e.t, err)
	state := e.qp.attr.QpState
	e.qp.attr.QpState = libibverbs.IBV_QPS_INIT // the ends of tests are connected when they are made
	require.NoError(e.t, e.qp.AttachCounter(c, &libibverbs.QpAttachCompCntrAttr{OpMask: ops}))
	e.qp.attr.QpState = state
	return c
}

// perOp attaches a counter for each operation to the end's queue pair, and
// returns a function that returns the changes of those that have changed.
func (e *end) perOp(kind libibverbs.CompCntrType) (changes func() map[libibverbs.QpAttachCompCntrOp][2]uint64) {
	e.t.Helper()
	all := map[libibverbs.QpAttachCompCntrOp]*CompletionCounter{}
	for _, op := range []libibverbs.QpAttachCompCntrOp{countSends, countRecvs, countReads, countWrites, countRemoteReads, countRemoteWrites} {
		all[op] = e.counter(kind, op)
	}
	return func() map[libibverbs.QpAttachCompCntrOp][2]uint64 {
		changed := map[libibverbs.QpAttachCompCntrOp][2]uint64{}
		for op, c := range all {
			if c.done+c.failed > 0 {
				changed[op] = [2]uint64{c.done, c.failed}
			}
		}
		return changed
	}
}

type counts = map[libibverbs.QpAttachCompCntrOp][2]uint64

// Each operation counts at the ends that it concerns, signaled or not.
func TestCompletionsAreCounted(t *testing.T) {
	const size = 3000 // several packets
	for name, tt := range map[string]struct {
		slot     SendSlot
		kind     libibverbs.QpType
		fails    bool // whether the peer refuses the request
		from, to counts
		bytes    counts // at both ends, in bytes
	}{
		"send":               {slot: SendSlot{Opcode: libibverbs.IBV_WR_SEND}, from: counts{countSends: {1, 0}}, to: counts{countRecvs: {1, 0}}},
		"send with imm":      {slot: SendSlot{Opcode: libibverbs.IBV_WR_SEND_WITH_IMM}, from: counts{countSends: {1, 0}}, to: counts{countRecvs: {1, 0}}},
		"write":              {slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, from: counts{countWrites: {1, 0}}, to: counts{countRemoteWrites: {1, 0}}},
		"write with imm":     {slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}, from: counts{countWrites: {1, 0}}, to: counts{countRemoteWrites: {1, 0}, countRecvs: {1, 0}}},
		"read":               {slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}, from: counts{countReads: {1, 0}}, to: counts{countRemoteReads: {1, 0}}},
		"unreliable send":    {kind: libibverbs.IBV_QPT_UC, slot: SendSlot{Opcode: libibverbs.IBV_WR_SEND}, from: counts{countSends: {1, 0}}, to: counts{countRecvs: {1, 0}}},
		"unreliable write":   {kind: libibverbs.IBV_QPT_UC, slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, from: counts{countWrites: {1, 0}}, to: counts{countRemoteWrites: {1, 0}}},
		"write with bad key": {fails: true, slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, from: counts{countWrites: {0, 1}}, to: counts{countRemoteWrites: {0, 1}, countRecvs: {0, 1}}},
		"read with bad key":  {fails: true, slot: SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}, from: counts{countReads: {0, 1}}, to: counts{countRemoteReads: {0, 1}, countRecvs: {0, 1}}},
	} {
		for _, unit := range []libibverbs.CompCntrType{libibverbs.IBV_COMP_CNTR_TYPE_WRS, libibverbs.IBV_COMP_CNTR_TYPE_BYTES} {
			t.Run(name+" "+unit.String(), func(t *testing.T) {
				if tt.kind == 0 {
					tt.kind = libibverbs.IBV_QPT_RC
				}
				n := newNetwork(t, 1)
				n.drop, n.duplicate, n.reorder = 0.2, 0.2, 0.2
				if tt.kind == libibverbs.IBV_QPT_UC {
					n.drop, n.duplicate, n.reorder = 0, 0, 0
				}
				a, b := n.pair(tt.kind, size)
				of := func(e *end, want counts) func() {
					changes := e.perOp(unit)
					return func() {
						if unit == libibverbs.IBV_COMP_CNTR_TYPE_BYTES {
							in := counts{}
							for op, v := range want {
								in[op] = [2]uint64{v[0] * size, v[1]}
							}
							want = in
						}
						require.Equal(t, want, changes())
					}
				}
				checkA, checkB := of(a, tt.from), of(b, tt.to)
				b.postRecv(1, b.mr.sge(0, size))
				tt.slot = tt.slot.remote(b, 0)
				if tt.fails {
					tt.slot.RKey++
				}
				a.postQuiet(tt.slot, a.mr.sge(0, size))
				n.run()
				checkA()
				checkB()
			})
		}
	}
}

// What a queue pair that has failed flushes is counted as failed, also what it
// has never begun. Atomics are not counted.
func TestFlushesAreCounted(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	changes := a.perOp(libibverbs.IBV_COMP_CNTR_TYPE_BYTES)
	a.post(SendSlot{Opcode: libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD}.remote(b, 0), a.mr.sge(0, 8))
	n.run()
	require.Empty(t, changes())
	a.postRecv(1, a.mr.sge(0, 8))
	a.postRecv(2, a.mr.sge(0, 8))
	for _, op := range []libibverbs.WrOpcode{
		libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_SEND_WITH_INV,
		libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_BIND_MW, 100,
	} {
		a.post(SendSlot{Opcode: op}.remote(b, 0), a.mr.sge(0, 8))
	}
	a.modify(libibverbs.IBV_QPS_ERR)
	n.run()
	require.Equal(t, counts{countRecvs: {0, 2}, countReads: {0, 1}, countSends: {0, 2}, countWrites: {0, 1}}, changes())
}

// A datagram counts with the header that the receive gets, as in a completion.
func TestDatagramsAreCounted(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	from, to := a.counter(libibverbs.IBV_COMP_CNTR_TYPE_BYTES, countSends), b.counter(libibverbs.IBV_COMP_CNTR_TYPE_BYTES, countRecvs)
	b.postRecv(1, b.mr.sge(0, 64))
	a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND}.to(a, b), a.mr.sge(0, 10))
	n.run()
	require.EqualValues(t, 10, from.done)
	require.EqualValues(t, 50, to.done)
}

// A counter may count for several queue pairs, and goes after them. A queue
// pair has one counter for an operation, which it gets before it is connected.
func TestAttachCounter(t *testing.T) {
	n := newNetwork(t, 1)
	d := n.node(1)
	a, b := n.end(d, libibverbs.IBV_QPT_RC, nil, 64), n.end(d, libibverbs.IBV_QPT_RC, nil, 64)
	other := n.node(2)
	create := func(d *node, attr libibverbs.CompCntrInitAttr) *CompletionCounter {
		c, err := d.CreateCompletionCounter(&attr)
		require.NoError(t, err)
		return c
	}
	c, foreign := create(d, libibverbs.CompCntrInitAttr{}), create(other, libibverbs.CompCntrInitAttr{})
	attach := func(q *QP, c *CompletionCounter, mask, ops uint32) error {
		return q.AttachCounter(c, &libibverbs.QpAttachCompCntrAttr{CompMask: mask, OpMask: libibverbs.QpAttachCompCntrOp(ops)})
	}
	require.ErrorIs(t, attach(a.qp, c, 0, 0), syscall.EINVAL)
	require.ErrorIs(t, attach(a.qp, c, 1, 1), syscall.EINVAL)
	require.ErrorIs(t, attach(a.qp, foreign, 0, 1), syscall.EINVAL)
	require.ErrorIs(t, attach(a.qp, c, 0, 1<<6|1), syscall.EOPNOTSUPP)
	require.NoError(t, attach(a.qp, c, 0, 3))
	require.ErrorIs(t, attach(a.qp, create(d, libibverbs.CompCntrInitAttr{}), 0, 6), syscall.EBUSY)
	require.NoError(t, attach(a.qp, create(d, libibverbs.CompCntrInitAttr{}), 0, 4), "nothing of what failed is attached")
	require.NoError(t, b.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_INIT, PortNum: 1}, libibverbs.IBV_QP_STATE|connInit))
	require.NoError(t, attach(b.qp, c, 0, 1))
	b.modify(libibverbs.IBV_QPS_ERR)
	require.ErrorIs(t, attach(b.qp, c, 0, 2), syscall.EINVAL)
	b.modify(libibverbs.IBV_QPS_RESET)
	require.ErrorIs(t, c.Destroy(), syscall.EBUSY)
	require.NoError(t, a.qp.Destroy())
	require.ErrorIs(t, c.Destroy(), syscall.EBUSY, "a reset does not detach")
	require.NoError(t, b.qp.Destroy())
	require.NoError(t, c.Destroy())

	for _, attr := range []libibverbs.CompCntrInitAttr{{CompMask: 1}, {Flags: 1}, {Type: 2}} {
		_, err := d.CreateCompletionCounter(&attr)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	d.limits.Counters = d.compCounters
	_, err := d.CreateCompletionCounter(&libibverbs.CompCntrInitAttr{})
	require.ErrorIs(t, err, syscall.ENOMEM)
	d.limits.Counters = 0
	_, err = d.CreateCompletionCounter(&libibverbs.CompCntrInitAttr{})
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = d.CompletionCounterCaps()
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	d.Remove()
	_, _, err = foreign.Values()
	require.NoError(t, err)
	_, err = d.CompletionCounterCaps()
	require.ErrorIs(t, err, syscall.EIO)
}

// A program sees the count of what a peer has done when the answer has left the
// process, after the data.
func TestCountsAwaitAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		slot SendSlot
		op   libibverbs.QpAttachCompCntrOp
	}{
		"send":  {SendSlot{Opcode: libibverbs.IBV_WR_SEND}, countRecvs},
		"write": {SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, countRemoteWrites},
		"read":  {SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ}, countRemoteReads},
	} {
		for end, finish := range map[string]func(n *network, b *end, g *gate){
			"leave": func(_ *network, b *end, g *gate) { g.open = true; b.Publish() },
			"late":  func(n *network, b *end, _ *gate) { n.now = b.Publish(); b.Advance(n.now); b.Publish() },
			"reset": func(_ *network, b *end, g *gate) { b.modify(libibverbs.IBV_QPS_RESET); g.open = true; b.Publish() },
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b, g := n.gated(libibverbs.IBV_QPT_RC, 4096)
				c := b.counter(libibverbs.IBV_COMP_CNTR_TYPE_WRS, tt.op)
				const many = 2
				for range many {
					b.postRecv(7, b.mr.sge(0, 8))
					a.post(tt.slot.remote(b, 0), a.mr.sge(0, 8))
				}
				n.run()
				b.Publish()
				require.Zero(t, c.done)
				finish(n, b, g)
				require.EqualValues(t, many, c.done)
				require.Empty(t, b.staged.counts)
			})
		}
	}
}

// However much a peer does while no answer leaves, little of it is kept.
func TestStagedCountsAreFew(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 4096)
	c := b.counter(libibverbs.IBV_COMP_CNTR_TYPE_BYTES, countRemoteWrites)
	const rounds = 2 * maxStagedCounts
	for range rounds {
		a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 3))
		n.run()
		poll(a.send.ring)
	}
	require.Len(t, b.staged.counts, maxStagedCounts)
	g.open = true
	require.Equal(t, Never, b.Publish())
	require.EqualValues(t, 3*rounds, c.done)
}
