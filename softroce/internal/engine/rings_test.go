// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// This file does what C does: it makes rings, posts and polls.

func newQueue(max, sges, inline uint32, head uintptr) *WorkQueue {
	size := uint32(1) << bits.Len32(max-1)
	if max == 0 {
		size = 1
	}
	stride := uint32(head) + (sgeBytes(sges, inline)+7)/8*8
	return &WorkQueue{
		Size: size, Max: max, Stride: stride, MaxSGE: sges, Inline: inline,
		Slots: unsafe.Pointer(unsafe.SliceData(make([]uint64, size*stride/8))),
	}
}

func sgeBytes(sges, inline uint32) uint32 {
	return max(sges*uint32(unsafe.Sizeof(libibverbs.Sge{})), inline)
}

func newSendQueue(max, sges, inline uint32) *WorkQueue {
	return newQueue(max, sges, inline, SendSlotSize)
}

func newRecvQueue(max, sges uint32) *WorkQueue { return newQueue(max, sges, 0, RecvSlotSize) }

func newCompletions(max uint32) *CompletionQueue {
	size := uint32(1) << bits.Len32(max-1)
	return &CompletionQueue{Size: size, Max: max, Entries: unsafe.Pointer(unsafe.SliceData(make([]Completion, size)))}
}

// full reports whether nothing more may be posted.
func full(w *WorkQueue) bool { return w.Posted-atomic.LoadUint32(&w.Freed) >= w.Max }

// postSend posts a work request with segments.
func postSend(t testing.TB, w *WorkQueue, s SendSlot, sges ...libibverbs.Sge) {
	t.Helper()
	require.False(t, full(w), "send queue full")
	require.LessOrEqual(t, len(sges), int(w.MaxSGE))
	slot := w.send(w.Posted)
	s.NumSGE = uint32(len(sges))
	*slot = s
	copy(slot.segments(), sges)
	atomic.AddUint32(&w.Posted, 1)
}

// postInline posts a work request with inline data.
func postInline(t testing.TB, w *WorkQueue, s SendSlot, data []byte) {
	t.Helper()
	require.False(t, full(w), "send queue full")
	require.LessOrEqual(t, len(data), int(w.Inline))
	slot := w.send(w.Posted)
	s.Flags |= uint32(libibverbs.IBV_SEND_INLINE)
	s.InlineLen = uint32(len(data))
	*slot = s
	copy(slot.inline(), data)
	atomic.AddUint32(&w.Posted, 1)
}

func postRecv(t testing.TB, w *WorkQueue, id uint64, sges ...libibverbs.Sge) {
	t.Helper()
	require.False(t, full(w), "receive queue full")
	require.LessOrEqual(t, len(sges), int(w.MaxSGE))
	slot := w.recv(w.Posted)
	*slot = RecvSlot{ID: id, NumSGE: uint32(len(sges))}
	copy(slot.segments(), sges)
	atomic.AddUint32(&w.Posted, 1)
}

// poll takes all completions.
func poll(r *CompletionQueue) (all []Completion) {
	for r.Polled != atomic.LoadUint32(&r.Added) {
		c := *r.entry(r.Polled)
		if c.Queue != nil {
			atomic.StoreUint32(&c.Queue.Freed, c.Count)
		}
		if detector.Enabled { // receives in tag lists are told to it by the device
			detector.Completed([]uint32{c.Ticket})
		}
		atomic.StoreUint32(&r.Polled, r.Polled+1)
		all = append(all, c)
	}
	return all
}

// node is a device under test with what it has sent.
type node struct {
	*Device
	t           testing.TB
	sent        []*wire.Packet
	completions []*CQ
	events      []AsyncEvent
	lazy        *laziness // nil: the node hears acknowledgements at once
}

func testGID(n byte) wire.GID {
	return wire.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: n}
}

// newNode returns a device with the GID testGID(n) and queue pair numbers from
// n<<16 on.
func newNode(t testing.TB, n byte) *node {
	d := &node{t: t}
	d.Device = New(Config{
		Random: rand.New(rand.NewPCG(uint64(n), 0)), FirstQPN: uint32(n) << 16, QPNs: 1 << 16, GUID: uint64(n),
		Send:            func(p *wire.Packet) { d.sent = append(d.sent, p) },
		CompletionEvent: func(cq *CQ, _ uint32) { d.completions = append(d.completions, cq) },
		AsyncEvent:      func(e AsyncEvent) { d.events = append(d.events, e) },
	})
	require.NoError(t, d.SetGID(0, GIDEntry{GID: testGID(n), NetDev: 1}))
	d.events = nil
	return d
}

// limit gives the device a window.
func (d *node) limit(packets int) { d.config.Window, d.readPackets = packets, packets }

// takeEvents returns the asynchronous events since the last call.
func (d *node) takeEvents() []AsyncEvent {
	e := d.events
	d.events = nil
	return e
}

// requireEvents checks the asynchronous events since the last call.
func (d *node) requireEvents(want ...AsyncEvent) {
	d.t.Helper()
	require.Equal(d.t, eventTexts(want), eventTexts(d.takeEvents()))
}

// eventTexts says of which object each event is without what is in the object.
func eventTexts(events []AsyncEvent) (texts []string) {
	for _, e := range events {
		switch e.Object.(type) {
		case nil, int:
			texts = append(texts, fmt.Sprint(e.Type, e.Object))
		default:
			texts = append(texts, fmt.Sprintf("%v %p", e.Type, e.Object))
		}
	}
	return texts
}

// requireCompletionEvents checks the completion events so far.
func (d *node) requireCompletionEvents(want ...*CQ) {
	d.t.Helper()
	require.True(d.t, slices.Equal(want, d.completions))
}

func (d *node) pd() *PD {
	p, err := d.CreatePD()
	require.NoError(d.t, err)
	return p
}

func (d *node) cq(max uint32) *CQ {
	q, err := d.CreateCQ(newCompletions(max))
	require.NoError(d.t, err)
	return q
}

// memory registers n bytes, which work requests address as they lie in memory.
func (d *node) memory(p *PD, n int, access libibverbs.AccessFlags) *MR {
	b := make([]byte, n)
	m, err := p.RegisterMR(b, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), access)
	require.NoError(d.t, err)
	return m
}

// sge returns the segment of length bytes at offset of the region.
func (m *MR) sge(offset, length int) libibverbs.Sge {
	return libibverbs.Sge{Addr: m.iova + uint64(offset), Length: uint32(length), Lkey: m.key}
}

const allAccess = libibverbs.IBV_ACCESS_LOCAL_WRITE | remoteAccess | libibverbs.IBV_ACCESS_MW_BIND

// qp makes a queue pair with room for 16 requests of 4 segments or 64 bytes
// inline.
func (d *node) qp(p *PD, kind libibverbs.QpType, send, recv *CQ, srq *SRQ) *QP {
	c := QPConfig{SendCQ: send, RecvCQ: recv, SRQ: srq, Send: newSendQueue(16, 4, 64), Recv: newRecvQueue(16, 4)}
	c.Attr.CompMask = libibverbs.IBV_QP_INIT_ATTR_PD
	c.Attr.QpType = kind
	c.Attr.Cap = libibverbs.QpCap{MaxSendWr: 16, MaxRecvWr: 16, MaxSendSge: 4, MaxRecvSge: 4, MaxInlineData: 64}
	q, err := p.CreateQP(c)
	require.NoError(d.t, err)
	return q
}

// connect takes a connected queue pair from reset to ready to send, to the
// queue pair with the given number at testGID(peer).
func (d *node) connect(q *QP, peer byte, number uint32) {
	t := d.t
	a := &libibverbs.QpAttr{
		PortNum: 1, QpAccessFlags: remoteAccess, PathMtu: libibverbs.IBV_MTU_1024, DestQpNum: number,
		Timeout: 14, RetryCnt: 7, RnrRetry: 6, MinRnrTimer: 12, MaxRdAtomic: 4, MaxDestRdAtomic: 4,
	}
	a.AhAttr = *ahAttr(peer)
	sends := q.kind == libibverbs.IBV_QPT_RC || q.kind == libibverbs.IBV_QPT_XRC_SEND
	answers := q.kind == libibverbs.IBV_QPT_RC || q.kind == libibverbs.IBV_QPT_XRC_RECV
	mask := libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_ACCESS_FLAGS
	a.QpState = libibverbs.IBV_QPS_INIT
	require.NoError(t, q.Modify(a, mask))
	mask = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN
	if answers {
		mask |= libibverbs.IBV_QP_MIN_RNR_TIMER | libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC
	}
	a.QpState = libibverbs.IBV_QPS_RTR
	require.NoError(t, q.Modify(a, mask))
	mask = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN
	switch {
	case q.kind == libibverbs.IBV_QPT_XRC_RECV:
		mask |= libibverbs.IBV_QP_TIMEOUT
	case sends:
		mask |= libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	}
	a.QpState = libibverbs.IBV_QPS_RTS
	require.NoError(t, q.Modify(a, mask))
}

// datagrams takes a datagram queue pair from reset to ready to send.
func (d *node) datagrams(q *QP, qkey uint32) {
	a := &libibverbs.QpAttr{PortNum: 1, Qkey: qkey}
	for state, mask := range []libibverbs.QpAttrMask{
		libibverbs.IBV_QPS_INIT: libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_QKEY,
		libibverbs.IBV_QPS_RTR:  0,
		libibverbs.IBV_QPS_RTS:  libibverbs.IBV_QP_SQ_PSN,
	} {
		if a.QpState = libibverbs.QpState(state); state > 0 {
			require.NoError(d.t, q.Modify(a, mask|libibverbs.IBV_QP_STATE))
		}
	}
}
