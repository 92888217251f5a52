// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	tmAdd  = libibverbs.IBV_WC_TM_ADD
	tmDel  = libibverbs.IBV_WC_TM_DEL
	tmSync = libibverbs.IBV_WC_TM_SYNC
	tmRecv = libibverbs.IBV_WC_TM_RECV
	tmNone = libibverbs.IBV_WC_TM_NO_TAG

	match   = libibverbs.IBV_WC_TM_MATCH
	valid   = libibverbs.IBV_WC_TM_DATA_VALID
	syncReq = libibverbs.IBV_WC_TM_SYNC_REQ

	incomplete = libibverbs.IBV_WC_TM_RNDV_INCOMPLETE
)

// tagged is what matters of a completion of a queue with a tag list.
type tagged struct {
	id     uint64
	status libibverbs.WcStatus
	opcode libibverbs.WcOpcode
	flags  libibverbs.WcFlags
	length uint32
	tag    uint64
}

// tagPair makes two connected queue pairs, the second of which has a tag list.
// If offloads is true, its send queue is the device's.
type tagPair struct {
	*network
	a, b *end
	srq  *SRQ
	cq   *CQ
}

func (n *network) tagPair(offloads bool, tags, ops uint32) *tagPair {
	for len(n.nodes) < 2 {
		n.node(byte(1 + len(n.nodes)))
	}
	d := n.nodes[1]
	cq, pd := d.cq(4*depth), d.pd()
	srq, err := pd.CreateTagSRQ(tagAttr(tags, ops), newRecvQueue(depth, 4), &WorkQueue{}, cq)
	require.NoError(n.t, err)
	a := n.end(n.nodes[0], libibverbs.IBV_QPT_RC, nil, 1<<16)
	b := &end{node: d, pd: pd, send: d.cq(depth), recv: d.cq(depth), n: n}
	c := QPConfig{SendCQ: b.send, RecvCQ: b.recv, SRQ: srq, Send: newSendQueue(depth, 4, 64)}
	if offloads {
		c.Send = newSendQueue(0, 0, 0)
	}
	c.Attr.QpType = libibverbs.IBV_QPT_RC
	b.qp, err = d.pd().CreateQP(c) // in another domain than the receives
	require.NoError(n.t, err)
	b.mr = d.memory(pd, 1<<16, allAccess)
	n.join(a, b)
	return &tagPair{n, a, b, srq, cq}
}

func tagAttr(tags, ops uint32) *libibverbs.SrqInitAttrEx {
	return &libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: depth, MaxSge: 4}, SrqType: libibverbs.IBV_SRQT_TM,
		CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM,
		TmCap:    libibverbs.TmCap{MaxNumTags: tags, MaxOps: ops},
	}
}

// op executes a signaled operation.
func (p *tagPair) op(opcode libibverbs.OpsWrOpcode, id uint64, change func(op *libibverbs.OpsWr), sges ...libibverbs.Sge) uint32 {
	p.t.Helper()
	op := &libibverbs.OpsWr{WrId: id, Opcode: opcode, Flags: libibverbs.IBV_OPS_SIGNALED}
	change(op)
	require.NoError(p.t, p.srq.PostOp(op, sges))
	return op.Tm.Handle
}

// add adds a receive of 4096 bytes at offset, without a completion.
func (p *tagPair) add(id, tag, mask uint64, sges ...libibverbs.Sge) (handle uint32) {
	return p.op(libibverbs.IBV_WR_TAG_ADD, 0, func(op *libibverbs.OpsWr) {
		op.Flags, op.Tm.Add.RecvWrId, op.Tm.Add.Tag, op.Tm.Add.Mask = 0, id, tag, mask
	}, sges...)
}

// sync reports the number of handled unexpected messages.
func (p *tagPair) sync(handled uint32) {
	p.op(libibverbs.IBV_WR_TAG_SYNC, 0, func(op *libibverbs.OpsWr) {
		op.Flags, op.Tm.UnexpectedCnt = libibverbs.IBV_OPS_TM_SYNC, handled
	})
}

// results takes all completions of the queue with the tag list.
func (p *tagPair) results() (all []tagged) {
	for _, c := range poll(p.cq.ring) {
		all = append(all, tagged{c.WrId, c.Status, c.Opcode, c.WcFlags, c.ByteLen, c.Tag})
		if c.WcFlags&match != 0 {
			require.Equal(p.t, uint32(0x0A0B0C0D), c.TagContext)
		}
	}
	return all
}

// message writes a message with the header to a's memory, and returns its
// segments.
func (p *tagPair) message(op libibverbs.TmhOp, tag uint64, rest ...byte) []libibverbs.Sge {
	b := p.a.mr.memory
	clear(b[:16])
	b[0] = byte(op)
	binary.BigEndian.PutUint32(b[4:], 0x0A0B0C0D)
	binary.BigEndian.PutUint64(b[8:], tag)
	copy(b[16:], rest)
	return p.a.mr.split(0, 16+len(rest), 7)
}

// rndv returns what follows the tag's header in a message that requests a
// rendezvous with length bytes at offset of a's memory.
func (p *tagPair) rndv(offset, length int, meta ...byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, p.a.mr.iova+uint64(offset))
	b = binary.BigEndian.AppendUint32(b, p.a.mr.key)
	return append(binary.BigEndian.AppendUint32(b, uint32(length)), meta...)
}

func (p *tagPair) sendMessage(sges []libibverbs.Sge) {
	p.a.post(SendSlot{Opcode: send}, sges...)
	p.run()
}

func (p *tagPair) recv(id uint64, sge libibverbs.Sge) {
	postRecv(p.t, p.srq.queue, id, sge)
}

// What a message becomes depends on its header and on the list.
func TestTagMessages(t *testing.T) {
	data := []byte("some data")
	rndv := func(p *tagPair) []byte { return p.rndv(4096, 100) }
	plain := func(b []byte) func(p *tagPair) []byte { return func(*tagPair) []byte { return b } }
	for name, tt := range map[string]struct {
		op   libibverbs.TmhOp
		tag  uint64
		rest func(p *tagPair) []byte
		want []tagged
	}{
		"eager":                  {libibverbs.IBV_TMH_EAGER, 0x1107, plain(data), []tagged{{1, success, tmRecv, match | valid, 9, 0x1107}}},
		"eager without data":     {libibverbs.IBV_TMH_EAGER, 7, plain(nil), []tagged{{1, success, tmRecv, match | valid, 0, 7}}},
		"eager, unexpected":      {libibverbs.IBV_TMH_EAGER, 8, plain(data), []tagged{{50, success, tmRecv, 0, 25, 0}}},
		"no tag":                 {libibverbs.IBV_TMH_NO_TAG, 7, plain(data), []tagged{{50, success, tmNone, 0, 25, 0}}},
		"end of a rendezvous":    {libibverbs.IBV_TMH_FIN, 7, plain(data), []tagged{{50, success, tmNone, 0, 25, 0}}},
		"unknown":                {77, 7, plain(data), []tagged{{50, success, tmNone, 0, 25, 0}}},
		"rendezvous":             {libibverbs.IBV_TMH_RNDV, 7, rndv, []tagged{{1, success, tmRecv, match, 0, 7}, {1, success, tmRecv, valid, 100, 0}}},
		"rendezvous, unexpected": {libibverbs.IBV_TMH_RNDV, 8, rndv, []tagged{{50, success, tmRecv, 0, 32, 0}}},
		"rendezvous, meta-data":  {libibverbs.IBV_TMH_RNDV, 7, func(p *tagPair) []byte { return p.rndv(4096, 100, make([]byte, 32)...) }, []tagged{{1, success, tmRecv, match, 0, 7}, {1, success, tmRecv, valid, 100, 0}}},
		"rendezvous, too long":   {libibverbs.IBV_TMH_RNDV, 7, func(p *tagPair) []byte { return p.rndv(4096, 100, make([]byte, 33)...) }, []tagged{{50, success, tmRecv, 0, 65, 0}}},
		"rendezvous, cut":        {libibverbs.IBV_TMH_RNDV, 7, func(p *tagPair) []byte { return p.rndv(4096, 100)[:15] }, []tagged{{50, success, tmRecv, 0, 31, 0}}},
		"rendezvous, no data":    {libibverbs.IBV_TMH_RNDV, 7, func(p *tagPair) []byte { return p.rndv(4096, 0) }, []tagged{{1, success, tmRecv, match, 0, 7}, {1, success, tmRecv, valid, 0, 0}}},
		"rendezvous, no room":    {libibverbs.IBV_TMH_RNDV, 7, func(p *tagPair) []byte { return p.rndv(4096, 4097) }, []tagged{{1, incomplete, tmRecv, match, 32, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newNetwork(t, 1).tagPair(true, 4, 4)
			p.fillRandom(p.a.mr.memory)
			p.recv(50, p.b.mr.sge(8192, 4096))
			p.add(1, 7, 0xFF, p.b.mr.split(0, 4096, 5)...)
			p.add(2, 0, 0) // never used here, as each tag but 8 matches the first
			require.True(t, p.srq.tags.remove(2))
			p.a.postRecv(60, p.a.mr.sge(8192, 64))
			rest := tt.rest(p)
			p.sendMessage(p.message(tt.op, tt.tag, rest...))
			require.Equal(t, tt.want, p.results())
			require.Equal(t, []result{ok(0)}, results(p.a.send))
			require.Empty(t, results(p.b.send))
			require.Empty(t, results(p.b.recv))
			stored, where := p.a.mr.memory[:16+len(rest)], p.b.mr.memory[8192:]
			switch {
			case tt.want[0].id == 50:
			case tt.want[0].status == incomplete:
				stored, where = stored[:32], p.b.mr.memory
			case tt.op == libibverbs.IBV_TMH_EAGER:
				stored, where = stored[16:], p.b.mr.memory
			default:
				stored, where = p.a.mr.memory[4096:][:tt.want[1].length], p.b.mr.memory
				fin := append([]byte{byte(libibverbs.IBV_TMH_FIN)}, p.a.mr.memory[1:32]...)
				require.Equal(t, fin, p.a.mr.memory[8192:][:32])
				require.Equal(t, []result{ok(60)}, results(p.a.recv))
			}
			require.Equal(t, stored, where[:len(stored)])
			require.Empty(t, results(p.a.recv))
		})
	}
}

// A message of less than a header has no tag.
func TestTagShortMessages(t *testing.T) {
	for n := range 16 {
		p := newNetwork(t, 1).tagPair(true, 4, 4)
		p.recv(50, p.b.mr.sge(0, 64))
		p.add(1, 0, 0, p.b.mr.sge(64, 64))
		p.message(libibverbs.IBV_TMH_EAGER, 0)
		p.sendMessage([]libibverbs.Sge{p.a.mr.sge(0, n)})
		require.Equal(t, []tagged{{50, success, tmNone, 0, uint32(n), 0}}, p.results())
	}
}

// A long message is matched when it begins, and its receive has the data when
// it ends.
func TestTagLongMessage(t *testing.T) {
	t.Run("packets", func(t *testing.T) { testTagLongMessage(t, false) })
	t.Run("merged", func(t *testing.T) { testTagLongMessage(t, true) })
}

func testTagLongMessage(t *testing.T, merged bool) {
	p := newNetwork(t, 1).tagPair(true, 4, 4)
	p.a.config.Merges = func() bool { return merged }
	p.fillRandom(p.a.mr.memory)
	p.add(1, 7, 0xFF, p.b.mr.split(0, 8000, 1000, 1001)...)
	p.recv(50, p.b.mr.sge(1<<14, 8192))
	p.message(libibverbs.IBV_TMH_EAGER, 7)
	p.a.post(SendSlot{Opcode: sendImm, Imm: 5}, p.a.mr.split(0, 16+8000, 3, 1500)...)
	p.run()
	got := poll(p.cq.ring)
	require.Len(t, got, 2)
	require.Equal(t, [...]any{uint64(1), tmRecv, match, uint32(0), uint64(7)}, [...]any{got[0].WrId, got[0].Opcode, got[0].WcFlags, got[0].ByteLen, got[0].Tag})
	require.Equal(t, [...]any{uint64(1), tmRecv, valid | libibverbs.IBV_WC_WITH_IMM, uint32(8000)}, [...]any{got[1].WrId, got[1].Opcode, got[1].WcFlags, got[1].ByteLen})
	require.Equal(t, uint32(5), uint32(*got[1].ImmData()))
	require.Equal(t, p.a.mr.memory[16:8016], p.b.mr.memory[:8000])

	// An unexpected one, one that is too long for its receive, and one whose end
	// never comes.
	p.sendMessage(p.a.mr.split(0, 5000))
	require.Equal(t, []tagged{{50, success, tmRecv, 0, 5000, 0}}, p.results())
	p.sync(1)
	p.add(2, 7, 0xFF, p.b.mr.sge(0, 4000))
	p.sendMessage(p.a.mr.split(0, 5000))
	want := []tagged{{2, success, tmRecv, match, 0, 7}, {2, libibverbs.IBV_WC_LOC_LEN_ERR, 0, 0, 0, 0}}
	if merged {
		want = want[1:] // the packet that matches is too long itself
	}
	require.Equal(t, want, p.results())
	require.Equal(t, libibverbs.IBV_QPS_ERR, p.b.qp.attr.QpState)
	require.Equal(t, uint32(1), p.srq.tags.arrived)
}

// The oldest receive that a tag matches takes the message, whatever its mask
// is.
func TestTagOrder(t *testing.T) {
	p := newNetwork(t, 1).tagPair(true, 8, 4)
	for i, r := range [][2]uint64{{0x100, 0xF00}, {7, 0xFF}, {7, ^uint64(0)}, {0, 0}, {0x107, ^uint64(0)}} {
		p.add(uint64(i), r[0], r[1], p.b.mr.sge(64*i, 64))
	}
	for _, tag := range []uint64{7, 7, 0x107, 0x107, 9} {
		p.sendMessage(p.message(libibverbs.IBV_TMH_EAGER, tag))
	}
	var ids []uint64
	for _, c := range p.results() {
		ids = append(ids, c.id)
	}
	require.Equal(t, []uint64{1, 2, 0, 3}, ids) // and the last waits for a receive: none matches
	require.Equal(t, []result{{0, success}, {0, success}, {0, success}, {0, success}, {0, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR}}, results(p.a.send))
	require.Len(t, p.srq.tags.recvs, 1)
}

// After an unexpected message, new receives wait until the program has handled
// it; old ones do not.
func TestTagSync(t *testing.T) {
	p := newNetwork(t, 1).tagPair(true, 8, 8)
	for id := range uint64(4) {
		p.recv(50+id, p.b.mr.sge(4096, 64))
	}
	eager := func(tag uint64) { p.sendMessage(p.message(libibverbs.IBV_TMH_EAGER, tag)) }
	p.add(1, 1, 0xF)
	eager(5) // unexpected
	p.op(libibverbs.IBV_WR_TAG_ADD, 90, func(op *libibverbs.OpsWr) { op.Tm.Add.RecvWrId, op.Tm.Add.Tag, op.Tm.Add.Mask = 2, 2, 0xF })
	eager(1) // the receive was there before
	eager(2) // unexpected, since its receive is too new
	p.op(libibverbs.IBV_WR_TAG_SYNC, 91, func(op *libibverbs.OpsWr) { op.Flags |= libibverbs.IBV_OPS_TM_SYNC; op.Tm.UnexpectedCnt = 1 })
	eager(2)                                                                                     // still
	p.op(libibverbs.IBV_WR_TAG_SYNC, 92, func(op *libibverbs.OpsWr) { op.Tm.UnexpectedCnt = 3 }) // does not report, without the flag
	p.op(libibverbs.IBV_WR_TAG_SYNC, 93, func(op *libibverbs.OpsWr) { op.Flags |= libibverbs.IBV_OPS_TM_SYNC; op.Tm.UnexpectedCnt = 3 })
	eager(2)
	require.Equal(t, []tagged{
		{50, success, tmRecv, 0, 16, 0},
		{90, success, tmAdd, syncReq, 0, 0},
		{1, success, tmRecv, match | valid, 0, 1},
		{51, success, tmRecv, 0, 16, 0},
		{91, success, tmSync, syncReq, 0, 0},
		{52, success, tmRecv, 0, 16, 0},
		{92, success, tmSync, syncReq, 0, 0},
		{93, success, tmSync, 0, 0, 0},
		{2, success, tmRecv, match | valid, 0, 2},
	}, p.results())

	p.srq.tags.arrived += maxUnsynced
	eager(9)
	require.Equal(t, []tagged{{53, success, tmRecv, syncReq, 16, 0}}, p.results())
}

// Operations that cannot be executed change nothing.
func TestTagOps(t *testing.T) {
	p := newNetwork(t, 1).tagPair(true, 2, 2)
	post := func(opcode libibverbs.OpsWrOpcode, flags libibverbs.OpsFlags, handle uint32, segments int) error {
		op := &libibverbs.OpsWr{Opcode: opcode, Flags: flags}
		op.Tm.Handle, op.Tm.UnexpectedCnt = handle, 7
		return p.srq.PostOp(op, make([]libibverbs.Sge, segments))
	}
	const add, del, sync = libibverbs.IBV_WR_TAG_ADD, libibverbs.IBV_WR_TAG_DEL, libibverbs.IBV_WR_TAG_SYNC
	both := libibverbs.IBV_OPS_SIGNALED | libibverbs.IBV_OPS_TM_SYNC
	require.ErrorIs(t, post(3, both, 0, 0), syscall.EINVAL)
	require.ErrorIs(t, post(sync, both|4, 0, 0), syscall.EINVAL)
	require.ErrorIs(t, post(add, both, 0, maxSGE+1), syscall.EINVAL)
	require.ErrorIs(t, post(del, both, 0, 0), syscall.ENOENT)
	require.Zero(t, p.srq.tags.handled)
	require.Empty(t, p.results())

	first, second := p.add(1, 1, 1), p.add(2, 2, 2)
	require.NotEqual(t, first, second)
	require.ErrorIs(t, post(add, 0, 0, 0), syscall.ENOMEM)
	require.NoError(t, post(del, libibverbs.IBV_OPS_SIGNALED, first, 0))
	require.NoError(t, post(del, libibverbs.IBV_OPS_SIGNALED, first, 0)) // is deleted already
	require.ErrorIs(t, post(sync, libibverbs.IBV_OPS_SIGNALED, 0, 0), syscall.ENOMEM, "two completions were not polled")
	require.NoError(t, post(del, 0, 1<<31, 0), "without a completion nothing tells that this failed")
	p.add(3, 3, 3)
	require.Equal(t, []tagged{{0, success, tmDel, 0, 0, 0}, {0, libibverbs.IBV_WC_TM_ERR, tmDel, 0, 0, 0}}, p.results())
	require.NoError(t, post(sync, libibverbs.IBV_OPS_SIGNALED, 0, 0))
	require.Len(t, p.results(), 1)

	// A message has taken the receive.
	p.sendMessage(p.message(libibverbs.IBV_TMH_EAGER, 2))
	require.NoError(t, post(del, libibverbs.IBV_OPS_SIGNALED, second, 0))
	require.Equal(t, []tagged{{2, success, tmRecv, match | valid, 0, 2}, {0, libibverbs.IBV_WC_TM_ERR, tmDel, 0, 0, 0}}, p.results())

	basic := p.nodes[1].srq(p.b.pd, 1)
	require.ErrorIs(t, basic.PostOp(&libibverbs.OpsWr{}, nil), syscall.EOPNOTSUPP)
	p.b.Remove()
	require.ErrorIs(t, post(sync, 0, 0, 0), syscall.EIO)
}

// What is wrong with a rendezvous is told to the program, once.
func TestTagRendezvousFails(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *tagPair, rest []byte)
		second libibverbs.WcStatus
	}{
		"key":       {func(p *tagPair, rest []byte) { rest[11] ^= 1 }, remAccess},
		"range":     {func(p *tagPair, rest []byte) { binary.BigEndian.PutUint64(rest, p.a.mr.iova+1<<16-50) }, remAccess},
		"read":      {func(p *tagPair, rest []byte) { p.a.qp.attr.QpAccessFlags = 0 }, remInvalid},
		"local key": {func(p *tagPair, rest []byte) { p.srq.tags.recvs[0].segments[0].Lkey ^= 1 }, locProt},
	} {
		t.Run(name, func(t *testing.T) {
			p := newNetwork(t, 1).tagPair(true, 4, 4)
			p.add(1, 0, 0, p.b.mr.sge(0, 4096))
			p.add(2, 0, 0, p.b.mr.sge(0, 4096))
			p.a.postRecv(60, p.a.mr.sge(8192, 64))
			rest := p.rndv(4096, 100)
			tt.change(p, rest)
			p.a.post(SendSlot{Opcode: send}, p.message(libibverbs.IBV_TMH_RNDV, 7, rest...)...)
			p.a.post(SendSlot{Opcode: send}, p.a.mr.sge(0, 32))
			p.run()
			require.Equal(t, []tagged{
				{1, success, tmRecv, match, 0, 7},
				{2, success, tmRecv, match, 0, 7},
				{1, tt.second, 0, 0, 0, 0},
				{2, flushed, 0, 0, 0, 0},
			}, p.results())
			require.Equal(t, libibverbs.IBV_QPS_ERR, p.b.qp.attr.QpState)
			require.Empty(t, results(p.b.send))
		})
	}
	t.Run("end", func(t *testing.T) {
		p := newNetwork(t, 1).tagPair(true, 4, 4)
		p.add(1, 0, 0, p.b.mr.sge(0, 4096))
		p.sendMessage(p.message(libibverbs.IBV_TMH_RNDV, 7, p.rndv(4096, 100)...)) // no receive for its end
		require.Equal(t, []tagged{{1, success, tmRecv, match, 0, 7}, {1, success, tmRecv, valid, 100, 0}}, p.results())
		require.Equal(t, libibverbs.IBV_QPS_ERR, p.b.qp.attr.QpState)
		require.Contains(t, p.b.takeEvents(), AsyncEvent{libibverbs.IBV_EVENT_QP_FATAL, p.b.qp})
	})
}

// If the device may not read, the program gets the headers.
func TestTagRendezvousOfProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		offloads bool
		change   func(p *tagPair)
		room     int
	}{
		"send queue of the program": {false, func(*tagPair) {}, 4096},
		"no reads":                  {true, func(p *tagPair) { p.b.qp.attr.MaxRdAtomic = 0 }, 4096},
		"short receive":             {true, func(*tagPair) {}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := newNetwork(t, 1).tagPair(tt.offloads, 4, 4)
			p.add(1, 0, 0, p.b.mr.sge(0, tt.room))
			tt.change(p)
			p.sendMessage(p.message(libibverbs.IBV_TMH_RNDV, 7, p.rndv(4096, 100)...))
			n := min(tt.room, 32)
			require.Equal(t, []tagged{{1, incomplete, tmRecv, match, uint32(n), 7}}, p.results())
			require.Equal(t, p.a.mr.memory[:n], p.b.mr.memory[:n])
			require.Equal(t, libibverbs.IBV_QPS_RTS, p.b.qp.attr.QpState)
		})
	}
}

// More rendezvous than the device's send queue has room for wait for their
// turn, also over a network that loses packets.
func TestTagManyRendezvous(t *testing.T) {
	for seed := range uint64(4) {
		n := newNetwork(t, seed)
		p := n.tagPair(true, depth, 1)
		if seed > 0 {
			n.drop, n.duplicate, n.reorder = 0.02, 0.02, 0.02
			p.a.qp.attr.RnrRetry, p.b.qp.attr.RnrRetry = 7, 7
		}
		n.fillRandom(p.a.mr.memory)
		for i := range depth {
			p.add(uint64(i), uint64(i), ^uint64(0), p.b.mr.sge(i*512, 512))
			p.a.postRecv(uint64(i), p.a.mr.sge(60_000, 64))
		}
		done := map[uint64]int{}
		for i := range depth {
			p.message(libibverbs.IBV_TMH_RNDV, uint64(i), p.rndv(512*i, 512)...)
			postInline(t, p.a.qp.send, SendSlot{Opcode: send}, p.a.mr.memory[:32])
			p.a.Ring(p.a.qp.send)
		}
		want := append([]byte(nil), p.a.mr.memory[:depth*512]...)
		p.run()
		for _, c := range p.results() {
			require.Equal(t, success, c.status)
			done[c.id]++
		}
		require.Len(t, done, depth)
		for id, times := range done {
			require.Equal(t, 2, times, id)
		}
		require.Equal(t, want[512:], p.b.mr.memory[512:depth*512])
		require.Len(t, results(p.a.recv), depth)
		require.Zero(t, len(p.b.qp.offload.waiting))
	}
}

// A flood of unexpected messages is limited by the posted receives; those that
// find none are repeated.
func TestTagFlood(t *testing.T) {
	p := newNetwork(t, 1).tagPair(true, 4, 4)
	p.a.qp.attr.RnrRetry = 7
	p.add(1, 1, 1, p.b.mr.sge(0, 64))
	sges := p.message(libibverbs.IBV_TMH_EAGER, 2)
	for range depth {
		p.a.postQuiet(SendSlot{Opcode: send}, sges...)
	}
	for i := range depth {
		if i%8 == 0 {
			for range 8 {
				p.recv(50, p.b.mr.sge(4096, 64))
			}
		}
		p.runFor(1e9)
	}
	require.Len(t, p.results(), depth)
	require.Equal(t, uint32(depth), p.srq.tags.arrived)
	require.Len(t, p.srq.tags.recvs, 1)
}

// A queue pair that ends under a message leaves the list and the counter right.
func TestTagEndUnderMessage(t *testing.T) {
	for name, end := range map[string]func(p *tagPair){
		"error":   func(p *tagPair) { p.b.modify(libibverbs.IBV_QPS_ERR) },
		"reset":   func(p *tagPair) { p.b.modify(libibverbs.IBV_QPS_RESET) },
		"destroy": func(p *tagPair) { require.NoError(p.t, p.b.qp.Destroy()) },
	} {
		for _, tag := range []uint64{1, 2} {
			t.Run(fmt.Sprint(name, tag), func(t *testing.T) {
				p := newNetwork(t, 1).tagPair(true, 4, 4)
				p.add(1, 1, 0xF, p.b.mr.sge(0, 4096))
				for id := range uint64(3) {
					p.recv(50+id, p.b.mr.sge(8192, 4096))
				}
				whole := func() {
					m := p.a.qp.packet(wire.RCSendOnly, p.b.qp.responder.psn)
					m.Payload = [][]byte{p.a.mr.memory[:32]}
					p.b.Receive(m)
				}
				p.message(libibverbs.IBV_TMH_EAGER, 2)
				whole()
				require.Equal(t, []tagged{{50, success, tmRecv, 0, 32, 0}}, p.results())
				whole()
				p.add(2, 3, 0xF)
				p.add(4, 5, 0xF)
				require.False(t, p.srq.tags.recvs[1].active)
				p.message(libibverbs.IBV_TMH_EAGER, tag)
				first := p.a.qp.packet(wire.RCSendFirst, p.b.qp.responder.psn)
				first.Payload = [][]byte{p.a.mr.memory[:1024]}
				p.b.Receive(first)
				require.Equal(t, uint32(2+tag-1), p.srq.tags.arrived)
				end(p)
				p.runFor(1e6)
				unexpected := uint32(1) // the message whose completion was polled
				if name == "error" {
					unexpected = 2
				}
				require.Equal(t, unexpected, p.srq.tags.arrived)
				require.Len(t, p.srq.tags.recvs, int(tag-1)+2)
				require.False(t, p.srq.tags.recvs[tag].active)
				if name == "error" {
					got := p.results()
					require.Equal(t, flushed, got[len(got)-1].status)
				}
				p.sync(unexpected)
				require.True(t, p.srq.tags.recvs[tag].active)
				p.add(3, 1, 0xF)
				require.True(t, p.srq.tags.recvs[len(p.srq.tags.recvs)-1].active)
			})
		}
	}
	t.Run("activates", func(t *testing.T) {
		p := newNetwork(t, 1).tagPair(true, 4, 4)
		p.recv(50, p.b.mr.sge(8192, 4096))
		p.sendMessage(p.message(libibverbs.IBV_TMH_EAGER, 2))
		p.add(1, 1, 0xF)
		require.False(t, p.srq.tags.recvs[0].active)
		require.NoError(t, p.b.qp.Destroy())
		require.True(t, p.srq.tags.recvs[0].active, "no message is unexpected any more")
	})
}

// Rendezvous in progress end with their queue pair.
func TestTagEndUnderRendezvous(t *testing.T) {
	for name, end := range map[string]func(p *tagPair){
		"error":   func(p *tagPair) { p.b.modify(libibverbs.IBV_QPS_ERR) },
		"reset":   func(p *tagPair) { p.b.modify(libibverbs.IBV_QPS_RESET) },
		"destroy": func(p *tagPair) { require.NoError(p.t, p.b.qp.Destroy()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newNetwork(t, 1).tagPair(true, depth, 4)
			n := 2*offloaded + 3
			for i := range n {
				p.add(uint64(i), 0, 0, p.b.mr.sge(0, 4096))
			}
			p.message(libibverbs.IBV_TMH_RNDV, 7, p.rndv(4096, 4096)...)
			for range n {
				m := p.a.qp.packet(wire.RCSendOnly, p.b.qp.responder.psn)
				m.Payload = [][]byte{p.a.mr.memory[:32]}
				p.b.Receive(m)
			}
			require.Len(t, p.b.qp.offload.waiting, n-offloaded)
			end(p)
			p.runFor(1e6)
			got := p.results()
			if name != "error" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 2*n)
			for i := range n {
				require.Equal(t, tagged{uint64(i), flushed, 0, 0, 0, 0}, got[n+i])
			}
		})
	}
}

// The queues are in use until what uses them is gone.
func TestTagLifetimes(t *testing.T) {
	p := newNetwork(t, 1).tagPair(true, 4, 4)
	require.ErrorIs(t, p.cq.Destroy(), syscall.EBUSY)
	require.ErrorIs(t, p.b.recv.Destroy(), syscall.EBUSY)
	require.ErrorIs(t, p.srq.Destroy(), syscall.EBUSY)
	require.Zero(t, p.b.qp.cap())
	p.op(libibverbs.IBV_WR_TAG_SYNC, 9, func(*libibverbs.OpsWr) {})
	require.NoError(t, p.b.qp.Destroy())
	require.NoError(t, p.b.recv.Destroy())
	require.ErrorIs(t, p.cq.Destroy(), syscall.EBUSY)
	require.NoError(t, p.srq.Destroy())
	require.Empty(t, p.results(), "the completion of an operation names memory that is gone")
	require.NoError(t, p.cq.Destroy())
}

func TestCreateTagSRQ(t *testing.T) {
	d, other := newNode(t, 1), newNode(t, 2)
	pd, cq := d.pd(), d.cq(4)
	for name, tt := range map[string]struct {
		change func(a *libibverbs.SrqInitAttrEx)
		cq     *CQ
		want   error
	}{
		"good":         {func(*libibverbs.SrqInitAttrEx) {}, cq, nil},
		"largest":      {func(a *libibverbs.SrqInitAttrEx) { a.TmCap = libibverbs.TmCap{MaxNumTags: maxTags, MaxOps: maxTagOps} }, cq, nil},
		"no tags":      {func(a *libibverbs.SrqInitAttrEx) { a.TmCap.MaxNumTags = 0 }, cq, syscall.EINVAL},
		"many tags":    {func(a *libibverbs.SrqInitAttrEx) { a.TmCap.MaxNumTags = maxTags + 1 }, cq, syscall.EINVAL},
		"no ops":       {func(a *libibverbs.SrqInitAttrEx) { a.TmCap.MaxOps = 0 }, cq, syscall.EINVAL},
		"many ops":     {func(a *libibverbs.SrqInitAttrEx) { a.TmCap.MaxOps = maxTagOps + 1 }, cq, syscall.EINVAL},
		"no list":      {func(a *libibverbs.SrqInitAttrEx) { a.CompMask &^= libibverbs.IBV_SRQ_INIT_ATTR_TM }, cq, syscall.EINVAL},
		"queue unsaid": {func(a *libibverbs.SrqInitAttrEx) { a.CompMask &^= libibverbs.IBV_SRQ_INIT_ATTR_CQ }, cq, syscall.EINVAL},
		"domain":       {func(a *libibverbs.SrqInitAttrEx) { a.CompMask |= libibverbs.IBV_SRQ_INIT_ATTR_XRCD }, cq, syscall.EINVAL},
		"basic":        {func(a *libibverbs.SrqInitAttrEx) { a.SrqType = libibverbs.IBV_SRQT_BASIC }, cq, syscall.EINVAL},
		"no queue":     {func(*libibverbs.SrqInitAttrEx) {}, nil, syscall.EINVAL},
		"other device": {func(*libibverbs.SrqInitAttrEx) {}, other.cq(4), syscall.EINVAL},
	} {
		a := tagAttr(4, 4)
		tt.change(a)
		s, err := pd.CreateTagSRQ(a, newRecvQueue(4, 1), &WorkQueue{}, tt.cq)
		require.ErrorIs(t, err, tt.want, name)
		if err == nil {
			require.NoError(t, s.Destroy())
		}
	}
	require.NoError(t, cq.Destroy(), "nothing is left on it")

	s, err := pd.CreateTagSRQ(tagAttr(4, 4), newRecvQueue(4, 1), &WorkQueue{}, d.cq(4))
	require.NoError(t, err)
	for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_UD} {
		c := QPConfig{SendCQ: d.cq(4), RecvCQ: d.cq(4), SRQ: s, Send: newSendQueue(0, 0, 0)}
		c.Attr.QpType = kind
		_, err := pd.CreateQP(c)
		require.ErrorIs(t, err, syscall.EINVAL)
	}

	none := small(t, func(l *Limits) { l.Tags = 0 })
	_, err = none.pd().CreateTagSRQ(tagAttr(4, 4), newRecvQueue(4, 1), &WorkQueue{}, none.cq(4))
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	for _, change := range []func(l *Limits){func(l *Limits) { l.Tags = 0 }, func(l *Limits) { l.SRQs = 0 }} {
		attr, err := small(t, change).Attr()
		require.NoError(t, err)
		require.Zero(t, attr.TmCaps)
	}
	attr, err := d.Attr()
	require.NoError(t, err)
	require.Equal(t, libibverbs.TmCaps{
		MaxRndvHdrSize: 64, MaxNumTags: maxTags, Flags: libibverbs.IBV_TM_CAP_RC, MaxOps: maxTagOps, MaxSge: maxSGE,
	}, attr.TmCaps)
}

// Whatever messages a hostile peer sends while the list changes, nothing
// panics, no receive completes more often than it may, and the counters stay
// right.
func FuzzTags(f *testing.F) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := choices(b)
		p := newNetwork(t, 1).tagPair(c.int(4) > 0, 8, 4)
		p.b.qp.mtu = 256
		var handles []uint32
		completed := map[uint64]int{}
		id := uint64(100)
		seen := func() {
			for _, w := range poll(p.cq.ring) {
				if w.WrId >= 100 && w.Opcode != tmAdd && w.Opcode != tmDel && w.Opcode != tmSync {
					if completed[w.WrId]++; completed[w.WrId] > 2 {
						t.Fatalf("receive %d completed %d times", w.WrId, completed[w.WrId])
					}
				}
			}
		}
		for len(c) > 0 {
			switch c.int(8) {
			case 0:
				op := &libibverbs.OpsWr{Opcode: libibverbs.OpsWrOpcode(c.int(4)), Flags: libibverbs.OpsFlags(c.int(4))}
				op.Tm.UnexpectedCnt = p.srq.tags.arrived - uint32(c.int(4)/3)
				op.Tm.Add.RecvWrId, op.Tm.Add.Tag, op.Tm.Add.Mask = id, uint64(c.int(4)), uint64(c.int(4))
				if op.Opcode == libibverbs.IBV_WR_TAG_DEL && len(handles) > 0 {
					op.Tm.Handle = handles[c.int(len(handles))]
				}
				id++
				if p.srq.PostOp(op, []libibverbs.Sge{p.b.mr.sge(c.int(8)*1000, c.int(8)*100)}) == nil && op.Opcode == libibverbs.IBV_WR_TAG_ADD {
					handles = append(handles, op.Tm.Handle)
				}
			case 1:
				if !full(p.srq.queue) {
					p.recv(id, p.b.mr.sge(8192, c.int(8)*100))
					id++
				}
			case 2:
				p.b.Advance(p.b.now + 1000)
				p.b.sent = p.b.sent[:0]
				seen()
			case 3:
				if p.b.qp.attr.QpState == libibverbs.IBV_QPS_ERR {
					p.b.modify(libibverbs.IBV_QPS_RESET)
					p.b.connect(p.b.qp, 1, 77)
					p.b.qp.mtu = 256
				}
			case 4: // an answer to the device's own requests
				q := p.b.qp
				m := &wire.Packet{
					SGID: q.path.dgid, DGID: q.path.sgid, PKey: 0xFFFF, DestQP: q.number, PSN: q.requester.acked.Add(c.int(3) / 2),
					Opcode: []wire.Opcode{wire.RCReadOnly, wire.RCAck, wire.RCReadFirst, wire.RCAtomicAck}[c.int(4)], Syndrome: wire.Syndrome(c.byte()),
				}
				if m.Opcode.HasPayload() {
					m.Payload = [][]byte{make([]byte, c.int(4)*100)}
				}
				p.b.Receive(m)
			default:
				q := p.b.qp
				n := []int{0, 1, 15, 16, 17, 31, 32, 33, 64, 65, 255, 256, 256, 256, 256, 256}[c.int(16)]
				body := make([]byte, n, 256)
				h := body[:cap(body)]
				h[0], h[15] = byte(c.int(5)), byte(c.int(4))
				binary.BigEndian.PutUint32(h[28:], uint32(c.int(8))*100)
				m := &wire.Packet{
					SGID: q.path.dgid, DGID: q.path.sgid, PKey: 0xFFFF, DestQP: q.number, PSN: q.responder.psn, AckReq: true,
					Opcode: wire.Opcode(c.int(6)), Payload: [][]byte{body[:n/3], body[n/3:]},
				}
				p.b.Receive(m)
			}
			l := p.srq.tags
			active := true
			for _, v := range l.recvs { // the inactive ones are the newest
				require.False(t, v.active && !active)
				active = v.active
			}
			require.LessOrEqual(t, len(l.recvs), 8)
			require.LessOrEqual(t, l.ops.Posted-atomic.LoadUint32(&l.ops.Freed), l.ops.Max)
		}
		p.b.Advance(p.b.now)
		seen()
	})
}
