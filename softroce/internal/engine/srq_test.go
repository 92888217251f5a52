// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

func srqAttr(n uint32) *libibverbs.SrqInitAttrEx {
	return &libibverbs.SrqInitAttrEx{Attr: libibverbs.SrqAttr{MaxWr: n, MaxSge: 2}}
}

// srq makes a shared receive queue for n receives of 2 segments.
func (d *node) srq(p *PD, n uint32) *SRQ {
	s, err := p.CreateSRQ(srqAttr(n), newRecvQueue(n, 2), nil, nil)
	require.NoError(d.t, err)
	return s
}

func TestCreateSRQ(t *testing.T) {
	pd := newNode(t, 1).pd()
	const hasType = libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD
	for name, tt := range map[string]struct {
		attr libibverbs.SrqAttr
		mask libibverbs.SrqInitAttrMask
		kind libibverbs.SrqType
		want error
	}{
		"smallest":        {libibverbs.SrqAttr{MaxWr: 1}, 0, 0, nil},
		"largest":         {libibverbs.SrqAttr{MaxWr: maxSRQWR, MaxSge: maxSGE}, hasType, libibverbs.IBV_SRQT_BASIC, nil},
		"limit ignored":   {libibverbs.SrqAttr{MaxWr: 1, SrqLimit: 5}, 0, 0, nil},
		"type ignored":    {libibverbs.SrqAttr{MaxWr: 1}, 0, 77, nil},
		"no receives":     {libibverbs.SrqAttr{MaxSge: 1}, 0, 0, syscall.EINVAL},
		"too many":        {libibverbs.SrqAttr{MaxWr: maxSRQWR + 1}, 0, 0, syscall.EINVAL},
		"far too many":    {libibverbs.SrqAttr{MaxWr: math.MaxUint32}, 0, 0, syscall.EINVAL},
		"segments":        {libibverbs.SrqAttr{MaxWr: 1, MaxSge: maxSGE + 1}, 0, 0, syscall.EINVAL},
		"XRC alone":       {libibverbs.SrqAttr{MaxWr: 1}, hasType, libibverbs.IBV_SRQT_XRC, syscall.EINVAL},
		"tag matching":    {libibverbs.SrqAttr{MaxWr: 1}, hasType, libibverbs.IBV_SRQT_TM, syscall.EINVAL},
		"XRC domain":      {libibverbs.SrqAttr{MaxWr: 1}, libibverbs.IBV_SRQ_INIT_ATTR_XRCD, 0, syscall.EOPNOTSUPP},
		"unknown type":    {libibverbs.SrqAttr{MaxWr: 1}, hasType, 3, syscall.EINVAL},
		"unknown in mask": {libibverbs.SrqAttr{MaxWr: 1}, 1 << 9, 0, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := pd.CreateSRQ(&libibverbs.SrqInitAttrEx{Attr: tt.attr, CompMask: tt.mask, SrqType: tt.kind}, newRecvQueue(4, 2), nil, nil)
			if tt.want != nil {
				require.Equal(t, tt.want, err)
				return
			}
			require.NoError(t, err)
			a, err := s.Attr()
			require.NoError(t, err)
			require.Equal(t, libibverbs.SrqAttr{MaxWr: 4, MaxSge: 2}, a)
			require.NoError(t, s.Destroy())
		})
	}
	require.NoError(t, pd.Destroy())
}

// take takes a receive, and reports whether the event of the limit is due.
func (s *SRQ) take(t *testing.T) (limitReached bool) {
	t.Helper()
	_, ok := s.next()
	require.True(t, ok)
	return s.took()
}

func TestTake(t *testing.T) {
	d := newNode(t, 1)
	s := d.srq(d.pd(), 3)
	_, ok := s.next()
	require.False(t, ok)
	for id := range uint64(3) {
		postRecv(t, s.queue, id, libibverbs.Sge{Addr: id}, libibverbs.Sge{Length: uint32(id)})
	}
	require.True(t, full(s.queue))
	for id := range uint64(10) { // around the ring
		for range 2 {
			r, ok := s.next()
			require.True(t, ok)
			require.Equal(t, id, r.ID, "it stays until it is taken")
			require.Equal(t, []libibverbs.Sge{{Addr: id}, {Length: uint32(id)}}, r.segments())
		}
		s.took()
		require.False(t, full(s.queue), "the place is free")
		postRecv(t, s.queue, id+3, libibverbs.Sge{Addr: id + 3}, libibverbs.Sge{Length: uint32(id + 3)})
	}
	s.queue.Posted += 77 // a program writes over it
	_, ok = s.next()
	require.False(t, ok)
}

func TestSRQLimit(t *testing.T) {
	d := newNode(t, 1)
	s := d.srq(d.pd(), 8)
	limit := func() uint32 {
		a, err := s.Attr()
		require.NoError(t, err)
		return a.SrqLimit
	}
	for id := range uint64(5) {
		postRecv(t, s.queue, id)
	}
	require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: 3}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
	require.False(t, s.take(t))
	require.False(t, s.take(t), "3 are left")
	require.EqualValues(t, 3, limit())
	require.True(t, s.take(t))
	require.Zero(t, limit())
	require.False(t, s.take(t), "once")
	require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: 8}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
	require.NoError(t, s.Modify(libibverbs.SrqAttr{}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
	require.False(t, s.take(t), "it was taken back")
}

func TestModifySRQ(t *testing.T) {
	d := newNode(t, 1)
	pd := d.pd()
	const size, limit = libibverbs.IBV_SRQ_MAX_WR, libibverbs.IBV_SRQ_LIMIT
	for name, tt := range map[string]struct {
		attr libibverbs.SrqAttr
		mask libibverbs.SrqAttrMask
		want error
	}{
		"nothing":                  {libibverbs.SrqAttr{MaxWr: 77, SrqLimit: 99}, 0, nil},
		"larger":                   {libibverbs.SrqAttr{MaxWr: 100}, size, nil},
		"largest":                  {libibverbs.SrqAttr{MaxWr: maxSRQWR}, size, nil},
		"just enough":              {libibverbs.SrqAttr{MaxWr: 5}, size, nil},
		"limit":                    {libibverbs.SrqAttr{SrqLimit: 8}, limit, nil},
		"both":                     {libibverbs.SrqAttr{MaxWr: 20, SrqLimit: 20}, size | limit, nil},
		"smaller, limit too":       {libibverbs.SrqAttr{MaxWr: 6, SrqLimit: 2}, size | limit, nil},
		"0":                        {libibverbs.SrqAttr{}, size, syscall.EINVAL},
		"above the device's":       {libibverbs.SrqAttr{MaxWr: maxSRQWR + 1}, size, syscall.EINVAL},
		"below the posted":         {libibverbs.SrqAttr{MaxWr: 4}, size, syscall.EINVAL},
		"limit above the size":     {libibverbs.SrqAttr{SrqLimit: 9}, limit, syscall.EINVAL},
		"limit above the new size": {libibverbs.SrqAttr{MaxWr: 6, SrqLimit: 7}, size | limit, syscall.EINVAL},
		"unknown":                  {libibverbs.SrqAttr{}, 4, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			s := d.srq(pd, 8)
			s.queue.Posted, s.queue.Freed = math.MaxUint32-4, math.MaxUint32-4 // about to wrap around
			for id := range uint64(7) {
				postRecv(t, s.queue, id, libibverbs.Sge{Addr: id})
			}
			for range 2 {
				s.take(t)
			}
			require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: 1}, limit, nil, 0))
			before := *s.queue
			to := newRecvQueue(max(tt.attr.MaxWr, 1), 2)
			require.Equal(t, tt.want, s.Modify(tt.attr, tt.mask, to.Slots, to.Size))
			want := libibverbs.SrqAttr{MaxWr: 8, MaxSge: 2, SrqLimit: 1}
			if tt.want != nil {
				require.Equal(t, before, *s.queue)
			} else {
				set(libibverbs.QpAttrMask(tt.mask&size), &want.MaxWr, tt.attr.MaxWr)
				set(libibverbs.QpAttrMask(tt.mask&limit), &want.SrqLimit, tt.attr.SrqLimit)
			}
			got, err := s.Attr()
			require.NoError(t, err)
			require.Equal(t, want, got)
			s.limit = 0
			for id := range uint64(5) {
				r, ok := s.next()
				require.True(t, ok)
				require.Equal(t, id+2, r.ID)
				require.Equal(t, []libibverbs.Sge{{Addr: id + 2}}, r.segments())
				s.took()
			}
			for id := range uint64(got.MaxWr) {
				postRecv(t, s.queue, id)
			}
			require.True(t, full(s.queue))
		})
	}
	d.requireEvents()
}

func TestEmptySRQCannotShrinkToNothing(t *testing.T) {
	d := newNode(t, 1)
	s := d.srq(d.pd(), 8)
	require.Equal(t, syscall.EINVAL, s.Modify(libibverbs.SrqAttr{}, libibverbs.IBV_SRQ_MAX_WR, nil, 0))
	require.EqualValues(t, 8, s.queue.Max)
}

// A receive queue's memory that C lays out is aligned as Go reads it.
func TestSlotSizes(t *testing.T) {
	require.EqualValues(t, 16, unsafe.Sizeof(libibverbs.Sge{}))
	require.Zero(t, SendSlotSize%8)
	require.Zero(t, RecvSlotSize%8)
}

// shared makes a queue pair of a's node that is connected to one of b's, which
// takes its receives from s.
func (n *network) shared(a, b *node, s *SRQ, bytes int) (from, to *end) {
	from, to = n.end(a, libibverbs.IBV_QPT_RC, nil, bytes), n.end(b, libibverbs.IBV_QPT_RC, s, bytes)
	n.join(from, to)
	return from, to
}

// Many queue pairs take receives from one queue: each message has one of its
// own, and its completion tells which queue pair it came to.
func TestSRQOfManyPairs(t *testing.T) {
	const pairs, count, size = 10, 8, 8
	for name, op := range map[string]libibverbs.WrOpcode{"send": send, "write": writeImm} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.node(1), n.node(2)
			s := b.srq(b.pd(), pairs*count)
			inbox := b.memory(s.pd, pairs*count*size, allAccess)
			for i := range uint64(pairs * count) {
				postRecv(t, s.queue, i, inbox.sge(int(i)*size, size))
			}
			taken := map[uint64]bool{}
			var from, to []*end
			for i := range pairs {
				x, y := n.shared(a, b, s, count*size)
				from, to = append(from, x), append(to, y)
				for k := range x.mr.memory {
					x.mr.memory[k] = byte(1 + i)
				}
			}
			for k := range count {
				for i, x := range from {
					x.post(SendSlot{ID: uint64(k), Opcode: op, Imm: uint32(k)}.remote(to[i], k*size), x.mr.sge(k*size, size))
				}
			}
			n.run()
			for i, y := range to {
				require.Len(t, results(from[i].send), count)
				got := poll(y.recv.ring)
				require.Len(t, got, count)
				for _, c := range got {
					require.Equal(t, success, c.Status)
					require.Equal(t, y.qp.number, c.QpNum)
					require.EqualValues(t, size, c.ByteLen)
					require.False(t, taken[c.WrId], "receive %d", c.WrId)
					taken[c.WrId] = true
					where := inbox.memory[c.WrId*size:][:size]
					if op == writeImm {
						where = y.mr.memory[uint32(*c.ImmData())*size:][:size]
					}
					require.Equal(t, from[i].mr.memory[:size], where)
				}
			}
			require.Len(t, taken, pairs*count)
		})
	}
}

// A queue pair that fails leaves the shared receives to the others.
func TestSRQOutlivesFailure(t *testing.T) {
	for name, kind := range map[string]libibverbs.QpType{"RC": libibverbs.IBV_QPT_RC, "UC": libibverbs.IBV_QPT_UC, "UD": libibverbs.IBV_QPT_UD} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.node(1), n.node(2)
			s := b.srq(b.pd(), 4)
			from, to := n.shared(a, b, s, 64)
			n.fillRandom(from.mr.memory)
			failed := b.qp(s.pd, kind, to.send, to.recv, s)
			if kind == libibverbs.IBV_QPT_UD {
				b.datagrams(failed, 0x1111)
			} else {
				b.connect(failed, 1, from.qp.number)
			}
			postRecv(t, s.queue, 5, to.mr.sge(0, 64))
			require.NoError(t, failed.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_ERR}, libibverbs.IBV_QP_STATE))
			n.run()
			require.Empty(t, results(to.recv))
			from.post(SendSlot{ID: 1, Opcode: send}, from.mr.sge(0, 64))
			n.run()
			require.Equal(t, []result{ok(1)}, results(from.send))
			require.Equal(t, []result{ok(5)}, results(to.recv))
			require.Equal(t, from.mr.memory, to.mr.memory)
		})
	}
}

// One receive at a time is enough for many messages.
func TestSRQOfOne(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.node(1), n.node(2)
	s := b.srq(b.pd(), 1)
	from, to := n.shared(a, b, s, 64)
	for i := range uint64(50) {
		postRecv(t, s.queue, i, to.mr.sge(0, 64))
		require.True(t, full(s.queue))
		from.post(SendSlot{ID: i, Opcode: send}, from.mr.sge(0, 64))
		n.run()
		require.Equal(t, []result{ok(i)}, results(from.send))
		require.Equal(t, []result{ok(i)}, results(to.recv))
	}
}

// Messages take receives until fewer are left than the limit, which is told
// once; without any, the sender gives up.
func TestSRQRunsLow(t *testing.T) {
	const receives, limit = 20, 10
	n := newNetwork(t, 1)
	a, b := n.node(1), n.node(2)
	s := b.srq(b.pd(), receives)
	from, to := n.shared(a, b, s, 64)
	from.qp.attr.RnrRetry, from.qp.requester.rnrRetries = 2, 2
	for i := range uint64(receives) {
		postRecv(t, s.queue, i, to.mr.sge(0, 64))
	}
	require.NoError(t, s.Modify(libibverbs.SrqAttr{SrqLimit: limit}, libibverbs.IBV_SRQ_LIMIT, nil, 0))
	transfer := func(count int, want libibverbs.WcStatus) {
		for range count {
			from.post(SendSlot{Opcode: send}, from.mr.sge(0, 64))
			n.run()
			require.Equal(t, []result{{0, want}}, results(from.send))
		}
	}
	transfer(receives-limit, success)
	b.requireEvents()
	transfer(1, success)
	b.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED, s})
	transfer(limit-1, success)
	b.requireEvents()
	require.Len(t, results(to.recv), receives)
	transfer(1, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR)
}
