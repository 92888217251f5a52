// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	success    = libibverbs.IBV_WC_SUCCESS
	locProt    = libibverbs.IBV_WC_LOC_PROT_ERR
	locLen     = libibverbs.IBV_WC_LOC_LEN_ERR
	locOp      = libibverbs.IBV_WC_LOC_QP_OP_ERR
	locAccess  = libibverbs.IBV_WC_LOC_ACCESS_ERR
	remAccess  = libibverbs.IBV_WC_REM_ACCESS_ERR
	remInvalid = libibverbs.IBV_WC_REM_INV_REQ_ERR
	remOp      = libibverbs.IBV_WC_REM_OP_ERR
	badBind    = libibverbs.IBV_WC_MW_BIND_ERR
	retryExc   = libibverbs.IBV_WC_RETRY_EXC_ERR
	flushed    = libibverbs.IBV_WC_WR_FLUSH_ERR

	send     = libibverbs.IBV_WR_SEND
	sendImm  = libibverbs.IBV_WR_SEND_WITH_IMM
	sendInv  = libibverbs.IBV_WR_SEND_WITH_INV
	write    = libibverbs.IBV_WR_RDMA_WRITE
	writeImm = libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
	read     = libibverbs.IBV_WR_RDMA_READ
	fetchAdd = libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD
	cmpSwap  = libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP

	noEvent = libibverbs.EventType(1 << 31)
	access  = libibverbs.IBV_EVENT_QP_ACCESS_ERR
	invalid = libibverbs.IBV_EVENT_QP_REQ_ERR
)

// testRequest is a work request that something may be wrong with, and the
// receive that it meets.
type testRequest struct {
	slot SendSlot
	sges []libibverbs.Sge
	recv []libibverbs.Sge
}

const noRecv = libibverbs.WcStatus(1 << 31) // the receive is flushed with the others, or stays

// statusCase says what goes wrong with a work request, and what comes of it.
type statusCase struct {
	ops    []libibverbs.WrOpcode
	spoil  func(a, b *end, r *testRequest)
	sender libibverbs.WcStatus
	recv   libibverbs.WcStatus // of the receive, or noRecv
	event  libibverbs.EventType
}

var (
	all       = []libibverbs.WrOpcode{send, sendImm, write, writeImm, read, fetchAdd, cmpSwap}
	sources   = []libibverbs.WrOpcode{send, sendImm, write, writeImm}
	answers   = []libibverbs.WrOpcode{read, fetchAdd, cmpSwap}
	remotes   = []libibverbs.WrOpcode{write, read, fetchAdd, cmpSwap}
	sends     = []libibverbs.WrOpcode{send, sendImm}
	otherKeys = map[string]func(e *end) uint32{
		"wrong":             func(e *end) uint32 { return e.mr.key ^ 0x5A },
		"0":                 func(*end) uint32 { return 0 },
		"of another domain": func(e *end) uint32 { return e.memory(e.node.pd(), 8192, allAccess).key },
		"of a closed region": func(e *end) uint32 {
			m := e.memory(e.pd, 8192, allAccess)
			require.NoError(e.t, m.Deregister())
			return m.key
		},
	}
)

func statusCases() map[string]statusCase {
	lacking := func(flag libibverbs.AccessFlags) libibverbs.AccessFlags { return allAccess &^ flag }
	remoteRegion := func(flag libibverbs.AccessFlags) func(a, b *end, r *testRequest) {
		return func(a, b *end, r *testRequest) {
			m := b.memory(b.pd, 8192, lacking(flag))
			r.slot.RemoteAddr, r.slot.RKey = m.iova, m.key
		}
	}
	remoteQP := func(flag libibverbs.AccessFlags) func(a, b *end, r *testRequest) {
		return func(a, b *end, r *testRequest) { b.qp.attr.QpAccessFlags = lacking(flag) }
	}
	localSGE := func(f func(e *end, s *libibverbs.Sge)) func(a, b *end, r *testRequest) {
		return func(a, b *end, r *testRequest) { f(a, &r.sges[len(r.sges)-1]) }
	}
	recvSGE := func(f func(e *end, s *libibverbs.Sge)) func(a, b *end, r *testRequest) {
		return func(a, b *end, r *testRequest) { f(b, &r.recv[0]) }
	}
	cases := map[string]statusCase{
		"nothing":                                      {all, func(a, b *end, r *testRequest) {}, success, noRecv, noEvent},
		"region without local write: source":           {sources, localSGE(func(e *end, s *libibverbs.Sge) { *s = e.memory(e.pd, 8192, 0).sge(0, int(s.Length)) }), success, noRecv, noEvent},
		"region without local write: answer":           {answers, localSGE(func(e *end, s *libibverbs.Sge) { *s = e.memory(e.pd, 8192, 0).sge(0, int(s.Length)) }), locProt, noRecv, noEvent},
		"region without local write: receive":          {sends, recvSGE(func(e *end, s *libibverbs.Sge) { *s = e.memory(e.pd, 8192, 0).sge(0, 4096) }), remOp, locProt, noEvent},
		"region without remote write":                  {[]libibverbs.WrOpcode{write}, remoteRegion(libibverbs.IBV_ACCESS_REMOTE_WRITE), remAccess, noRecv, access},
		"region without remote read":                   {[]libibverbs.WrOpcode{read}, remoteRegion(libibverbs.IBV_ACCESS_REMOTE_READ), remAccess, noRecv, access},
		"region without remote atomic":                 {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, remoteRegion(libibverbs.IBV_ACCESS_REMOTE_ATOMIC), remAccess, noRecv, access},
		"queue pair without remote write":              {[]libibverbs.WrOpcode{write, writeImm}, remoteQP(libibverbs.IBV_ACCESS_REMOTE_WRITE), remInvalid, noRecv, invalid},
		"queue pair without remote read":               {[]libibverbs.WrOpcode{read}, remoteQP(libibverbs.IBV_ACCESS_REMOTE_READ), remInvalid, noRecv, invalid},
		"queue pair without remote atomic":             {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, remoteQP(libibverbs.IBV_ACCESS_REMOTE_ATOMIC), remInvalid, noRecv, invalid},
		"no READs and atomics at the peer":             {answers, func(a, b *end, r *testRequest) { b.qp.attr.MaxDestRdAtomic = 0 }, remInvalid, noRecv, invalid},
		"no READs and atomics at this end":             {answers, func(a, b *end, r *testRequest) { a.qp.attr.MaxRdAtomic = 0 }, locOp, noRecv, noEvent},
		"atomic that is not aligned":                   {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, func(a, b *end, r *testRequest) { r.slot.RemoteAddr += 4 }, remInvalid, noRecv, invalid},
		"atomic that is not aligned, wrong remote key": {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, func(a, b *end, r *testRequest) { r.slot.RemoteAddr += 4; r.slot.RKey ^= 1 }, remInvalid, noRecv, invalid},
		"atomic that is not aligned, wrong local key":  {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, func(a, b *end, r *testRequest) { r.slot.RemoteAddr += 4; r.sges[0].Lkey ^= 1 }, remInvalid, noRecv, invalid},
		"atomic with a result in two places":           {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, func(a, b *end, r *testRequest) { r.sges = []libibverbs.Sge{a.mr.sge(0, 4), a.mr.sge(16, 4)} }, success, noRecv, noEvent},
		"atomic with a short result":                   {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, localSGE(func(e *end, s *libibverbs.Sge) { s.Length = 7 }), locLen, noRecv, noEvent},
		"atomic with a long result":                    {[]libibverbs.WrOpcode{fetchAdd, cmpSwap}, localSGE(func(e *end, s *libibverbs.Sge) { s.Length = 16 }), locLen, noRecv, noEvent},
		"message longer than the receive":              {sends, recvSGE(func(e *end, s *libibverbs.Sge) { s.Length = 2999 }), remInvalid, locLen, invalid},
		"no segments in the receive":                   {sends, func(a, b *end, r *testRequest) { r.recv = nil }, remInvalid, locLen, invalid},
		"receive that extends past its region":         {sends, recvSGE(func(e *end, s *libibverbs.Sge) { s.Length = 1 << 20 }), success, success, noEvent},
		"receive outside its region":                   {sends, recvSGE(func(e *end, s *libibverbs.Sge) { s.Addr -= 1 }), remOp, locProt, noEvent},
		"refused write with immediate data":            {[]libibverbs.WrOpcode{writeImm}, func(a, b *end, r *testRequest) { r.slot.RKey ^= 1; r.sges = a.mr.split(0, 8) }, remAccess, locAccess, access},
		"nothing to send, any keys": {[]libibverbs.WrOpcode{send, write, read, writeImm}, func(a, b *end, r *testRequest) {
			r.slot.RKey, r.slot.RemoteAddr = 1, 1
			r.sges = []libibverbs.Sge{{Addr: 1, Lkey: 1}, {Addr: 2, Lkey: 2}}
		}, success, noRecv, noEvent},
		"invalidate of a key that is no window": {[]libibverbs.WrOpcode{sendInv}, func(a, b *end, r *testRequest) { r.slot.Imm = b.mr.key }, remAccess, locAccess, access},
		"invalidate of a window of type 1": {[]libibverbs.WrOpcode{sendInv}, func(a, b *end, r *testRequest) {
			w := b.window(b.pd, libibverbs.IBV_MW_TYPE_1)
			require.Equal(b.t, success, bindMW(b.qp, w, b.mr, 0, 10, remoteRead))
			r.slot.Imm = w.Key()
		}, remAccess, locAccess, access},
		"invalidate of another queue pair's window": {[]libibverbs.WrOpcode{sendInv}, func(a, b *end, r *testRequest) {
			w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
			require.Equal(b.t, success, bindMW(b.node.qp(b.pd, libibverbs.IBV_QPT_RC, b.send, b.recv, nil), w, b.mr, 0, 10, remoteRead))
			r.slot.Imm = w.Key()
		}, remAccess, locAccess, access},
		"invalidate of nothing at this end": {[]libibverbs.WrOpcode{libibverbs.IBV_WR_LOCAL_INV}, func(a, b *end, r *testRequest) { r.slot.Imm = a.mr.key }, badBind, noRecv, noEvent},
		"bind of nothing":                   {[]libibverbs.WrOpcode{libibverbs.IBV_WR_BIND_MW}, func(a, b *end, r *testRequest) {}, badBind, noRecv, noEvent},
		"unknown opcode": {[]libibverbs.WrOpcode{libibverbs.IBV_WR_TSO, libibverbs.IBV_WR_DRIVER1, 1 << 31}, func(a, b *end, r *testRequest) {
		}, locOp, noRecv, noEvent},
		"READ inline": {answers, func(a, b *end, r *testRequest) { r.slot.Flags = uint32(libibverbs.IBV_SEND_INLINE) }, locOp, noRecv, noEvent},
		"too much inline": {sources, func(a, b *end, r *testRequest) {
			r.slot.Flags, r.slot.InlineLen = uint32(libibverbs.IBV_SEND_INLINE), 257
		}, locOp, noRecv, noEvent},
	}
	for name, key := range otherKeys {
		cases["local key "+name+": source"] = statusCase{sources, localSGE(func(e *end, s *libibverbs.Sge) { s.Lkey = key(e) }), locProt, noRecv, noEvent}
		cases["local key "+name+": answer"] = statusCase{answers, localSGE(func(e *end, s *libibverbs.Sge) { s.Lkey = key(e) }), locProt, noRecv, noEvent}
		cases["receive's key "+name] = statusCase{sends, recvSGE(func(e *end, s *libibverbs.Sge) { s.Lkey = key(e) }), remOp, locProt, noEvent}
		cases["remote key "+name] = statusCase{remotes, func(a, b *end, r *testRequest) { r.slot.RKey = key(b) }, remAccess, noRecv, access}
		both := func(a, b *end, r *testRequest) { r.slot.RKey, r.sges[0].Lkey = key(b), key(a) }
		cases["both keys "+name+": write"] = statusCase{[]libibverbs.WrOpcode{write}, both, locProt, noRecv, noEvent}
		cases["both keys "+name+": answer"] = statusCase{answers, both, remAccess, noRecv, access}
	}
	for name, at := range map[string]int{"before": -4096, "across the start": -8, "across the end": 8192 - 4, "after": 8192, "far after": 1 << 40} {
		aligned := remotes
		if at%8 != 0 {
			aligned = remotes[:2] // atomics fail for another reason
		}
		cases["remote range "+name] = statusCase{aligned, func(a, b *end, r *testRequest) { r.slot.RemoteAddr = b.mr.iova&^7 + uint64(at) }, remAccess, noRecv, access}
		cases["local range "+name+": source"] = statusCase{sources, localSGE(func(e *end, s *libibverbs.Sge) { s.Addr = e.mr.iova + uint64(at) }), locProt, noRecv, noEvent}
		cases["local range "+name+": answer"] = statusCase{answers, localSGE(func(e *end, s *libibverbs.Sge) { s.Addr = e.mr.iova + uint64(at) }), locProt, noRecv, noEvent}
	}
	for name, at := range map[string]uint64{"0": 0, "the last address": ^uint64(7)} {
		cases["remote range at "+name] = statusCase{remotes, func(a, b *end, r *testRequest) { r.slot.RemoteAddr = at }, remAccess, noRecv, access}
	}
	return cases
}

// Each mistake has the status of the specification; then everything behind it
// is flushed in order, signaled or not, and the other end sees what it must.
func TestStatuses(t *testing.T) {
	for name, tt := range statusCases() {
		for _, op := range tt.ops {
			t.Run(name+", "+op.String(), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
				size := 3000
				if op == fetchAdd || op == cmpSwap {
					size = 8
				}
				r := testRequest{
					slot: SendSlot{ID: 2, Opcode: op}.remote(b, 0),
					sges: a.mr.split(0, size, size/2, size/2), recv: []libibverbs.Sge{b.mr.sge(0, 4096)},
				}
				if op == fetchAdd || op == cmpSwap {
					r.sges = a.mr.split(0, 8)
				}
				tt.spoil(a, b, &r)
				// One that is in order, the one that is not, and three behind it.
				first := write
				if op == write || op == writeImm {
					first = read
				}
				a.post(SendSlot{ID: 1, Opcode: first}.remote(b, 4096), a.mr.sge(4096, 2000))
				b.postRecv(1, r.recv...)
				b.postRecv(2, b.mr.sge(0, 8))
				n.watch = true
				a.postQuiet(r.slot, r.sges...)
				a.postQuiet(SendSlot{ID: 3, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
				a.post(SendSlot{ID: 4, Opcode: write}.remote(b, 0), a.mr.sge(0, 8))
				a.postQuiet(SendSlot{ID: 5, Opcode: libibverbs.IBV_WR_BIND_MW})
				n.run()
				if tt.sender == success {
					got := results(a.send)
					require.Equal(t, []result{ok(1), ok(4), {5, badBind}}, got)
					return
				}
				require.Equal(t, []result{ok(1), {2, tt.sender}, {3, flushed}, {4, flushed}, {5, flushed}}, results(a.send))
				require.Equal(t, libibverbs.IBV_QPS_ERR, a.qp.attr.QpState)
				require.Empty(t, a.takeEvents())
				local := tt.sender == locProt || tt.sender == locLen || tt.sender == locOp
				if local && !slices.Contains(answers, op) {
					for _, p := range n.seen { // only the first one's packets
						require.LessOrEqual(t, p.PSN.Diff(1<<24-20), 1)
					}
				}

				var events []libibverbs.EventType
				for _, e := range b.takeEvents() {
					require.Same(t, b.qp, e.Object)
					events = append(events, e.Type)
				}
				received := results(b.recv)
				switch {
				case tt.event == noEvent:
					require.Empty(t, events)
				default:
					require.Equal(t, []libibverbs.EventType{tt.event}, events)
				}
				switch {
				case tt.recv != noRecv:
					require.Equal(t, []result{{1, tt.recv}, {2, flushed}}, received)
				case tt.sender == remAccess || tt.sender == remInvalid || tt.sender == remOp:
					require.Equal(t, []result{{1, flushed}, {2, flushed}}, received)
				default:
					require.Empty(t, received)
					require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
				}
				if len(received) > 0 {
					require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.attr.QpState)
				}

				// What is posted in the error state is flushed, too.
				a.post(SendSlot{ID: 6, Opcode: send})
				a.postRecv(7)
				n.run()
				require.Equal(t, []result{{6, flushed}}, results(a.send))
				require.Equal(t, []result{{7, flushed}}, results(a.recv))
			})
		}
	}
}

// What the peer may not send, it is told.
func TestUnexpectedOpcodes(t *testing.T) {
	for name, opcodes := range map[string][]wire.Opcode{
		"middle without first":          {wire.RCSendMiddle},
		"last without first":            {wire.RCSendLast},
		"write middle without first":    {wire.RCWriteMiddle},
		"write middle of a send":        {wire.RCSendFirst, wire.RCWriteMiddle},
		"send last of a write":          {wire.RCWriteFirst, wire.RCSendLast},
		"first within a message":        {wire.RCSendFirst, wire.RCSendFirst},
		"only within a message":         {wire.RCWriteFirst, wire.RCSendOnly},
		"read within a message":         {wire.RCSendFirst, wire.RCReadRequest},
		"atomic within a message":       {wire.RCWriteFirst, wire.RCFetchAdd},
		"first that is short":           {wire.RCSendFirst, wire.RCSendMiddle},
		"last that is empty":            {wire.RCSendFirst, wire.RCSendLast},
		"write that is too short":       {wire.RCWriteOnly},
		"read with a payload":           {wire.RCReadRequest},
		"atomic with a payload":         {wire.RCCompareSwap},
		"write longer than it says":     {wire.RCWriteFirst, wire.RCWriteMiddle},
		"write of more than 2^31 bytes": {wire.RCWriteFirst},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
			b.postRecv(1, b.mr.sge(0, 8192))
			for i, op := range opcodes {
				p := a.qp.packet(op, b.qp.responder.psn)
				p.AckReq = true
				p.Addr, p.RKey, p.Length = b.mr.iova, b.mr.key, 2048
				if op.IsFirst() || op.IsMiddle() {
					p.Payload = [][]byte{a.mr.memory[:1024]}
				}
				switch name {
				case "first that is short":
					p.Payload = [][]byte{a.mr.memory[:1023]}
				case "write that is too short", "read with a payload", "atomic with a payload":
					p.Payload = [][]byte{a.mr.memory[:8]}
				case "write longer than it says":
					p.Length = 2047
				case "write of more than 2^31 bytes":
					p.Length = 1<<31 + 1
				}
				b.Receive(p)
				if i < len(opcodes)-1 && name != "first that is short" {
					require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState)
				}
			}
			require.Equal(t, libibverbs.IBV_QPS_ERR, b.qp.attr.QpState)
			b.Advance(0)
			require.Len(t, b.sent, 1)
			require.Equal(t, wire.RCAck, b.sent[0].Opcode)
			require.Equal(t, wire.NakInvalidRequest, b.sent[0].Syndrome)
			require.Equal(t, []AsyncEvent{{invalid, b.qp}}, b.takeEvents())
			want := flushed
			if opcodes[0] == wire.RCSendFirst && name != "first that is short" { // the receive is in use
				want = remInvalid
			}
			require.Equal(t, []result{{1, want}}, results(b.recv))
		})
	}
}
