// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// loop is a device whose packets come back to it.
type loop struct {
	*node
	network
	inbox []*wire.Packet
}

// newLoop returns two connected queue pairs of one device.
func newLoop(t testing.TB, bytes int) (l *loop, a, b *end) {
	l = &loop{network: network{t: t}}
	l.node = newNode(t, 1)
	l.Device.config.Send = func(p *wire.Packet) { l.inbox = append(l.inbox, p) }
	a, b = l.end(l.node, libibverbs.IBV_QPT_RC, nil, bytes), l.end(l.node, libibverbs.IBV_QPT_RC, nil, bytes)
	l.join(a, b)
	a.qp.mtu, b.qp.mtu = 4096, 4096
	return l, a, b
}

// settle carries packets until there are no more.
func (l *loop) settle() {
	for {
		next := l.Advance(0)
		if len(l.inbox) == 0 && next != 0 {
			return
		}
		for i := 0; i < len(l.inbox); i++ {
			l.Receive(l.inbox[i])
		}
		l.inbox = l.inbox[:0]
	}
}

func take(t testing.TB, q *CQ, n int) {
	r := q.ring
	if int(r.Added-r.Polled) != n {
		t.Fatalf("%d completions, want %d", r.Added-r.Polled, n)
	}
	for ; n > 0; n-- {
		c := r.entry(r.Polled)
		if c.Status != libibverbs.IBV_WC_SUCCESS {
			t.Fatal(c.Status)
		}
		c.Queue.Freed = c.Count
		r.Polled++
	}
}

// fast posts without the checks of postSend.
func fast(w *WorkQueue, s *SendSlot, sge libibverbs.Sge) {
	slot := w.send(w.Posted)
	*slot = *s
	slot.NumSGE = 1
	slot.segments()[0] = sge
	w.Posted++
}

func fastRecv(w *WorkQueue, id uint64, sge libibverbs.Sge) {
	slot := w.recv(w.Posted)
	*slot = RecvSlot{ID: id, NumSGE: 1}
	slot.segments()[0] = sge
	w.Posted++
}

// Once it runs, traffic allocates nothing.
func TestNoAllocations(t *testing.T) {
	const size = 1 << 15
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		kind   libibverbs.QpType
		size   int
		recv   int
	}{
		"send":             {send, libibverbs.IBV_QPT_RC, 64, 1},
		"long send":        {sendImm, libibverbs.IBV_QPT_RC, size, 1},
		"write":            {write, libibverbs.IBV_QPT_RC, size, 0},
		"read":             {read, libibverbs.IBV_QPT_RC, size, 0},
		"atomic":           {fetchAdd, libibverbs.IBV_QPT_RC, 8, 0},
		"unreliable":       {send, libibverbs.IBV_QPT_UC, size, 1},
		"unreliable write": {writeImm, libibverbs.IBV_QPT_UC, size, 1},
		"datagram":         {send, libibverbs.IBV_QPT_UD, 1000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, x, y := newLoop(t, size+64)
			s := SendSlot{Opcode: tt.opcode, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}.remote(y, 0)
			switch tt.kind {
			case libibverbs.IBV_QPT_UC:
				x, y = l.end(l.node, tt.kind, nil, size+64), l.end(l.node, tt.kind, nil, size+64)
				l.join(x, y)
				s = s.remote(y, 0)
			case libibverbs.IBV_QPT_UD:
				x, y = l.end(l.node, tt.kind, nil, size+64), l.end(l.node, tt.kind, nil, size+64)
				x.datagrams(x.qp, 0x1111)
				y.datagrams(y.qp, 0x1111)
				s = s.to(x, y)
			}
			require.Zero(t, testing.AllocsPerRun(100, func() {
				fastRecv(y.qp.recv, 1, y.mr.sge(0, size+64))
				fast(x.qp.send, &s, x.mr.sge(0, tt.size))
				l.Ring(x.qp.send)
				l.settle()
				take(t, x.send, 1)
				take(t, y.recv, tt.recv)
				y.qp.recv.Posted = y.qp.responder.next // what was not used
			}))
		})
	}
}

func BenchmarkSend64(b *testing.B) { benchmarkSend(b, 64, 16) }

func BenchmarkSend64Single(b *testing.B) { benchmarkSend(b, 64, 1) }

func benchmarkSend(b *testing.B, size, batch int) {
	l, x, y := newLoop(b, 1<<16)
	s := SendSlot{Opcode: libibverbs.IBV_WR_SEND, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}
	b.ReportAllocs()
	for i := 0; i < b.N; i += batch {
		for range batch {
			fastRecv(y.qp.recv, 1, y.mr.sge(0, size))
			fast(x.qp.send, &s, x.mr.sge(0, size))
		}
		l.Ring(x.qp.send)
		l.settle()
		take(b, x.send, batch)
		take(b, y.recv, batch)
	}
}

func BenchmarkWrite64K(b *testing.B) {
	const size = 1 << 16
	l, x, y := newLoop(b, size)
	s := SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}.remote(y, 0)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		fast(x.qp.send, &s, x.mr.sge(0, size))
		l.Ring(x.qp.send)
		l.settle()
		take(b, x.send, 1)
	}
}

func BenchmarkRead64K(b *testing.B) {
	const size = 1 << 16
	l, x, y := newLoop(b, size)
	s := SendSlot{Opcode: libibverbs.IBV_WR_RDMA_READ, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}.remote(y, 0)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		fast(x.qp.send, &s, x.mr.sge(0, size))
		l.Ring(x.qp.send)
		l.settle()
		take(b, x.send, 1)
	}
}

// Idle queue pairs cost nothing.
func BenchmarkSend64Among10000(b *testing.B) {
	l, _, _ := newLoop(b, 64)
	for range 5000 {
		x, y := l.end(l.node, libibverbs.IBV_QPT_RC, nil, 64), l.end(l.node, libibverbs.IBV_QPT_RC, nil, 64)
		l.join(x, y)
	}
	x, y := l.end(l.node, libibverbs.IBV_QPT_RC, nil, 64), l.end(l.node, libibverbs.IBV_QPT_RC, nil, 64)
	l.join(x, y)
	l.settle()
	s := SendSlot{Opcode: libibverbs.IBV_WR_SEND, Flags: uint32(libibverbs.IBV_SEND_SIGNALED)}
	b.ReportAllocs()
	for b.Loop() {
		fastRecv(y.qp.recv, 1, y.mr.sge(0, 64))
		fast(x.qp.send, &s, x.mr.sge(0, 64))
		l.Ring(x.qp.send)
		l.settle()
		take(b, x.send, 1)
		take(b, y.recv, 1)
	}
}

// Windows of others cost a queue pair that goes nothing.
func BenchmarkQPAmong30000Windows(b *testing.B) {
	d := newNode(b, 1)
	pd, cq := d.pd(), d.cq(8)
	for range 30_000 {
		d.window(pd, libibverbs.IBV_MW_TYPE_2)
	}
	for b.Loop() {
		require.NoError(b, d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil).Destroy())
	}
}
