// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	flush       = libibverbs.IBV_WR_FLUSH
	atomicWrite = libibverbs.IBV_WR_ATOMIC_WRITE

	global     = uint64(libibverbs.IBV_FLUSH_GLOBAL)
	persistent = uint64(libibverbs.IBV_FLUSH_PERSISTENT)
	ofRegion   = uint64(libibverbs.IBV_FLUSH_MR) << 8
)

// stored records what a device has made persistent.
type stored struct {
	ranges [][]byte
	err    error
}

func (s *stored) persist(b []byte) error {
	s.ranges = append(s.ranges, b)
	return s.err
}

// flushPair makes a pair whose second end may be flushed.
func (n *network) flushPair(bytes int) (a, b *end, s *stored) {
	s = &stored{}
	for len(n.nodes) < 2 {
		n.node(byte(1 + len(n.nodes)))
	}
	for _, d := range n.nodes {
		d.config.Persist = s.persist
	}
	a, b = n.pair(libibverbs.IBV_QPT_RC, bytes)
	b.mr = b.memory(b.pd, bytes, allAccess|flushAccess)
	b.qp.attr.QpAccessFlags |= flushAccess
	return a, b, s
}

// flushOf returns a flush of length bytes at offset of the end's memory.
func flushOf(b *end, offset, length int, what uint64) SendSlot {
	return SendSlot{ID: 2, Opcode: flush, CompareAdd: uint64(length), Swap: what}.remote(b, offset)
}

// A flush completes behind the writes before it, and makes persistent what it
// names.
func TestFlush(t *testing.T) {
	for name, tt := range map[string]struct {
		what         uint64
		at, length   int
		from, to     int // what is made persistent
		isPersistent bool
	}{
		"range, global":           {what: global, at: 8, length: 1000},
		"range, persistent":       {what: persistent, at: 8, length: 1000, from: 8, to: 1008, isPersistent: true},
		"range, both":             {what: global | persistent, at: 8, length: 4000, from: 8, to: 4008, isPersistent: true},
		"empty range, persistent": {what: persistent, at: 8},
		"region, global":          {what: global | ofRegion},
		"region, persistent":      {what: persistent | ofRegion, at: 100, length: 1 << 30, to: 8192, isPersistent: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, s := n.flushPair(8192)
			n.fillRandom(a.mr.memory)
			a.postQuiet(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 5000))
			a.post(flushOf(b, tt.at, tt.length, tt.what))
			a.post(SendSlot{ID: 3, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
			n.run()
			sent := poll(a.send.ring)
			require.Len(t, sent, 2)
			require.Equal(t, [...]any{uint64(2), success, libibverbs.IBV_WC_FLUSH, uint32(tt.length)},
				[...]any{sent[0].WrId, sent[0].Status, sent[0].Opcode, sent[0].ByteLen})
			require.Equal(t, success, sent[1].Status)
			require.Equal(t, a.mr.memory[:5000], b.mr.memory[:5000])
			if !tt.isPersistent {
				require.Empty(t, s.ranges)
				return
			}
			require.Len(t, s.ranges, 1)
			require.Same(t, &b.mr.memory[tt.from], &s.ranges[0][0])
			require.Len(t, s.ranges[0], tt.to-tt.from)
		})
	}
}

func TestAtomicWrite(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.post(SendSlot{ID: 1, Opcode: atomicWrite, CompareAdd: 0x0102030405060708}.remote(b, 16))
	n.run()
	sent := poll(a.send.ring)
	require.Len(t, sent, 1)
	require.Equal(t, [...]any{success, libibverbs.IBV_WC_ATOMIC_WRITE, uint32(8)}, [...]any{sent[0].Status, sent[0].Opcode, sent[0].ByteLen})
	require.Equal(t, uint64(0x0102030405060708), *word(b.mr.memory, 16))
	require.Zero(t, *word(b.mr.memory, 8)|*word(b.mr.memory, 24))
}

// What is wrong with a flush or an atomic write has the status and the event of
// the specification.
func TestFlushStatuses(t *testing.T) {
	good := func(b *end) SendSlot { return flushOf(b, 0, 64, global) }
	word := func(b *end) SendSlot { return SendSlot{ID: 2, Opcode: atomicWrite, CompareAdd: 1}.remote(b, 8) }
	lacking := func(flags libibverbs.AccessFlags, of func(b *end) SendSlot) func(a, b *end) SendSlot {
		return func(a, b *end) SendSlot {
			b.mr = b.memory(b.pd, 8192, (allAccess|flushAccess)&^flags)
			return of(b)
		}
	}
	pairLacking := func(flags libibverbs.AccessFlags, of func(b *end) SendSlot) func(a, b *end) SendSlot {
		return func(a, b *end) SendSlot {
			b.qp.attr.QpAccessFlags &^= flags
			return of(b)
		}
	}
	at := func(of func(b *end) SendSlot, change func(a, b *end, s *SendSlot)) func(a, b *end) SendSlot {
		return func(a, b *end) SendSlot {
			s := of(b)
			change(a, b, &s)
			return s
		}
	}
	both := func(b *end) SendSlot { return flushOf(b, 0, 64, global|persistent) }
	whole := func(b *end) SendSlot { return flushOf(b, 0, 0, global|ofRegion) }
	cases := map[string]struct {
		slot   func(a, b *end) SendSlot
		sender libibverbs.WcStatus
		event  libibverbs.EventType
	}{
		"good":                            {at(good, func(_, _ *end, _ *SendSlot) {}), success, noEvent},
		"no type":                         {at(good, func(_, _ *end, s *SendSlot) { s.Swap = 0 }), locOp, noEvent},
		"unknown type":                    {at(good, func(_, _ *end, s *SendSlot) { s.Swap = 4 }), locOp, noEvent},
		"unknown level":                   {at(good, func(_, _ *end, s *SendSlot) { s.Swap |= 2 << 8 }), locOp, noEvent},
		"too long":                        {at(good, func(_, _ *end, s *SendSlot) { s.CompareAdd = maxMessage + 1 }), locLen, noEvent},
		"far too long":                    {at(good, func(_, _ *end, s *SendSlot) { s.CompareAdd = 1 << 40 }), locLen, noEvent},
		"behind the region":               {at(good, func(_, _ *end, s *SendSlot) { s.CompareAdd = 8193 }), remAccess, access},
		"before the region":               {at(good, func(_, _ *end, s *SendSlot) { s.RemoteAddr-- }), remAccess, access},
		"key":                             {at(good, func(_, _ *end, s *SendSlot) { s.RKey ^= 1 }), remAccess, access},
		"key of nothing":                  {at(good, func(_, _ *end, s *SendSlot) { s.RKey, s.CompareAdd = 0, 0 }), remAccess, access},
		"key of a region of all":          {at(whole, func(_, _ *end, s *SendSlot) { s.RKey ^= 1 }), remAccess, access},
		"region of another domain":        {at(whole, func(_, b *end, s *SendSlot) { s.RKey = b.memory(b.node.pd(), 64, allAccess|flushAccess).key }), remAccess, access},
		"region without global":           {lacking(libibverbs.IBV_ACCESS_FLUSH_GLOBAL, good), remAccess, access},
		"region without persistent":       {lacking(libibverbs.IBV_ACCESS_FLUSH_PERSISTENT, both), remAccess, access},
		"region without global, both":     {lacking(libibverbs.IBV_ACCESS_FLUSH_GLOBAL, both), remAccess, access},
		"region without reads":            {lacking(libibverbs.IBV_ACCESS_REMOTE_READ, good), success, noEvent},
		"queue pair without global":       {pairLacking(libibverbs.IBV_ACCESS_FLUSH_GLOBAL, good), remInvalid, invalid},
		"queue pair without persistent":   {pairLacking(libibverbs.IBV_ACCESS_FLUSH_PERSISTENT, both), remInvalid, invalid},
		"no READs at the peer":            {at(good, func(_, b *end, _ *SendSlot) { b.qp.attr.MaxDestRdAtomic = 0 }), remInvalid, invalid},
		"no READs at this end":            {at(good, func(a, _ *end, _ *SendSlot) { a.qp.attr.MaxRdAtomic = 0 }), locOp, noEvent},
		"peer without flushes":            {at(good, func(_, b *end, _ *SendSlot) { b.limits.Flush = false }), remInvalid, invalid},
		"cannot be stored":                {at(both, func(_, b *end, _ *SendSlot) { b.config.Persist = (&stored{err: errors.New("gone")}).persist }), remAccess, access},
		"atomic write":                    {at(word, func(_, _ *end, _ *SendSlot) {}), success, noEvent},
		"atomic write, not aligned":       {at(word, func(_, _ *end, s *SendSlot) { s.RemoteAddr += 4 }), remInvalid, invalid},
		"atomic write, key":               {at(word, func(_, _ *end, s *SendSlot) { s.RKey ^= 1 }), remAccess, access},
		"atomic write, behind the region": {at(word, func(_, b *end, s *SendSlot) { s.RemoteAddr = b.mr.iova + 8192 }), remAccess, access},
		"atomic write, region":            {lacking(libibverbs.IBV_ACCESS_REMOTE_WRITE, word), remAccess, access},
		"atomic write, no atomics":        {lacking(libibverbs.IBV_ACCESS_REMOTE_ATOMIC, word), success, noEvent},
		"atomic write, queue pair":        {pairLacking(libibverbs.IBV_ACCESS_REMOTE_WRITE, word), remInvalid, invalid},
		"atomic write, no READs there":    {at(word, func(_, b *end, _ *SendSlot) { b.qp.attr.MaxDestRdAtomic = 0 }), remInvalid, invalid},
		"peer without atomic writes":      {at(word, func(_, b *end, _ *SendSlot) { b.limits.AtomicWrite = false }), remInvalid, invalid},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b, _ := n.flushPair(8192)
			slot := tt.slot(a, b)
			a.post(SendSlot{ID: 1, Opcode: send})
			b.postRecv(1)
			a.postQuiet(slot)
			a.post(SendSlot{ID: 3, Opcode: write}.remote(b, 4096), a.mr.sge(0, 8))
			n.run()
			var events []libibverbs.EventType
			for _, e := range b.takeEvents() {
				events = append(events, e.Type)
			}
			if tt.sender == success {
				require.Equal(t, []result{ok(1), ok(3)}, results(a.send))
				require.Empty(t, events)
				return
			}
			require.Equal(t, []result{ok(1), {2, tt.sender}, {3, flushed}}, results(a.send))
			require.Equal(t, libibverbs.IBV_QPS_ERR, a.qp.attr.QpState)
			if tt.event == noEvent {
				require.Empty(t, events)
				require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
				return
			}
			require.Equal(t, []libibverbs.EventType{tt.event}, events)
			require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.attr.QpState)
		})
	}
}

// Only reliable connections have flushes and atomic writes.
func TestFlushOnlyOnRC(t *testing.T) {
	for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_UD} {
		for _, op := range []libibverbs.WrOpcode{flush, atomicWrite} {
			n := newNetwork(t, 1)
			d := n.node(1)
			e := n.end(d, kind, nil, 64)
			if kind == libibverbs.IBV_QPT_UD {
				d.datagrams(e.qp, 1)
			} else {
				d.connect(e.qp, 2, 77)
			}
			e.post(SendSlot{ID: 1, Opcode: op, CompareAdd: 8, Swap: global}.remote(e, 0))
			n.run()
			require.Equal(t, []result{{1, locOp}}, results(e.send), "%v %v", kind, op)
		}
	}
}

// A request with headers that no requester of this package sends is refused.
func TestMalformedFlush(t *testing.T) {
	for name, spoil := range map[string]func(p *wire.Packet){
		"no type":                   func(p *wire.Packet) { p.FlushType = 0 },
		"unknown type":              func(p *wire.Packet) { p.FlushType = 5 },
		"unknown level":             func(p *wire.Packet) { p.FlushLevel = 2 },
		"payload":                   func(p *wire.Packet) { p.Payload = [][]byte{make([]byte, 4)} },
		"length":                    func(p *wire.Packet) { p.Length = maxMessage + 1 },
		"atomic write of 4 bytes":   func(p *wire.Packet) { p.Opcode, p.Length, p.Payload = wire.RCAtomicWrite, 4, [][]byte{make([]byte, 4)} },
		"atomic write without data": func(p *wire.Packet) { p.Opcode, p.Length = wire.RCAtomicWrite, 8 },
		"atomic write of 16 bytes": func(p *wire.Packet) {
			p.Opcode, p.Length, p.Payload = wire.RCAtomicWrite, 16, [][]byte{make([]byte, 16)}
		},
		"atomic write, too much data": func(p *wire.Packet) {
			p.Opcode, p.Length, p.Payload = wire.RCAtomicWrite, 8, [][]byte{make([]byte, 12)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			_, b, _ := n.flushPair(8192)
			p := b.asked(wire.RCFlush, 0)
			p.FlushType, p.Length = uint8(global), 64
			spoil(p)
			b.Receive(p)
			b.Advance(0)
			require.Equal(t, []answerOf{{wire.RCAck, 0, wire.NakInvalidRequest, 0}}, answersOf(b.sent))
			require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.attr.QpState)
		})
	}
	// They do not interrupt a message, either.
	for _, op := range []wire.Opcode{wire.RCFlush, wire.RCAtomicWrite} {
		n := newNetwork(t, 1)
		_, b, _ := n.flushPair(8192)
		first := b.asked(wire.RCWriteFirst, 0)
		first.Length, first.Payload, first.AckReq = 2048, [][]byte{make([]byte, 1024)}, false
		b.Receive(first)
		p := b.asked(op, 1)
		p.FlushType, p.Length = uint8(global), 8
		if op == wire.RCAtomicWrite {
			p.Payload = [][]byte{make([]byte, 8)}
		}
		b.Receive(p)
		b.Advance(0)
		require.Equal(t, []answerOf{{wire.RCAck, 1, wire.NakInvalidRequest, 0}}, answersOf(b.sent))
	}
}

// A request that was executed is answered again, and not executed again.
func TestFlushDuplicates(t *testing.T) {
	n := newNetwork(t, 1)
	_, b, s := n.flushPair(8192)
	b.qp.attr.MaxDestRdAtomic = 1
	ask := func(op wire.Opcode, psn int, value byte) *wire.Packet {
		p := b.asked(op, psn)
		p.Length = 8
		if op == wire.RCAtomicWrite {
			p.Payload = [][]byte{{value, 0, 0, 0, 0, 0, 0, value}}
		} else {
			p.FlushType = uint8(persistent)
		}
		return p
	}
	for psn := range 3 {
		b.Receive(ask(wire.RCAtomicWrite, 2*psn, byte(1+psn)))
		b.Receive(ask(wire.RCFlush, 2*psn+1, 0))
	}
	b.Advance(0)
	require.Len(t, s.ranges, 3)
	b.sent = nil
	b.Receive(ask(wire.RCAtomicWrite, 0, 9))
	b.Receive(ask(wire.RCFlush, 3, 0))
	b.Advance(0)
	require.Equal(t, []answerOf{{wire.RCReadOnly, 0, wire.Ack, 6}, {wire.RCReadOnly, 3, wire.Ack, 6}}, answersOf(b.sent))
	require.Len(t, s.ranges, 3)
	require.Equal(t, []byte{3, 0, 0, 0, 0, 0, 0, 3}, b.mr.memory[:8])
	require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
}

// A peer cannot make the answers to flushes pile up.
func TestEmptyAnswersAreBounded(t *testing.T) {
	n := newNetwork(t, 1)
	_, b, _ := n.flushPair(64)
	for range 10_000 {
		p := b.asked(wire.RCFlush, 0)
		p.FlushType, p.Length = uint8(global), 8
		b.Receive(p)
	}
	require.Len(t, b.qp.responder.answers, maxEmptyAnswers)
	b.Advance(0)
	require.Zero(t, b.qp.responder.empty)
	b.Receive(b.asked(wire.RCWriteOnly, 1))
	b.Advance(0)
	require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
}

// What is lost on the way, there or back, is sent again.
func TestFlushRetransmitted(t *testing.T) {
	for _, lost := range []wire.Opcode{wire.RCFlush, wire.RCAtomicWrite, wire.RCReadOnly} {
		n := newNetwork(t, 1)
		a, b, s := n.flushPair(64)
		n.dropping(2, func(p *wire.Packet) bool { return p.Opcode == lost })
		a.post(SendSlot{ID: 1, Opcode: atomicWrite, CompareAdd: 7}.remote(b, 8))
		a.post(flushOf(b, 0, 64, persistent))
		a.post(SendSlot{ID: 3, Opcode: read}.remote(b, 8), a.mr.sge(0, 8))
		n.run()
		require.Equal(t, []result{ok(1), ok(2), ok(3)}, results(a.send), lost)
		require.Len(t, s.ranges, 1)
		require.Equal(t, uint64(7), *word(a.mr.memory, 0))
	}
}

// A window may be flushed as far as its bind says.
func TestFlushOfWindow(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, s := n.flushPair(8192)
	plain := b.memory(b.pd, 8192, allAccess)
	w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
	require.Equal(t, badBind, bindMW(b.qp, w, plain, 0, 100, libibverbs.IBV_ACCESS_FLUSH_PERSISTENT))
	require.Equal(t, success, bindMW(b.qp, w, b.mr, 1000, 100, libibverbs.IBV_ACCESS_FLUSH_PERSISTENT))
	slot := flushOf(b, 1000, 0, persistent|ofRegion)
	slot.RKey = w.Key()
	a.post(slot)
	slot.Swap, slot.CompareAdd = persistent, 101
	a.post(slot)
	n.run()
	require.Equal(t, []result{ok(2), {2, remAccess}}, results(a.send))
	require.Len(t, s.ranges, 1)
	require.Same(t, &b.mr.memory[1000], &s.ranges[0][0])
	require.Len(t, s.ranges[0], 100)
}

// What is staged of an earlier write is in memory before a flush stores it, and
// an atomic write is not overtaken.
func TestFlushOfStagedBytes(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, _ := n.gated(libibverbs.IBV_QPT_RC, 64)
	s := &stored{}
	b.config.Persist = func(m []byte) error { return s.persist(append([]byte(nil), m...)) }
	b.mr = b.memory(b.pd, 64, allAccess|flushAccess)
	b.qp.attr.QpAccessFlags |= flushAccess
	n.fillRandom(a.mr.memory)
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 64))
	a.post(flushOf(b, 0, 64, persistent))
	n.run()
	require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
	require.Equal(t, [][]byte{a.mr.memory}, s.ranges)

	a.post(SendSlot{ID: 3, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
	a.post(SendSlot{ID: 4, Opcode: atomicWrite, CompareAdd: 42}.remote(b, 0))
	n.run()
	require.Equal(t, []result{ok(3), ok(4)}, results(a.send))
	b.Publish()
	require.Equal(t, uint64(42), *word(b.mr.memory, 0))
}

// Regions and queue pairs take the flags, and the device reports them, as far
// as it has them.
func TestFlushAbilities(t *testing.T) {
	const flushOp, writeOp = libibverbs.IBV_QP_EX_WITH_FLUSH, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE
	keep := func([]byte) error { return nil }
	for name, tt := range map[string]struct {
		change  func(l *Limits)
		persist func([]byte) error
		access  libibverbs.AccessFlags
		ops     libibverbs.QpCreateSendOpsFlags
		caps    uint64
		lacks   uint32
	}{
		"all":                {func(*Limits) {}, keep, flushAccess, flushOp | writeOp, capFlushGlobal | capFlushPersistent | capAtomicWrite, 0},
		"nothing persistent": {func(*Limits) {}, nil, libibverbs.IBV_ACCESS_FLUSH_GLOBAL, flushOp | writeOp, capFlushGlobal | capAtomicWrite, 0},
		"no flush":           {func(l *Limits) { l.Flush = false }, keep, 0, writeOp, capAtomicWrite, 1 << flush},
		"no atomic write":    {func(l *Limits) { l.AtomicWrite = false }, keep, flushAccess, flushOp, capFlushGlobal | capFlushPersistent, 1 << atomicWrite},
		"no reads":           {func(l *Limits) { l.Reads = 0 }, keep, 0, 0, 0, 1<<flush | 1<<atomicWrite},
	} {
		t.Run(name, func(t *testing.T) {
			d := small(t, tt.change)
			d.config.Persist = tt.persist
			a, err := d.Attr()
			require.NoError(t, err)
			require.Equal(t, tt.caps, a.DeviceCapFlagsEx&(capFlushGlobal|capFlushPersistent|capAtomicWrite))
			ops, err := d.limits.sendOps(libibverbs.IBV_QPT_RC)
			require.NoError(t, err)
			require.Equal(t, tt.ops, ops&(flushOp|writeOp))
			require.Equal(t, tt.lacks, d.limits.Lacks()&(1<<flush|1<<atomicWrite))
			b := make([]byte, 8)
			for _, flag := range []libibverbs.AccessFlags{libibverbs.IBV_ACCESS_FLUSH_GLOBAL, libibverbs.IBV_ACCESS_FLUSH_PERSISTENT} {
				_, err := d.pd().RegisterMR(b, uint64(uintptr(unsafe.Pointer(&b[0]))), flag)
				if tt.access&flag != 0 {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, syscall.EOPNOTSUPP)
				}
			}
		})
	}
	for _, kind := range []libibverbs.QpType{libibverbs.IBV_QPT_UC, libibverbs.IBV_QPT_UD} {
		l := Largest()
		ops, err := l.sendOps(kind)
		require.NoError(t, err)
		require.Zero(t, ops&(flushOp|writeOp))
	}
}
