// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func (d *node) xrcd() *XRCD {
	x, err := d.CreateXRCD()
	require.NoError(d.t, err)
	return x
}

// xrcAttr returns the attributes of a shared receive queue for XRC.
func xrcAttr(n uint32) *libibverbs.SrqInitAttrEx {
	a := srqAttr(n)
	a.SrqType = libibverbs.IBV_SRQT_XRC
	a.CompMask = libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD |
		libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ
	return a
}

// xrcSRQ makes a shared receive queue for XRC with a completion queue of its
// own.
func (d *node) xrcSRQ(x *XRCD, p *PD, n uint32) *SRQ {
	s, err := p.CreateSRQ(xrcAttr(n), newRecvQueue(n, 4), x, d.cq(4*depth))
	require.NoError(d.t, err)
	return s
}

func (d *node) xrcQP(x *XRCD) *QP {
	q, err := x.CreateQP(&libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_XRC_RECV, CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD})
	require.NoError(d.t, err)
	return q
}

// xrcEnds makes a sending end of a node, and a receiving end of another with a
// shared receive queue.
func (n *network) xrcEnds(from, to *node, bytes int) (a, b *end) {
	a = n.end(from, libibverbs.IBV_QPT_XRC_SEND, nil, bytes)
	x, pd := to.xrcd(), to.pd()
	s := to.xrcSRQ(x, pd, depth)
	a.aim = s.number
	b = &end{node: to, pd: pd, qp: to.xrcQP(x), recv: s.cq, mr: to.memory(pd, bytes, allAccess), n: n, srq: s}
	return a, b
}

func (n *network) xrcPair(bytes int) (a, b *end) {
	a, b = n.xrcEnds(n.nodes[0], n.nodes[1], bytes)
	n.join(a, b)
	return a, b
}

func TestXRCObjects(t *testing.T) {
	d, elsewhere := newNode(t, 1), newNode(t, 2)
	x, pd, cq := d.xrcd(), d.pd(), d.cq(4)
	for name, create := range map[string]func() (*SRQ, error){
		"no domain":      func() (*SRQ, error) { return pd.CreateSRQ(xrcAttr(1), newRecvQueue(1, 1), nil, cq) },
		"no queue":       func() (*SRQ, error) { return pd.CreateSRQ(xrcAttr(1), newRecvQueue(1, 1), x, nil) },
		"foreign domain": func() (*SRQ, error) { return pd.CreateSRQ(xrcAttr(1), newRecvQueue(1, 1), elsewhere.xrcd(), cq) },
		"foreign queue":  func() (*SRQ, error) { return pd.CreateSRQ(xrcAttr(1), newRecvQueue(1, 1), x, elsewhere.cq(4)) },
	} {
		_, err := create()
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	s, err := pd.CreateSRQ(xrcAttr(1), newRecvQueue(1, 1), x, cq)
	require.NoError(t, err)
	require.NotZero(t, s.Number())
	require.Zero(t, d.srq(d.pd(), 1).Number(), "basic")
	q := d.xrcQP(x)
	require.Same(t, q, x.XRCQP(q.number))
	require.Nil(t, d.xrcd().XRCQP(q.number), "of another domain")
	require.Nil(t, x.XRCQP(d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil).number), "of another type")
	_, err = x.CreateQP(&libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_RC})
	require.ErrorIs(t, err, syscall.EINVAL)

	require.ErrorIs(t, x.Destroy(), syscall.EBUSY)
	require.NoError(t, q.Destroy())
	require.ErrorIs(t, x.Destroy(), syscall.EBUSY)
	require.NoError(t, s.Destroy())
	require.NoError(t, x.Destroy())
	require.Empty(t, d.xrcSRQs)
}

// A completion queue is in use while a shared receive queue for XRC is.
func TestXRCQueueInUse(t *testing.T) {
	d := newNode(t, 1)
	s := d.xrcSRQ(d.xrcd(), d.pd(), 1)
	require.ErrorIs(t, s.cq.Destroy(), syscall.EBUSY)
	require.NoError(t, s.Destroy())
	require.NoError(t, s.cq.Destroy())
}

// A sender reaches all shared receive queues of the domain. The completion is
// that of the queue, with the number of the receiving queue pair.
func TestXRCReachesQueues(t *testing.T) {
	n := newNetwork(t, 1)
	n.watch = true
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 4096)
	other := b.xrcSRQ(b.srq.xrcd, b.node.pd(), 4)
	mr := b.memory(other.pd, 4096, allAccess)
	for i, s := range []*SRQ{b.srq, other, b.srq} {
		at := b.mr
		if s == other {
			at = mr
		}
		postRecv(t, s.queue, uint64(i), at.sge(0, 4096))
		n.fillRandom(a.mr.memory)
		a.post(SendSlot{ID: uint64(i), Opcode: libibverbs.IBV_WR_SEND, RemoteQPN: s.number}, a.mr.sge(0, 3000))
		n.run()
		require.Equal(t, []result{ok(uint64(i))}, results(a.send))
		got := poll(s.cq.ring)
		require.Len(t, got, 1)
		require.Equal(t, ok(uint64(i)), result{got[0].WrId, got[0].Status})
		require.Equal(t, b.qp.number, got[0].QpNum)
		require.Equal(t, a.qp.number, got[0].SrcQp)
		require.Equal(t, libibverbs.IBV_WC_RECV, got[0].Opcode)
		require.Equal(t, a.mr.memory[:3000], at.memory[:3000])
	}
	for _, p := range n.seen {
		require.Equal(t, wire.XRC, p.Opcode.Transport(), p.Opcode)
	}
}

// Requests that name a queue which does not exist, is of another domain, or is
// not for XRC are refused with a NAK for remote access, and so is every
// operation with memory of a protection domain that is not the queue's.
func TestXRCRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		number func(a, b *end) uint32
		memory func(a, b *end) *MR
	}{
		"no number":     {number: func(_, b *end) uint32 { return 1<<24 - 1&^b.srq.number }},
		"other domain":  {number: func(_, b *end) uint32 { return b.xrcSRQ(b.xrcd(), b.pd, 4).number }},
		"destroyed":     {number: func(_, b *end) uint32 { require.NoError(b.t, b.srq.Destroy()); return b.srq.number }},
		"other memory":  {memory: func(_, b *end) *MR { return b.memory(b.node.pd(), 64, allAccess) }},
		"other queue's": {number: func(_, b *end) uint32 { return b.xrcSRQ(b.srq.xrcd, b.node.pd(), 4).number }},
	} {
		for _, op := range []libibverbs.WrOpcode{
			libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ,
			libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD,
		} {
			sends := op == libibverbs.IBV_WR_SEND || op == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
			if sends && name == "other queue's" || op == libibverbs.IBV_WR_SEND && tt.number == nil {
				continue // the message waits for a receive, or needs no key
			}
			t.Run(name+" "+op.String(), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 64)
				n.fillRandom(b.mr.memory)
				before := append([]byte(nil), b.mr.memory...)
				b.postRecv(1, b.mr.sge(0, 64))
				s := SendSlot{ID: 1, Opcode: op}.remote(b, 0)
				if tt.number != nil {
					s.RemoteQPN = tt.number(a, b)
				}
				if tt.memory != nil {
					m := tt.memory(a, b)
					s.RemoteAddr, s.RKey = m.iova, m.key
				}
				a.post(s, a.mr.sge(0, 8))
				n.run()
				require.Equal(t, []result{{1, libibverbs.IBV_WC_REM_ACCESS_ERR}}, results(a.send))
				require.Equal(t, before, b.mr.memory)
				require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.State())
				require.Contains(t, b.takeEvents(), AsyncEvent{libibverbs.IBV_EVENT_QP_ACCESS_ERR, b.qp})
				require.NotContains(t, results(b.recv), ok(1))
			})
		}
	}
}

// A peer cannot change the queue in the middle of a message.
func TestXRCChangesQueue(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 4096)
	other := b.xrcSRQ(b.srq.xrcd, b.pd, 4)
	b.postRecv(1, b.mr.sge(0, 4096))
	postRecv(t, other.queue, 2, b.mr.sge(0, 4096))
	n.filter = func(p *wire.Packet) bool {
		if p.Opcode == wire.XRCSendLast {
			p.SRQ = other.number
		}
		return true
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 4096))
	n.run()
	require.Equal(t, []result{{1, libibverbs.IBV_WC_REM_ACCESS_ERR}}, results(a.send))
	require.Equal(t, []result{{1, libibverbs.IBV_WC_LOC_ACCESS_ERR}}, results(b.recv))
	require.Empty(t, results(other.cq))
	require.EqualValues(t, 1, other.queue.waiting(other.queue.Freed, other.queue.Freed))
}

// A queue may be destroyed while messages arrive in it, and while its
// completions wait. The sender fails, and nothing is written any more.
func TestXRCQueueGoesUnderTraffic(t *testing.T) {
	const size = 1 << 16
	refused := 0
	for _, op := range []libibverbs.WrOpcode{
		libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ,
	} {
		for steps := range 60 {
			n := newNetwork(t, uint64(steps))
			a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, size)
			b.limit(8)
			a.limit(8)
			for id := range uint64(3) {
				b.postRecv(id, b.mr.sge(0, size))
				a.post(SendSlot{ID: id, Opcode: op}.remote(b, 0), a.mr.sge(0, size))
			}
			for range steps {
				n.step()
			}
			require.NoError(t, b.srq.Destroy())
			require.Empty(t, poll(b.recv.ring))
			require.NoError(t, b.recv.Destroy())
			require.NoError(t, b.mr.Deregister())
			require.NoError(t, b.pd.Destroy())
			before := append([]byte(nil), b.mr.memory...)
			n.run()
			require.Equal(t, before, b.mr.memory)
			got := results(a.send)
			require.Len(t, got, 3)
			for _, r := range got {
				if r.status != libibverbs.IBV_WC_SUCCESS {
					refused++
					require.Contains(t, []libibverbs.WcStatus{libibverbs.IBV_WC_REM_ACCESS_ERR, libibverbs.IBV_WC_WR_FLUSH_ERR}, r.status)
				}
			}
			require.NoError(t, b.qp.Destroy())
			require.NoError(t, b.srq.xrcd.Destroy())
		}
	}
	require.NotZero(t, refused)
}

// Many senders share a queue: each message arrives once, and the event of the
// limit is reported once.
func TestXRCManySenders(t *testing.T) {
	const senders, messages = 20, 30
	n := newNetwork(t, 1)
	n.drop, n.reorder = 0.02, 0.02
	from, to := n.node(1), n.node(2)
	x, pd := to.xrcd(), to.pd()
	cq := to.cq(1 << 12)
	s, err := pd.CreateSRQ(xrcAttr(8), newRecvQueue(8, 4), x, cq)
	require.NoError(t, err)
	mr := to.memory(pd, 8*4096, allAccess)
	require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: 4}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
	var ends []*end
	numbers := map[uint32]int{}
	for i := range senders {
		a := n.end(from, libibverbs.IBV_QPT_XRC_SEND, nil, 4096)
		b := &end{node: to, pd: pd, qp: to.xrcQP(x), recv: cq, mr: mr, n: n, srq: s}
		n.join(a, b)
		a.qp.attr.RnrRetry = 7
		a.aim = s.number
		numbers[b.qp.number] = i
		ends = append(ends, a)
	}
	posted := uint64(0)
	postAll := func() {
		for !full(s.queue) {
			postRecv(t, s.queue, posted%8, mr.sge(int(posted%8)*4096, 4096))
			posted++
		}
	}
	postAll()
	for id := range uint64(messages) {
		for i, a := range ends {
			a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND_WITH_IMM, Imm: uint32(i)<<16 | uint32(id)}, a.mr.sge(0, 100+i))
		}
	}
	next := [senders]uint32{}
	limits := 0
	for got, limit := 0, n.steps+1_000_000; got < senders*messages; n.step() {
		require.Less(t, n.steps, limit, "messages are missing")
		for _, c := range poll(cq.ring) {
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, c.Status)
			imm := uint32(*c.ImmData())
			i := int(imm >> 16)
			require.Equal(t, i, numbers[c.QpNum])
			require.Equal(t, next[i], imm&0xFFFF, "in order")
			require.EqualValues(t, 100+i, c.ByteLen)
			next[i]++
			got++
		}
		postAll()
		for _, e := range to.takeEvents() {
			require.Equal(t, AsyncEvent{libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED, s}, e)
			limits++
		}
	}
	n.run()
	require.LessOrEqual(t, limits, 1)
	for _, a := range ends {
		require.Len(t, results(a.send), messages)
	}
}

// Without a receive, the sender waits, as on a reliable connection.
func TestXRCNotReady(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 64)
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.runFor(100 * time.Microsecond)
	require.Empty(t, results(a.send))
	b.postRecv(1, b.mr.sge(0, 64))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, []result{ok(1)}, results(b.recv))
	require.NotZero(t, a.qp.Retries().ReceiversNotReady)
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{{2, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR}}, results(a.send))
}

// A sending queue pair ignores requests, and a receiving one responses. Both
// ignore packets of reliable connections.
func TestXRCIgnores(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 64)
	b.postRecv(1, b.mr.sge(0, 64))
	give := func(e *end, op wire.Opcode) {
		p := &wire.Packet{
			Opcode: op, PSN: e.qp.responder.psn, DestQP: e.qp.number, PKey: 0xFFFF, SGID: e.qp.path.dgid, DGID: e.qp.path.sgid,
			AckReq: true, SRQ: b.srq.number, Payload: [][]byte{{1}},
		}
		e.Receive(p)
	}
	give(a, wire.XRCSendOnly)
	give(a, wire.RCSendOnly)
	give(a, wire.RCAck)
	give(b, wire.RCSendOnly)
	for _, op := range []wire.Opcode{wire.XRCAck, wire.XRCReadOnly, wire.XRCAtomicAck} {
		give(b, op)
	}
	n.run()
	require.Empty(t, poll(b.recv.ring))
	require.Equal(t, libibverbs.IBV_QPS_RTS, a.qp.State())
	require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.State())
	require.Zero(t, a.counters.PacketsSent+b.counters.PacketsSent)
	give(b, wire.XRCSendOnly)
	require.Equal(t, []result{ok(1)}, results(b.recv))
}

// The completions of a receiving queue pair outlive it, as they belong to the
// shared receive queue. In the error state, it reports that it takes no more
// receives, and completes the one that it has taken.
func TestXRCEndOfQP(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 4096)
	for id := range uint64(3) {
		b.postRecv(id, b.mr.sge(0, 4096))
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.run()
	n.filter = func(p *wire.Packet) bool { return p.Opcode != wire.XRCSendLast }
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 4096))
	n.runFor(time.Millisecond)
	b.modify(libibverbs.IBV_QPS_ERR)
	require.Equal(t, []AsyncEvent{{libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, b.qp}}, b.takeEvents())
	require.NoError(t, b.qp.Destroy())
	require.Equal(t, []result{ok(0), {1, libibverbs.IBV_WC_WR_FLUSH_ERR}}, results(b.recv))
	n.run()
	require.Equal(t, libibverbs.IBV_WC_RETRY_EXC_ERR, results(a.send)[1].status)
}

// When the completion queue of a shared receive queue is full, the queue pairs
// that deliver to it fail.
func TestXRCOverrun(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_XRC_SEND, 64)
	small, err := b.pd.CreateSRQ(xrcAttr(8), newRecvQueue(8, 4), b.srq.xrcd, b.cq(1))
	require.NoError(t, err)
	for id := range uint64(3) {
		postRecv(t, small.queue, id, b.mr.sge(0, 64))
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND, RemoteQPN: small.number}, a.mr.sge(0, 8))
	}
	n.run()
	require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.State())
	require.Contains(t, b.takeEvents(), AsyncEvent{libibverbs.IBV_EVENT_CQ_ERR, small.cq})
	require.Equal(t, ok(0), results(a.send)[0])

	other := n.end(a.node, libibverbs.IBV_QPT_XRC_SEND, nil, 64)
	n.join(other, &end{node: b.node, qp: b.xrcQP(small.xrcd), n: n})
	other.post(SendSlot{ID: 9, Opcode: libibverbs.IBV_WR_SEND, RemoteQPN: small.number}, other.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{{9, libibverbs.IBV_WC_REM_OP_ERR}}, results(other.send))
	require.EqualValues(t, 1, small.queue.waiting(small.queue.Freed, small.queue.Freed), "the receive stays")
}
