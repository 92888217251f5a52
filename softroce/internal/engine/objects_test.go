// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// This file tests what becomes of traffic when the objects that it uses change.

func (e *end) modify(state libibverbs.QpState) {
	e.t.Helper()
	require.NoError(e.t, e.qp.Modify(&libibverbs.QpAttr{QpState: state}, libibverbs.IBV_QP_STATE))
}

// A port that is down loses packets. What is repeated long enough arrives.
func TestPortDown(t *testing.T) {
	for name, down := range map[string]func(a, b *end) *end{
		"sender's":   func(a, b *end) *end { return a },
		"receiver's": func(a, b *end) *end { return b },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 4096)
			d := down(a, b)
			d.SetPort(false)
			b.postRecv(1, b.mr.sge(0, 100))
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 100))
			n.runFor(time.Millisecond)
			require.Empty(t, results(a.send))
			d.SetPort(true)
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, []result{ok(1)}, results(b.recv))

			d.SetPort(false)
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 100))
			n.run()
			require.Equal(t, []result{{2, libibverbs.IBV_WC_RETRY_EXC_ERR}}, results(a.send))
			require.Empty(t, results(b.recv))
		})
	}
}

// A device that is removed flushes what was posted.
func TestRemoveUnderTraffic(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<16)
	for id := range uint64(5) {
		b.postRecv(id, b.mr.sge(0, 1<<16))
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 1<<16))
	}
	n.step()
	done := len(results(a.send))
	require.Less(t, done, 5)
	a.Remove()
	n.runFor(time.Millisecond)
	got := results(a.send)
	require.Len(t, got, 5-done)
	for i, r := range got {
		require.Equal(t, result{uint64(done + i), libibverbs.IBV_WC_WR_FLUSH_ERR}, r)
	}
	sent := len(a.sent)
	n.run()
	require.Len(t, a.sent, sent)
}

// A queue pair that is reset or destroyed forgets what is under way at either
// end, and can be used anew.
func TestEndUnderTraffic(t *testing.T) {
	for name, again := range map[string]func(n *network, e *end){
		"reset": func(_ *network, e *end) { e.modify(libibverbs.IBV_QPS_RESET) },
		"error and reset": func(n *network, e *end) {
			e.modify(libibverbs.IBV_QPS_ERR)
			n.step()
			e.modify(libibverbs.IBV_QPS_RESET)
		},
		"destroy": func(n *network, e *end) {
			require.NoError(e.t, e.qp.Destroy())
			e.qp = e.node.qp(e.pd, e.qp.kind, e.send, e.recv, nil)
		},
	} {
		for _, opcode := range []libibverbs.WrOpcode{libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_READ} {
			for steps := range 12 {
				t.Run(fmt.Sprint(name, " ", opcode, " ", steps), func(t *testing.T) {
					n := newNetwork(t, uint64(steps))
					a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
					for id := range uint64(4) {
						b.postRecv(id, b.mr.sge(0, 1<<14))
						a.post(SendSlot{ID: id, Opcode: opcode}.remote(b, 0), a.mr.sge(0, 1<<14))
					}
					for range steps {
						n.step()
					}
					again(n, a)
					again(n, b)
					n.run()
					require.Empty(t, results(a.send))
					require.Empty(t, results(b.recv))

					n.join(a, b)
					n.fillRandom(a.mr.memory)
					b.postRecv(9, b.mr.sge(0, 1<<14))
					a.post(SendSlot{ID: 9, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 1<<14))
					n.run()
					require.Equal(t, []result{ok(9)}, results(a.send))
					require.Equal(t, []result{ok(9)}, results(b.recv))
					require.Equal(t, a.mr.memory, b.mr.memory)
				})
			}
		}
	}
}

// A region may go while requests use it: each succeeds or fails with a status
// that says so.
func TestRegionGoesUnderTraffic(t *testing.T) {
	const locProt, remAccess = libibverbs.IBV_WC_LOC_PROT_ERR, libibverbs.IBV_WC_REM_ACCESS_ERR
	for _, opcode := range []libibverbs.WrOpcode{libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_READ} {
		for _, local := range []bool{true, false} {
			statuses := map[libibverbs.WcStatus]bool{}
			for steps := range 60 {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<16)
				b.postRecv(1, b.mr.sge(0, 1<<16))
				a.post(SendSlot{ID: 1, Opcode: opcode}.remote(b, 0), a.mr.sge(0, 1<<16))
				for range steps {
					n.step()
				}
				gone := b
				if local {
					gone = a
				}
				require.NoError(t, gone.mr.Deregister())
				n.run()
				got := results(a.send)
				require.Len(t, got, 1)
				statuses[got[0].status] = true
			}
			want := map[libibverbs.WcStatus]bool{libibverbs.IBV_WC_SUCCESS: true, remAccess: true}
			if local {
				want = map[libibverbs.WcStatus]bool{libibverbs.IBV_WC_SUCCESS: true, locProt: true}
			} else if opcode == libibverbs.IBV_WR_SEND {
				want = map[libibverbs.WcStatus]bool{libibverbs.IBV_WC_SUCCESS: true, libibverbs.IBV_WC_REM_OP_ERR: true}
			}
			require.Equal(t, want, statuses, "%v, local %v", opcode, local)
		}
	}
}

// In SQD what has begun is finished, what has not begun waits, and the event
// comes in between.
func TestDrainingUnderTraffic(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
	post := func(id uint64) {
		b.postRecv(id, b.mr.sge(0, 1<<14))
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 1<<14))
	}
	post(1)
	n.step()
	toSQD := &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_SQD, EnSqdAsyncNotify: 1}
	require.NoError(t, a.qp.Modify(toSQD, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY))
	attr, err := a.qp.Attr()
	require.NoError(t, err)
	require.NotZero(t, attr.SqDraining)
	post(2)
	require.Empty(t, results(a.send))
	a.requireEvents()
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	a.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_SQ_DRAINED, a.qp})
	attr, err = a.qp.Attr()
	require.NoError(t, err)
	require.Zero(t, attr.SqDraining)
	a.modify(libibverbs.IBV_QPS_RTS)
	n.run()
	require.Equal(t, []result{ok(2)}, results(a.send))
	a.requireEvents()
}

// A queue pair in the error state flushes both queues in order, also what is
// posted there.
func TestErrorFlushes(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
	var want []result
	for id := range uint64(20) {
		a.postRecv(id, a.mr.sge(0, 8))
		a.postQuiet(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 1<<14))
		want = append(want, result{id, libibverbs.IBV_WC_WR_FLUSH_ERR})
		if id == 9 {
			a.modify(libibverbs.IBV_QPS_ERR)
			n.run()
		}
	}
	n.run()
	require.Equal(t, want, results(a.send))
	require.Equal(t, want, results(a.recv))
	require.False(t, full(a.qp.send))
}

// When a completion queue runs over, its queue pairs fail, and the device goes
// on.
func TestOverrunUnderTraffic(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 4096)
	c := n.end(a.node, libibverbs.IBV_QPT_RC, nil, 4096)
	n.join(c, n.end(b.node, libibverbs.IBV_QPT_RC, nil, 4096))
	small := newCompletions(4)
	require.NoError(t, a.send.Resize(small.Entries, small.Size, 4))
	for id := range uint64(20) {
		a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
		a.postRecv(id, a.mr.sge(0, 8))
	}
	n.run()
	a.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_CQ_ERR, a.send})
	require.Equal(t, libibverbs.IBV_QPS_ERR, a.qp.attr.QpState)
	require.Equal(t, []result{ok(0), ok(1), ok(2), ok(3)}, results(a.send))
	require.Len(t, results(a.recv), 20, "they are flushed")
	require.Equal(t, libibverbs.IBV_QPS_RTS, c.qp.attr.QpState)
}

// A datagram arrives at each address that the port has, and at no other.
func TestDatagramsToAddresses(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.end(n.node(1), libibverbs.IBV_QPT_UD, nil, 4096), n.end(n.node(2), libibverbs.IBV_QPT_UD, nil, 4096)
	a.datagrams(a.qp, 1)
	b.datagrams(b.qp, 1)
	require.NoError(t, b.SetGID(7, GIDEntry{GID: testGID(8)}))
	ah, err := a.pd.CreateAH(ahAttr(2))
	require.NoError(t, err)
	a.post(SendSlot{Opcode: libibverbs.IBV_WR_SEND, AH: ah.Handle(), RemoteQPN: b.qp.number, RemoteQKey: 1}, a.mr.sge(0, 8))
	a.Advance(0)
	require.Len(t, a.sent, 1)
	for number, want := range map[byte][]result{2: {ok(1)}, 8: {ok(1)}, 9: nil} {
		b.postRecv(1, b.mr.sge(0, 100))
		p := n.clone(a.sent[0])
		p.DGID = testGID(number)
		b.Receive(p)
		b.Advance(0)
		require.Equal(t, want, results(b.recv), number)
	}
}

// Whatever happens to objects under traffic, in whatever order, the device
// survives, completions are of queue pairs that there are, and nothing is left
// at the end.
func TestChurn(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := newNetwork(t, seed)
			n.drop, n.duplicate, n.reorder = 0.02, 0.02, 0.1
			n.node(1)
			n.node(2)
			c := &churn{network: n, r: rand.New(rand.NewPCG(seed, 7))}
			for range 10_000 {
				c.act()
				c.checkWindows()
			}
			c.clear()
		})
	}
}

// churn makes, uses, changes and removes objects at random.
type churn struct {
	*network
	r    *rand.Rand
	ends []*end
	pds  []*PD
	srqs []*SRQ
	mrs  []*MR // of ends that are gone
	mws  []*MW
	ahs  []*AH
}

func (c *churn) act() {
	if len(c.ends) < 2 {
		c.create()
	}
	e, peer := c.ends[c.r.IntN(len(c.ends))], c.ends[c.r.IntN(len(c.ends))]
	state := e.qp.attr.QpState
	if (state == libibverbs.IBV_QPS_RESET || state == libibverbs.IBV_QPS_ERR) && c.r.IntN(2) == 0 {
		c.changeState(e, peer)
		return
	}
	ready := state >= libibverbs.IBV_QPS_RTS && !full(e.qp.send)
	switch c.r.IntN(40) {
	case 0:
		c.create()
	case 1:
		c.destroy()
	case 2:
		if s := e.qp.srq; s != nil {
			size := uint32(1 + c.r.IntN(64))
			to := newQueue(size, s.queue.MaxSGE, 0, RecvSlotSize)
			mask := libibverbs.SrqAttrMask(c.r.IntN(4))
			err := s.Modify(libibverbs.SrqAttr{MaxWr: size, SrqLimit: uint32(c.r.IntN(64))}, mask, to.Slots, to.Size)
			require.True(c.t, err == nil || err == syscall.EINVAL, err)
			require.LessOrEqual(c.t, s.limit, s.queue.Max)
		}
	case 3:
		c.mrs = append(c.mrs, e.mr)
		e.mr = e.memory(e.pd, churnBytes, allAccess)
		if old := c.mrs[c.r.IntN(len(c.mrs))]; old.windows > 0 {
			require.Equal(c.t, syscall.EBUSY, old.Deregister())
		} else {
			require.NoError(c.t, old.Deregister())
			c.mrs = slices.DeleteFunc(c.mrs, func(m *MR) bool { return m == old })
		}
	case 4:
		size := uint32(200 + c.r.IntN(200))
		ring := newCompletions(size)
		require.NoError(c.t, e.send.Resize(ring.Entries, ring.Size, size))
	case 5:
		e.SetPort(c.r.IntN(8) > 0)
	case 6:
		c.mws = append(c.mws, e.window(e.pd, libibverbs.IBV_MW_TYPE_1+libibverbs.MwType(c.r.IntN(2))))
	case 7:
		if len(c.mws) > 0 && ready {
			e.post(*bindSlot(c.mws[c.r.IntN(len(c.mws))], e.mr, 0, churnBytes, remoteRead|remoteWrite))
		}
	case 8:
		if len(c.mws) > 0 {
			i := c.r.IntN(len(c.mws))
			require.NoError(c.t, c.mws[i].Dealloc())
			c.mws = slices.Delete(c.mws, i, i+1)
		}
	case 9:
		require.NoError(c.t, e.SetGID(1+c.r.IntN(3), GIDEntry{GID: testGID(byte(100 + c.r.IntN(2)))}))
	case 10:
		if a, err := e.pd.CreateAH(ahAttr(peer.number())); err == nil {
			c.ahs = append(c.ahs, a)
		}
	case 11, 12:
		if q := e.qp.recv; q != nil && !full(q) && e.qp.attr.QpState != libibverbs.IBV_QPS_RESET {
			e.postRecv(0, e.mr.sge(0, 8*c.r.IntN(churnBytes/8)))
		} else if e.qp.srq != nil && !full(e.qp.srq.queue) {
			postRecv(c.t, e.qp.srq.queue, 0, e.mr.sge(0, churnBytes))
		}
	case 13:
		for _, cq := range []*CQ{e.send, e.recv} {
			for _, wc := range poll(cq.ring) {
				require.Same(c.t, e.qp, e.qps[wc.QpNum])
			}
			cq.ring.Armed = ArmedNext
		}
	case 14:
		m := libibverbs.ModerateCq{CqCount: uint16(c.r.IntN(3)), CqPeriod: uint16(c.r.IntN(3))}
		require.NoError(c.t, e.send.Moderate(m))
	case 15, 16, 17:
		for range c.r.IntN(40) {
			c.step()
		}
	case 18, 19:
		c.changeState(e, peer)
	default:
		if ready {
			c.post(e, peer)
		}
	}
}

const churnBytes = 8192

func (c *churn) create() {
	if len(c.ends) == 10 {
		return
	}
	d := c.nodes[c.r.IntN(len(c.nodes))]
	var srq *SRQ
	if c.r.IntN(3) == 0 {
		srq = d.srq(d.pd(), 32)
		c.srqs = append(c.srqs, srq)
	}
	kind := []libibverbs.QpType{libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_UD}[c.r.IntN(4)]
	e := c.end(d, kind, srq, churnBytes)
	c.ends, c.pds = append(c.ends, e), append(c.pds, e.pd)
}

// changeState connects two queue pairs to each other, or takes one a step
// further, with any attributes that the step permits.
func (c *churn) changeState(e, peer *end) {
	if e.qp.attr.QpState == libibverbs.IBV_QPS_RESET && c.r.IntN(4) > 0 {
		c.connectTo(e, peer)
		return
	}
	var ways []step
	for s := range steps[e.qp.kind] {
		if s.from == e.qp.attr.QpState {
			ways = append(ways, s)
		}
	}
	slices.SortFunc(ways, func(a, b step) int { return int(a.to) - int(b.to) })
	if len(ways) == 0 || c.r.IntN(8) == 0 {
		e.modify([]libibverbs.QpState{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_ERR}[c.r.IntN(2)])
		return
	}
	s := ways[c.r.IntN(len(ways))]
	mask := steps[e.qp.kind][s].required | steps[e.qp.kind][s].optional&libibverbs.QpAttrMask(c.r.Uint32())
	mask &^= libibverbs.IBV_QP_ALT_PATH // RoCE has none
	if s.from != s.to || c.r.IntN(2) == 0 {
		mask |= libibverbs.IBV_QP_STATE
	}
	require.NoError(c.t, e.qp.Modify(c.attr(s, peer), mask), "%v with %v", s, mask)
}

// checkWindows checks that each queue pair knows the windows that are bound
// through it.
func (c *churn) checkWindows() {
	for _, e := range c.ends {
		for w := range e.qp.windows {
			require.Same(c.t, e.qp, w.qp)
		}
	}
	for _, w := range c.mws {
		if w.qp != nil {
			require.Contains(c.t, w.qp.windows, w)
		}
	}
}

// connectTo makes a queue pair ready to send, with one of the same kind if
// there is another, which it connects to it.
func (c *churn) connectTo(e, peer *end) {
	if e.qp.kind == libibverbs.IBV_QPT_UD {
		e.datagrams(e.qp, 1)
		return
	}
	others := slices.DeleteFunc(slices.Clone(c.ends), func(o *end) bool { return o == e || o.qp.kind != e.qp.kind })
	if len(others) > 0 {
		peer = others[c.r.IntN(len(others))]
		peer.modify(libibverbs.IBV_QPS_RESET)
		peer.connect(peer.qp, e.number(), e.qp.number)
	}
	e.connect(e.qp, peer.number(), peer.qp.number)
}

// attr returns attributes for a step, each with a value that the device takes.
func (c *churn) attr(s step, peer *end) *libibverbs.QpAttr {
	flags := []libibverbs.AccessFlags{0, libibverbs.IBV_ACCESS_REMOTE_READ, remoteAccess, remoteAccess}
	return &libibverbs.QpAttr{
		QpState: s.to, CurQpState: s.from, PortNum: 1, Qkey: uint32(c.r.IntN(2)), EnSqdAsyncNotify: uint8(c.r.IntN(2)),
		QpAccessFlags: flags[c.r.IntN(len(flags))], PathMtu: libibverbs.IBV_MTU_256 + libibverbs.Mtu(c.r.IntN(5)),
		DestQpNum: peer.qp.number, AhAttr: *ahAttr(peer.number()), RqPsn: uint32(c.r.IntN(2)), SqPsn: uint32(c.r.IntN(2)),
		Timeout: uint8(c.r.IntN(32)), RetryCnt: uint8(c.r.IntN(8)), RnrRetry: uint8(c.r.IntN(8)), MinRnrTimer: uint8(c.r.IntN(32)),
		MaxRdAtomic: uint8(c.r.IntN(6)), MaxDestRdAtomic: uint8(c.r.IntN(6)),
	}
}

// post posts any request, right or wrong, mostly to the queue pair that e is
// connected to.
func (c *churn) post(e, peer *end) {
	if i := slices.IndexFunc(c.ends, func(o *end) bool { return o.qp.number == e.qp.attr.DestQpNum }); i >= 0 {
		peer = c.ends[i]
	}
	s := SendSlot{
		Opcode: libibverbs.WrOpcode(c.r.IntN(11)), CompareAdd: 1, RemoteQPN: peer.qp.number, RemoteQKey: 1,
		Flags: uint32(c.r.IntN(8)), // fence, signaled, solicited
	}
	length := 8
	if c.r.IntN(4) > 0 { // one that can succeed
		s.Opcode = []libibverbs.WrOpcode{send, write, read, fetchAdd}[c.r.IntN(4)]
	} else if c.r.IntN(2) == 0 {
		length = c.r.IntN(churnBytes)
	}
	if len(c.ahs) > 0 {
		s.AH = c.ahs[c.r.IntN(len(c.ahs))].Handle()
	}
	if len(c.mws) > 0 {
		s.Imm = c.mws[c.r.IntN(len(c.mws))].Key()
	}
	e.postQuiet(s.remote(peer, 0), e.mr.sge(0, length))
}

func (c *churn) destroy() {
	i := c.r.IntN(len(c.ends))
	e := c.ends[i]
	require.NoError(c.t, e.qp.Destroy())
	require.NoError(c.t, e.send.Destroy())
	require.NoError(c.t, e.recv.Destroy())
	c.mrs = append(c.mrs, e.mr)
	c.ends = slices.Delete(c.ends, i, i+1)
}

// clear removes everything.
func (c *churn) clear() {
	for len(c.ends) > 0 {
		c.destroy()
	}
	for _, w := range c.mws {
		require.NoError(c.t, w.Dealloc())
	}
	for _, a := range c.ahs {
		require.NoError(c.t, a.Destroy())
	}
	for _, s := range c.srqs {
		require.NoError(c.t, s.Destroy())
	}
	for _, m := range c.mrs {
		require.NoError(c.t, m.Deregister())
	}
	for _, p := range c.pds {
		require.NoError(c.t, p.Destroy())
	}
	c.run()
	for _, d := range c.nodes {
		requireEmpty(c.t, d.Device)
	}
}
