// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// network carries packets between nodes in a time of its own.
type network struct {
	t      testing.TB
	now    time.Duration
	nodes  []*node
	random *rand.Rand
	flying []flight // by time
	steps  int

	delay                    time.Duration
	drop, duplicate, reorder float64 // probabilities
	corrupt                  float64
	// filter returns what becomes of a packet: whether it arrives. It may
	// change it.
	filter func(p *wire.Packet) bool
	seen   []wire.Packet // those that arrive, if watch is set
	watch  bool
}

type flight struct {
	at     time.Duration
	packet *wire.Packet
}

func newNetwork(t testing.TB, seed uint64) *network {
	return &network{t: t, random: rand.New(rand.NewPCG(seed, 1)), delay: 10 * time.Microsecond}
}

func (n *network) node(number byte) *node {
	d := newNode(n.t, number)
	n.nodes = append(n.nodes, d)
	return d
}

// clone copies a packet by way of its bytes, so that nothing arrives that is
// not in them, or in the header of a frame.
func (n *network) clone(p *wire.Packet) *wire.Packet {
	c := &wire.Packet{}
	src, dst := netip.AddrPortFrom(p.SGID.Addr(), p.SrcPort), p.DGID.Addr()
	require.NoError(n.t, c.Parse(p.Append(nil), src, dst), p.Opcode)
	c.TrafficClass, c.HopLimit, c.FlowLabel, c.More = p.TrafficClass, p.HopLimit, p.FlowLabel, p.More
	return c
}

// carry takes what a node has sent.
func (n *network) carry(p *wire.Packet) {
	if n.filter != nil && !n.filter(p) || n.random.Float64() < n.drop {
		return
	}
	if n.random.Float64() < n.corrupt && !n.survives(p) {
		return
	}
	copies := 1
	if n.random.Float64() < n.duplicate {
		copies = 2
	}
	for range copies {
		at := n.now + n.delay
		if n.random.Float64() < n.reorder {
			at += n.delay * time.Duration(n.random.IntN(10))
		}
		i, _ := slices.BinarySearchFunc(n.flying, at+1, func(f flight, at time.Duration) int { return int(f.at - at) })
		n.flying = slices.Insert(n.flying, i, flight{at, n.clone(p)})
	}
}

// survives changes a bit of a packet, and reports whether it passes the check
// of the ICRC nevertheless: as no check covers it.
func (n *network) survives(p *wire.Packet) bool {
	flow := wire.NewFlow(p.SGID, p.DGID, p.SrcPort)
	b := p.Append(nil)
	flow.Seal(b, 0)
	bit := n.random.IntN(8 * len(b))
	b[bit/8] ^= 1 << (bit % 8)
	id, ok := flow.Verify(b, 0)
	return ok && id == 0
}

// step lets the nodes work, delivers what is due, and otherwise lets time pass.
// It returns false when nothing is left to happen.
func (n *network) step() bool {
	n.steps++
	next := Never
	for _, d := range n.nodes {
		due := d.Advance(n.now)
		next = min(next, due)
		if due <= n.now {
			d.hear()
		}
		sent := d.sent
		d.sent = d.sent[:0]
		for _, p := range sent {
			n.carry(p)
		}
	}
	if len(n.flying) > 0 && n.flying[0].at <= n.now {
		due := 0
		for due < len(n.flying) && n.flying[due].at <= n.now {
			due++
		}
		for _, f := range n.flying[:due] {
			n.deliver(f.packet)
		}
		n.flying = slices.Delete(n.flying, 0, due)
		return true
	}
	if len(n.flying) > 0 {
		next = min(next, n.flying[0].at)
	}
	if next == Never {
		return false
	}
	n.now = max(n.now, next)
	return true
}

func (n *network) deliver(p *wire.Packet) {
	if n.watch {
		n.seen = append(n.seen, *n.clone(p))
	}
	for _, d := range n.nodes {
		switch {
		case isMulticast(p.DGID):
			d.Receive(n.clone(p))
		case d.gids[0].GID == p.DGID:
			if l := d.lazy; l != nil && l.spares && p.IsAck() {
				l.unheard = append(l.unheard, p)
				return
			}
			d.hear()
			d.Receive(p)
			return
		}
	}
}

// hear lets a lazy node hear the acknowledgements that have come.
func (d *node) hear() {
	if l := d.lazy; l != nil {
		for _, p := range l.unheard {
			d.Receive(p)
		}
		l.unheard = nil
	}
}

// run goes on until nothing is left to happen.
func (n *network) run() {
	n.t.Helper()
	for limit := n.steps + 10_000_000; n.step(); {
		require.Less(n.t, n.steps, limit, "this does not end")
	}
}

// runFor lets time pass.
func (n *network) runFor(d time.Duration) {
	for end := n.now + d; n.now < end; {
		if !n.step() {
			n.now = end
		}
	}
}

// end is a queue pair with what it needs.
type end struct {
	*node
	pd   *PD
	qp   *QP
	send *CQ
	recv *CQ
	mr   *MR
	n    *network
	srq  *SRQ   // where XRC's receives are posted
	aim  uint32 // number of the peer's shared receive queue, for XRC
}

const depth = 64

// end makes a queue pair of a node with memory that may be used for everything.
func (n *network) end(d *node, kind libibverbs.QpType, srq *SRQ, bytes int) *end {
	var pd *PD
	if srq == nil {
		pd = d.pd()
	} else {
		pd = srq.pd
	}
	e := &end{node: d, pd: pd, send: d.cq(4 * depth), recv: d.cq(4 * depth), n: n}
	c := QPConfig{SendCQ: e.send, RecvCQ: e.recv, SRQ: srq, Send: newSendQueue(depth, 4, 256), Recv: newRecvQueue(depth, 4)}
	c.Attr.CompMask = libibverbs.IBV_QP_INIT_ATTR_PD
	c.Attr.QpType = kind
	c.Attr.Cap = libibverbs.QpCap{MaxSendWr: depth, MaxRecvWr: depth, MaxSendSge: 4, MaxRecvSge: 4, MaxInlineData: 256}
	var err error
	e.qp, err = e.pd.CreateQP(c)
	require.NoError(n.t, err)
	e.mr = d.memory(e.pd, bytes, allAccess)
	return e
}

// pair makes two queue pairs of two nodes that are connected to each other,
// whose PSNs wrap around soon.
func (n *network) pair(kind libibverbs.QpType, bytes int) (a, b *end) {
	for len(n.nodes) < 2 {
		n.node(byte(1 + len(n.nodes)))
	}
	if kind == libibverbs.IBV_QPT_XRC_SEND {
		return n.xrcPair(bytes)
	}
	a, b = n.end(n.nodes[0], kind, nil, bytes), n.end(n.nodes[1], kind, nil, bytes)
	n.join(a, b)
	return a, b
}

func (n *network) join(a, b *end) {
	a.connect(a.qp, b.number(), b.qp.number)
	b.connect(b.qp, a.number(), a.qp.number)
	const psn = 1<<24 - 20
	for _, e := range []*end{a, b} {
		r := &e.qp.requester
		r.psn, r.acked, r.sent, r.high = psn, psn, psn, psn
		e.qp.responder.psn = psn
	}
}

func (e *end) number() byte { return e.gids[0].GID[15] }

// post posts a signaled work request.
func (e *end) post(s SendSlot, sges ...libibverbs.Sge) {
	e.t.Helper()
	s.Flags |= uint32(libibverbs.IBV_SEND_SIGNALED)
	e.postQuiet(s, sges...)
}

// postQuiet posts a work request.
func (e *end) postQuiet(s SendSlot, sges ...libibverbs.Sge) {
	e.t.Helper()
	postSend(e.t, e.qp.send, e.aimed(s), sges...)
	e.Ring(e.qp.send)
}

func (e *end) postRecv(id uint64, sges ...libibverbs.Sge) {
	e.t.Helper()
	if e.srq != nil {
		postRecv(e.t, e.srq.queue, id, sges...)
		return
	}
	postRecv(e.t, e.qp.recv, id, sges...)
	e.Ring(e.qp.recv)
}

// aimed makes a work request for XRC name the peer's shared receive queue,
// unless it names one.
func (e *end) aimed(s SendSlot) SendSlot {
	if s.RemoteQPN == 0 {
		s.RemoteQPN = e.aim
	}
	return s
}

// remote makes a work request's destination or source the memory at offset of
// r.
func (s SendSlot) remote(r *end, offset int) SendSlot {
	s.RemoteAddr, s.RKey = r.mr.iova+uint64(offset), r.mr.key
	return s
}

// result is what matters of a completion.
type result struct {
	id     uint64
	status libibverbs.WcStatus
}

func results(q *CQ) (all []result) {
	for _, c := range poll(q.ring) {
		all = append(all, result{c.WrId, c.Status})
	}
	return all
}

// fillRandom fills memory with bytes that differ.
func (n *network) fillRandom(b []byte) {
	for i := range b {
		b[i] = byte(n.random.Uint32())
	}
}

// ok is a completion without error.
func ok(id uint64) result { return result{id, libibverbs.IBV_WC_SUCCESS} }

func word(b []byte, offset int) *uint64 { return (*uint64)(unsafe.Pointer(&b[offset])) }

// pattern fills b with bytes that depend on key.
func pattern(b []byte, key uint64) {
	for len(b) > 0 {
		key = key*6364136223846793005 + 1442695040888963407
		var w [8]byte
		binary.NativeEndian.PutUint64(w[:], key>>3)
		b = b[copy(b, w[:]):]
	}
}

func patternOf(size int, key uint64) []byte {
	b := make([]byte, size)
	pattern(b, key)
	return b
}
