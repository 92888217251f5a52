// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// choices reads numbers from the fuzzer's bytes; behind their end all are 0.
type choices []byte

func (c *choices) byte() byte {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return b
}

func (c *choices) int(n int) int { return int(c.byte()) % n }

func (c *choices) uint32() uint32 {
	var b [4]byte
	*c = (*c)[copy(b[:], *c):]
	return binary.LittleEndian.Uint32(b[:])
}

// target is a device with a queue pair of each type, which packets from a
// hostile peer come to. Memory that may not be written lies before, between and
// behind its regions.
type target struct {
	*node
	arena  []byte
	open   []*MR
	qps    []*end
	window *MW
	null   *MR
	dms    []*DM // that the program allocates and frees
	dmrs   []*MR // regions of these, null regions and regions that are paged on demand
}

const (
	guard      = 512
	regionSize = 2048
)

func newTarget(t testing.TB) *target {
	n := newNetwork(t, 1)
	d := n.node(1)
	g := &target{node: d}
	pd := d.pd()
	srq := d.srq(pd, 8)
	for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_UD} {
		var s *SRQ
		if len(g.qps) == 1 {
			s = srq
		}
		e := n.end(d, kind, s, 64)
		if kind == libibverbs.IBV_QPT_UD {
			d.datagrams(e.qp, 1)
		} else {
			d.connect(e.qp, 2, 77)
			e.qp.mtu = 256
		}
		g.qps = append(g.qps, e)
	}
	g.arena = make([]byte, 4*guard+3*regionSize)
	for i := range 3 {
		b := g.arena[guard+i*(guard+regionSize):][:regionSize]
		// The third one may not be written.
		access := []libibverbs.AccessFlags{allAccess, allAccess, libibverbs.IBV_ACCESS_REMOTE_READ}[i]
		for j, e := range g.qps {
			m, err := e.pd.RegisterMR(b, uint64(uintptr(unsafe.Pointer(&b[0]))), access)
			require.NoError(t, err)
			if j == 0 || i == 0 {
				g.open = append(g.open, m)
			}
		}
	}
	xa, xb := n.xrcEnds(d, d, 64)
	for _, e := range []*end{xa, xb} {
		d.connect(e.qp, 2, 77)
		e.qp.mtu = 256
		g.qps = append(g.qps, e)
	}
	b := g.arena[guard:][:regionSize]
	m, err := xb.pd.RegisterMR(b, uint64(uintptr(unsafe.Pointer(&b[0]))), allAccess)
	require.NoError(t, err)
	g.open = append(g.open, m)
	for i := range g.arena {
		g.arena[i] = byte(i)
	}
	first := g.qps[0]
	paged := g.arena[guard+regionSize+guard:][:regionSize]
	m, err = first.pd.RegisterOnDemand(addressOf(paged), regionSize, addressOf(paged), allAccess|libibverbs.IBV_ACCESS_ON_DEMAND)
	require.NoError(t, err)
	dm, err := d.AllocDM(regionSize, 0)
	require.NoError(t, err)
	inDM, err := first.pd.RegisterDM(dm, 0, regionSize, remoteAccess|libibverbs.IBV_ACCESS_LOCAL_WRITE|libibverbs.IBV_ACCESS_ZERO_BASED)
	require.NoError(t, err)
	g.open = append(g.open, m, inDM)
	g.null, err = first.pd.AllocNullMR()
	require.NoError(t, err)
	for _, e := range g.qps {
		e.perOp(libibverbs.IBV_COMP_CNTR_TYPE_BYTES)
	}
	g.window = d.window(g.qps[0].pd, libibverbs.IBV_MW_TYPE_2)
	bindMW(g.qps[0].qp, g.window, g.open[0], 10, 100, libibverbs.IBV_ACCESS_REMOTE_WRITE)
	return g
}

// check fails if memory outside of the regions was written.
func (g *target) check() {
	var want, got []byte
	for i := range g.arena {
		if at := i % (guard + regionSize); at < guard || i > guard+2*(guard+regionSize) {
			want, got = append(want, byte(i)), append(got, g.arena[i])
		}
	}
	require.True(g.t, bytes.Equal(want, got), "written outside the regions")
}

func (g *target) sge(c *choices) libibverbs.Sge {
	m := g.open[c.int(len(g.open))]
	s := m.sge(c.int(8)*(regionSize/7)-c.int(2), c.int(8)*(regionSize/7))
	switch c.int(8) {
	case 0:
		s.Lkey = c.uint32()
	case 1:
		s.Lkey = g.null.key
	}
	return s
}

// objects lets the program allocate and free what lasts for a while.
func (g *target) objects(c *choices) {
	pd := g.qps[c.int(len(g.qps))].pd
	add := func(m *MR, err error) {
		if err == nil {
			g.dmrs = append(g.dmrs, m)
		}
	}
	switch c.int(8) {
	case 0:
		if dm, err := g.AllocDM(uint64(c.uint32()), uint32(c.int(24))); err == nil {
			g.dms = append(g.dms, dm)
		}
	case 1:
		if len(g.dms) > 0 {
			i := c.int(len(g.dms))
			if g.dms[i].Free() == nil {
				g.dms = append(g.dms[:i], g.dms[i+1:]...)
			}
		}
	case 2:
		if len(g.dms) > 0 {
			access := libibverbs.AccessFlags(c.byte()) | libibverbs.IBV_ACCESS_ZERO_BASED
			add(pd.RegisterDM(g.dms[c.int(len(g.dms))], uint64(c.uint32()), uint64(c.uint32()), access))
		}
	case 3:
		add(pd.AllocNullMR())
	case 4:
		b := g.arena[guard:][:regionSize]
		add(pd.RegisterOnDemand(addressOf(b)+uint64(c.byte()), uint64(c.byte()), addressOf(b)+uint64(c.byte()), libibverbs.AccessFlags(c.byte())))
	case 5:
		if len(g.dmrs) > 0 {
			i := c.int(len(g.dmrs))
			if g.dmrs[i].Deregister() == nil {
				g.dmrs = append(g.dmrs[:i], g.dmrs[i+1:]...)
			}
		}
	case 6:
		m := g.open[c.int(len(g.open))]
		_, _ = pd.Prefetch(m.iova+uint64(c.uint32()), uint64(c.uint32()), m.key, c.int(2) == 0)
	case 7:
		bindMW(g.qps[0].qp, g.window, g.open[c.int(len(g.open))], uint64(c.byte())*8, uint64(c.byte())*8, libibverbs.AccessFlags(c.byte()))
	}
}

// step does something that the bytes choose.
func (g *target) step(c *choices) {
	e := g.qps[c.int(len(g.qps))]
	q := e.qp
	switch what := c.int(16); what {
	case 0:
		w := q.recv
		switch {
		case w != nil:
		case e.srq != nil:
			w = e.srq.queue
		case q.srq != nil:
			w = q.srq.queue
		}
		if w != nil && !full(w) {
			postRecv(g.t, w, 1, g.sge(c), g.sge(c))
		}
	case 1:
		if q.send.Size > 0 && !full(q.send) {
			m := g.open[c.int(len(g.open))]
			e.postQuiet(SendSlot{
				Opcode: libibverbs.WrOpcode(c.int(16)), Flags: uint32(c.int(16)), RemoteAddr: m.iova + uint64(c.int(64))*8,
				RKey: m.key, Imm: g.window.key, Swap: g.window.Handle(), InlineLen: uint32(c.byte()),
			}, g.sge(c), g.sge(c))
		}
	case 2:
		g.Advance(g.now + time.Duration(c.uint32()))
		g.sent = g.sent[:0]
	case 3: // what programs can write over
		if q.send.Size == 0 {
			break
		}
		slot := unsafe.Slice((*uint32)(q.send.slot(uint32(c.byte()))), q.send.Stride/4)
		slot[c.int(len(slot))] = c.uint32()
	case 4:
		if q.send.Size == 0 {
			break
		}
		q.send.Posted += uint32(int8(c.byte()))
		e.Ring(q.send)
	case 5:
		if q.attr.QpState == libibverbs.IBV_QPS_ERR && q.kind != libibverbs.IBV_QPT_UD {
			e.setState(libibverbs.IBV_QPS_RESET)
			g.connect(q, 2, 77)
			q.mtu = 256
		}
	case 6: // what the program may change while packets come
		a := &libibverbs.QpAttr{
			QpState: libibverbs.IBV_QPS_RTS + libibverbs.QpState(c.int(2)), CurQpState: q.attr.QpState, PortNum: 1, AhAttr: *ahAttr(2), Qkey: 1,
			QpAccessFlags: remoteAccess | flushAccess, Timeout: uint8(c.int(32)), RetryCnt: uint8(c.int(8)), RnrRetry: uint8(c.int(8)),
			MinRnrTimer: uint8(c.int(32)), MaxRdAtomic: uint8(c.int(8)), MaxDestRdAtomic: uint8(c.int(8)),
		}
		if ways, ok := steps[q.kind][step{q.attr.QpState, a.QpState}]; ok {
			mask := ways.optional & libibverbs.QpAttrMask(c.uint32()) &^ libibverbs.IBV_QP_ALT_PATH
			require.NoError(g.t, q.Modify(a, mask|libibverbs.IBV_QP_STATE))
		}
	case 7:
		g.objects(c)
	default:
		g.Receive(g.packet(c, q))
	}
}

// packet is one that may be right, nearly right, or wrong.
func (g *target) packet(c *choices, q *QP) *wire.Packet {
	m := g.open[c.int(len(g.open))]
	p := &wire.Packet{
		SGID: q.path.dgid, DGID: q.path.sgid, PKey: 0xFFFF, DestQP: q.number, QKey: 1, SrcQP: 77,
		Opcode: wire.Opcode(c.int(0x1E)) | wire.Opcode(q.transport)<<5, PSN: q.responder.psn,
		RKey: m.key, Addr: m.iova + uint64(c.int(9))*(regionSize/8), Length: uint32(c.int(9)) * (regionSize / 8),
		AckReq: c.int(2) == 0, Solicited: c.int(2) == 0, Syndrome: wire.Syndrome(c.byte()), InvKey: g.window.key,
		FlushType: c.byte() & 15, FlushLevel: c.byte() & 3,
	}
	if q.xrcd != nil && c.int(16) > 0 {
		p.SRQ = g.qps[len(g.qps)-1].srq.number
	}
	if p.Opcode.IsResponse() {
		p.PSN = q.requester.acked
	}
	n := []int{0, 1, 8, 255, 256, 256, 256, 257, 5000}[c.int(9)]
	if n > 0 {
		b := bytes.Repeat([]byte{0xEE}, n)
		p.Payload = [][]byte{b[:n/3], b[n/3:]}
	}
	switch c.int(8) {
	case 0:
		p.PSN = p.PSN.Add(c.int(7) - 3)
	case 1:
		p.PSN = wire.PSN(c.uint32())
	case 2:
		p.Addr += uint64(int64(int32(c.uint32())))
	case 3:
		p.Length = c.uint32()
	case 4:
		p.RKey = []uint32{g.window.key, 0, c.uint32()}[c.int(3)]
	case 5:
		p.Opcode = wire.Opcode(c.byte())
	case 6: // it stands for several, and may have their bytes
		p.More = []uint16{1, 2, 7, uint16(c.uint32())}[c.int(4)]
		if c.int(4) > 0 {
			p.Payload = [][]byte{bytes.Repeat([]byte{0xEE}, 256*min(1+int(p.More), 16))}
		}
	}
	return p
}

// Whatever packets come, and whatever the program does to its rings, nothing
// panics, and nothing is written outside the regions.
func FuzzDevice(f *testing.F) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newTarget(t)
		for c := choices(b); len(c) > 0; {
			g.step(&c)
		}
		g.Advance(g.now)
		g.check()
		for _, e := range g.qps {
			if e.send != nil {
				poll(e.send.ring)
			}
			if e.recv != nil {
				poll(e.recv.ring)
			}
		}
	})
}
