// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// answerOf is what matters of an answer on the wire. PSNs count from the
// connection's first.
type answerOf struct {
	opcode   wire.Opcode
	psn      int
	syndrome wire.Syndrome
	msn      uint32
}

func answersOf(packets []*wire.Packet) (all []answerOf) {
	for _, p := range packets {
		all = append(all, answerOf{p.Opcode, p.PSN.Diff(1<<24 - 20), p.Syndrome, p.MSN})
	}
	return all
}

// asked returns a request to b with a PSN that counts from the connection's
// first.
func (b *end) asked(op wire.Opcode, psn int) *wire.Packet {
	p := b.qp.packet(op, wire.PSN(1<<24-20).Add(psn))
	p.DestQP = b.qp.number
	p.SGID, p.DGID = p.DGID, p.SGID
	p.Addr, p.RKey, p.AckReq = b.mr.iova, b.mr.key, true
	return p
}

// Answers leave in the order of PSNs, ACKs that nothing is between become one,
// and each tells how many messages are done.
func TestAnswers(t *testing.T) {
	n := newNetwork(t, 1)
	_, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	b.postRecv(1, b.mr.sge(0, 64))
	read := func(psn, length int) *wire.Packet {
		p := b.asked(wire.RCReadRequest, psn)
		p.Length = uint32(length)
		return p
	}
	quiet := b.asked(wire.RCWriteOnly, 9)
	quiet.AckReq = false
	for _, p := range []*wire.Packet{
		b.asked(wire.RCWriteOnly, 0), b.asked(wire.RCWriteOnly, 1), b.asked(wire.RCSendOnly, 2), read(3, 2049),
		b.asked(wire.RCWriteOnly, 6), b.asked(wire.RCFetchAdd, 7), b.asked(wire.RCWriteOnly, 8), quiet,
	} {
		b.Receive(p)
	}
	b.Advance(0)
	require.Equal(t, []answerOf{
		{wire.RCAck, 2, wire.Ack, 3},
		{wire.RCReadFirst, 3, wire.Ack, 4},
		{wire.RCReadMiddle, 4, wire.Ack, 4},
		{wire.RCReadLast, 5, wire.Ack, 4},
		{wire.RCAck, 6, wire.Ack, 5},
		{wire.RCAtomicAck, 7, wire.Ack, 6},
		{wire.RCAck, 8, wire.Ack, 7},
	}, answersOf(b.sent))
}

// What was done before is answered again, not done again; a READ also from its
// middle on, but no more of it than was asked for.
func TestDuplicates(t *testing.T) {
	again := func(b *end, psn int, f func(p *wire.Packet)) *wire.Packet {
		p := b.asked(wire.RCReadRequest, psn)
		p.Length = 2049
		f(p)
		return p
	}
	for name, tt := range map[string]struct {
		ask  func(b *end) *wire.Packet
		want []answerOf
	}{
		"write": {func(b *end) *wire.Packet { return b.asked(wire.RCWriteOnly, 0) }, []answerOf{{wire.RCAck, 4, wire.Ack, 3}}},
		"send":  {func(b *end) *wire.Packet { return b.asked(wire.RCSendOnly, 0) }, []answerOf{{wire.RCAck, 4, wire.Ack, 3}}},
		"atomic": {func(b *end) *wire.Packet { return b.asked(wire.RCFetchAdd, 4) }, []answerOf{
			{wire.RCAtomicAck, 4, wire.Ack, 3},
		}},
		"read": {func(b *end) *wire.Packet { return again(b, 1, func(*wire.Packet) {}) }, []answerOf{
			{wire.RCReadFirst, 1, wire.Ack, 2}, {wire.RCReadMiddle, 2, wire.Ack, 2}, {wire.RCReadLast, 3, wire.Ack, 2},
		}},
		"end of the read": {func(b *end) *wire.Packet {
			return again(b, 2, func(p *wire.Packet) { p.Addr += 1024; p.Length -= 1024 })
		}, []answerOf{{wire.RCReadFirst, 2, wire.Ack, 2}, {wire.RCReadLast, 3, wire.Ack, 2}}},
		"middle of the read": {func(b *end) *wire.Packet {
			return again(b, 2, func(p *wire.Packet) { p.Addr += 1024; p.Length = 1000 })
		}, []answerOf{{wire.RCReadOnly, 2, wire.Ack, 2}}},
		"read with another key": {func(b *end) *wire.Packet { return again(b, 1, func(p *wire.Packet) { p.RKey++ }) }, nil},
		"read from elsewhere":   {func(b *end) *wire.Packet { return again(b, 1, func(p *wire.Packet) { p.Addr += 8 }) }, nil},
		"longer read":           {func(b *end) *wire.Packet { return again(b, 1, func(p *wire.Packet) { p.Length++ }) }, nil},
		"read past its end": {func(b *end) *wire.Packet {
			return again(b, 3, func(p *wire.Packet) { p.Addr += 2048; p.Length = 1025 })
		}, nil},
		"read that was an atomic":   {func(b *end) *wire.Packet { return again(b, 4, func(p *wire.Packet) { p.Length = 8 }) }, nil},
		"atomic that was a read":    {func(b *end) *wire.Packet { return b.asked(wire.RCFetchAdd, 1) }, nil},
		"atomic that was a write":   {func(b *end) *wire.Packet { return b.asked(wire.RCFetchAdd, 0) }, nil},
		"atomic not remembered":     {func(b *end) *wire.Packet { return b.asked(wire.RCFetchAdd, -5) }, nil},
		"long before the beginning": {func(b *end) *wire.Packet { return b.asked(wire.RCReadRequest, -1<<22) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			_, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
			b.qp.attr.MaxDestRdAtomic = 2
			b.postRecv(1, b.mr.sge(0, 64))
			add := b.asked(wire.RCFetchAdd, 4)
			add.SwapAdd = 1
			for _, p := range []*wire.Packet{b.asked(wire.RCWriteOnly, 0), again(b, 1, func(*wire.Packet) {}), add} {
				b.Receive(p)
			}
			b.Advance(0)
			b.sent = nil
			p := tt.ask(b)
			p.SwapAdd = 1
			b.Receive(p)
			b.Advance(0)
			require.Equal(t, tt.want, answersOf(b.sent))
			require.Equal(t, uint64(1), *word(b.mr.memory, 0))
			for _, p := range b.sent {
				require.Zero(t, p.Orig)
			}
			require.Empty(t, results(b.recv))
			require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
		})
	}
}

// A peer cannot make the answers pile up.
func TestAnswersAreBounded(t *testing.T) {
	n := newNetwork(t, 1)
	_, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	first := b.asked(wire.RCReadRequest, 0)
	first.Length = 5
	b.Receive(first)
	for range 10_000 {
		again := b.asked(wire.RCReadRequest, 0)
		again.Length = 5
		b.Receive(again)
		b.Receive(b.asked(wire.RCWriteOnly, -1))
	}
	require.Less(t, len(b.qp.responder.answers), 20)
}

// More READs and atomics at once than were agreed on are refused.
func TestTooManyReads(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	a.qp.attr.MaxRdAtomic = 5 // b answers 4
	for i := range uint64(5) {
		a.post(SendSlot{ID: i, Opcode: read}.remote(b, 0), a.mr.sge(0, 8))
	}
	n.run()
	require.Equal(t, []result{ok(0), ok(1), ok(2), ok(3), {4, remInvalid}}, results(a.send))
}

// Late answers to the same burst do not use up retries.
func TestLateImpliedNAKs(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.post(SendSlot{ID: 1, Opcode: read}.remote(b, 0), a.mr.sge(0, 8))
	for i := range uint64(9) {
		a.post(SendSlot{ID: 2 + i, Opcode: write}.remote(b, 8), a.mr.sge(8, 8))
	}
	a.Advance(0)
	for i := range 9 {
		p := b.qp.packet(wire.RCAck, wire.PSN(1<<24-20).Add(1+i))
		p.Syndrome = wire.Ack
		a.Receive(p)
		a.Advance(0)
		require.Equal(t, uint8(6), a.qp.requester.retries)
	}
	require.Len(t, a.sent, 20)
	require.Equal(t, wire.RCReadRequest, a.sent[10].Opcode)
}

// A requester that pauses because of an RNR NAK does not resend because of the
// NAK for the packets that followed.
func TestNAKWhileWaiting(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, 8))
	a.Advance(0)
	for _, s := range []wire.Syndrome{wire.RNRNak(1), wire.NakSequence, wire.NakSequence} {
		p := b.qp.packet(wire.RCAck, 1<<24-20)
		p.Syndrome = s
		a.Receive(p)
		require.Equal(t, wire.RNRDelay(1), a.Advance(0))
	}
	require.Len(t, a.sent, 1)
	require.Equal(t, uint8(7), a.qp.requester.retries)
	a.Advance(wire.RNRDelay(1))
	require.Len(t, a.sent, 2)
}

// Only the last packet of a solicited message says so, and only messages that
// use a receive are.
func TestSolicited(t *testing.T) {
	const flag = uint32(libibverbs.IBV_SEND_SOLICITED)
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		flags  uint32
		event  bool
	}{
		"send": {send, flag, true}, "not asked for": {send, 0, false}, "write with immediate data": {writeImm, flag, true},
		"write": {write, flag, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
			b.postRecv(1, b.mr.sge(0, 8192))
			b.recv.ring.Armed = ArmedSolicited
			n.watch = true
			a.post(SendSlot{ID: 1, Opcode: tt.opcode, Flags: tt.flags}.remote(b, 0), a.mr.sge(0, 3000))
			n.run()
			require.Equal(t, tt.event, len(b.completions) == 1)
			for _, p := range n.seen {
				require.Equal(t, tt.event && p.Opcode.IsLast() && p.Opcode.IsRequest(), p.Solicited, p.Opcode)
			}
		})
	}
}

// A window is invalidated here only when what came before is done.
func TestInvalidateWaits(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	w := a.window(a.pd, libibverbs.IBV_MW_TYPE_2)
	require.Equal(t, success, bindMW(a.qp, w, a.mr, 0, 100, libibverbs.IBV_ACCESS_REMOTE_READ))
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_LOCAL_INV, Imm: w.key})
	n.step()
	require.NotNil(t, w.mr)
	n.run()
	require.Nil(t, w.mr)
	require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
}

// Time that passed before a packet came in counts for nothing that the packet
// begins.
func TestTimersBeginWhenTheDeviceAdvances(t *testing.T) {
	const late = 60 * time.Millisecond
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: send}, a.mr.sge(0, 8))
	require.Equal(t, ackTimeout, a.Advance(0))
	p := b.qp.packet(wire.RCAck, 1<<24-20)
	p.Syndrome = wire.Ack
	a.Receive(p)
	a.Advance(late)
	a.Advance(ackTimeout) // a timer that has moved
	require.Len(t, a.sent, 2)
	p = b.qp.packet(wire.RCAck, 1<<24-19)
	p.Syndrome = wire.RNRNak(1)
	a.Receive(p)
	require.Equal(t, ackTimeout+late+wire.RNRDelay(1), a.Advance(ackTimeout+late))
	require.Len(t, a.sent, 2)
}

// A message that does not end is refused once it is longer than any may be.
func TestEndlessMessage(t *testing.T) {
	n := newNetwork(t, 1)
	_, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	big := b.mr.sge(0, 8192)
	big.Length = 1<<32 - 1
	b.postRecv(1, big, big)
	first := b.asked(wire.RCSendFirst, 0)
	first.Payload = [][]byte{make([]byte, 1024)}
	b.Receive(first)
	b.qp.responder.message.length = maxMessage - 1023 // as if so much had come
	next := b.asked(wire.RCSendMiddle, 1)
	next.Payload = [][]byte{make([]byte, 1024)}
	b.Receive(next)
	b.Advance(0)
	require.Equal(t, wire.NakInvalidRequest, b.sent[len(b.sent)-1].Syndrome)
	require.Equal(t, []result{{1, remInvalid}}, results(b.recv))
}

// A READ that is asked for again when its key has gone is refused, but the
// queue pair goes on: the packet may be a late copy of one whose answer has
// arrived.
func TestDuplicateWithoutKey(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
	var late *wire.Packet
	n.filter = func(p *wire.Packet) bool {
		if p.Opcode == wire.RCReadRequest {
			late = n.clone(p)
		}
		return true
	}
	a.post(SendSlot{ID: 1, Opcode: read}.remote(b, 0), a.mr.sge(0, 3000))
	n.run()
	require.NoError(t, b.mr.Deregister())
	n.watch = true
	for range 10 {
		b.Receive(n.clone(late))
		n.run()
	}
	require.Len(t, n.seen, 10)
	require.Equal(t, wire.NakRemoteAccess, n.seen[9].Syndrome)
	require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
	require.Empty(t, b.takeEvents())
	a.post(SendSlot{ID: 2, Opcode: write}, a.mr.sge(0, 0))
	n.run()
	require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
	require.Zero(t, b.qp.responder.repeats)
}

// A peer cannot make ACKs and NAKs pile up, whatever it alternates. It gets its
// answers when there is room again.
func TestAcksAreBounded(t *testing.T) {
	again := func(b *end, _ int) { b.Receive(b.asked(wire.RCWriteOnly, -1)) }
	notReady := func(b *end, done int) { b.Receive(b.asked(wire.RCSendOnly, 1+done)) }
	for name, tt := range map[string]struct {
		ask   []func(b *end, done int)
		after int // number of requests that ask executes each time
	}{
		"not ready":                 {[]func(b *end, done int){notReady}, 0},
		"duplicate, then not ready": {[]func(b *end, done int){again, notReady}, 0},
		"gap": {[]func(b *end, done int){
			func(b *end, done int) { b.Receive(b.asked(wire.RCWriteOnly, 1+done)) },
			func(b *end, done int) { b.Receive(b.asked(wire.RCWriteOnly, 100+done)) },
		}, 1},
		"write, then not ready": {[]func(b *end, done int){
			func(b *end, done int) { b.Receive(b.asked(wire.RCWriteOnly, 1+done)) },
			func(b *end, done int) { notReady(b, 1+done) },
		}, 1},
		"repeated READ": {[]func(b *end, done int){
			func(b *end, _ int) {
				p := b.asked(wire.RCReadRequest, 0)
				p.Length = 5
				b.Receive(p)
			}, again, notReady,
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			_, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			full := true
			b.config.Room = func(uint32) bool { return !full }
			first := b.asked(wire.RCReadRequest, 0)
			first.Length = 5
			b.Receive(first)
			done := 0
			for range 5000 {
				for _, ask := range tt.ask {
					ask(b, done)
				}
				done += tt.after
			}
			r := &b.qp.responder
			require.LessOrEqual(t, len(r.answers)-r.first, maxAnswers+1)
			full = false
			b.Resume()
			for b.Advance(0) == 0 {
			}
			require.Empty(t, r.answers[r.first:])
			b.sent = nil
			b.postRecv(7)
			b.Receive(b.asked(wire.RCSendOnly, 1+done))
			b.Advance(0)
			require.Equal(t, []answerOf{{wire.RCAck, 1 + done, wire.Ack, uint32(2 + done)}}, answersOf(b.sent))
			require.Equal(t, []result{ok(7)}, results(b.recv))
		})
	}
}
