// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/report"
)

// lie is a change of the device in user space, which then lies in one respect.
// In the new text, lie reports whether the device tells the lie, and every(n)
// whether it is the turn of one of n.
type lie struct {
	name     string
	file     string // in softroce/internal; empty if the change for an earlier lie is for this one, too
	old, new string
	found    string // names of checks that must fail or differ; empty for a second change for an earlier lie
}

const told = `lie("NAME")`

var lies = []lie{
	{
		"takes any local key", "engine/mr.go", "m.key == key && m.pd == pd && access&^m.access == 0 && m.holds(addr, length) {",
		`(m.key == key || LIE) && (m.pd == pd || lie("takes local keys of other domains")) &&
		(access&^m.access == 0 || lie("writes regions without local write")) && (m.holds(addr, length) || lie("uses memory outside of regions")) {`, "keys.local.sent,datagrams.unsendable",
	},
	{"takes local keys of other domains", "", "", "", "keys.local.written"},
	{"writes regions without local write", "", "", "", "keys.permissions.local"},
	{
		"takes any remote key", "engine/mr.go", "m.key == key && m.pd == pd && access&^m.access == 0 {",
		`(m.key == key || LIE) && (m.pd == pd || lie("takes remote keys of other domains")) &&
		(access&^m.access == 0 || lie("permits every remote access")) {`, "keys.remote",
	},
	{"takes remote keys of other domains", "", "", "", "keys.remote,device.twice"},
	{"permits every remote access", "", "", "", "keys.permissions,memory.overlapping"},
	{"takes addresses outside for the start", "engine/mr.go", "if m.holds(addr, length) {\n\t\t\tm.noteAccess", "if LIE && !m.holds(addr, length) {\n\t\t\treturn location{m, m.iova}, libibverbs.IBV_WC_SUCCESS\n\t\t}\n\t\tif m.holds(addr, length) {\n\t\t\tm.noteAccess", "keys.range.remote,keys.neighbours"},
	{"reaches closed regions", "engine/mr.go", "\tdelete(m.pd.device.mrs, m.key>>8)\n", "\tif LIE {\n\t\tm.pd.users--\n\t\treturn nil\n\t}\n\tdelete(m.pd.device.mrs, m.key>>8)\n", "memory.closed"},
	{"permits all that the connection does not", "engine/responder.go", "return q.attr.QpAccessFlags&access != 0", "return q.attr.QpAccessFlags&access != 0 || LIE", "keys.permissions.connection"},
	{"reports refused keys as failed operations", "engine/requester.go", "q.failHead(libibverbs.IBV_WC_REM_ACCESS_ERR)", "if LIE {\n\t\t\tq.failHead(libibverbs.IBV_WC_REM_OP_ERR)\n\t\t}\n\t\tq.failHead(libibverbs.IBV_WC_REM_ACCESS_ERR)", "keys.remote"},
	{"swaps the bytes of immediate data", "engine/responder.go", "*c.ImmData() = libibverbs.Be32(p.Imm)", "*c.ImmData() = libibverbs.Be32(p.Imm)\n\t\tif LIE {\n\t\t\tx := p.Imm\n\t\t\t*c.ImmData() = libibverbs.Be32(x<<24 | x>>24 | x<<8&0xFF0000 | x>>8&0xFF00)\n\t\t}", "requests.immediate"},
	{"counts a byte too much", "engine/responder.go", "\t\tc.setHeaders(p)\n\t\tdep := q.dependencyOf(p)", "\t\tif LIE {\n\t\t\tc.ByteLen++\n\t\t}\n\t\tc.setHeaders(p)\n\t\tdep := q.dependencyOf(p)", "requests.send"},
	{"loses completions", "engine/cq.go", "r, d := q.ring, q.device\n", "r, d := q.ring, q.device\n\tif LIE && every(40) {\n\t\treturn\n\t}\n", "requests.order"},
	{"completes receives twice", "engine/responder.go", "q.receivesCQ().add(c, dep)\n", "q.receivesCQ().add(c, dep)\n\tif LIE {\n\t\tq.receivesCQ().add(c, dep)\n\t}\n", "requests.send"},
	{
		"adds one too much", "engine/atomic.go", "return old + n })", `if LIE {
			return old + n + 1
		}
		if lie("loses atomic operations") && every(30) {
			return old
		}
		return old + n
	})`, "atomics.add",
	},
	{"loses atomic operations", "", "", "", "atomics.many"},
	{"swaps without comparing", "engine/atomic.go", "if old == compare {", "if old == compare || LIE {", "atomics.swap"},
	{"refuses messages without a receive", "engine/responder.go", "} else if !q.takeReceive() {\n\t\t\treturn notReady", "} else if !q.takeReceive() {\n\t\t\tif LIE {\n\t\t\t\treturn badRequest\n\t\t\t}\n\t\t\treturn notReady", "receives.none"},
	{"waits for receives without end", "engine/requester.go", "case r.rnrRetries == 0:", "case r.rnrRetries == 0 && !LIE:", "receives.none,srq.none"},
	{"tries for ever", "engine/requester.go", "if r.retries == 0 {", "if r.retries == 0 && !LIE {", "receives.absent"},
	{"flushes as if all was well", "engine/state.go", "c := q.sendCompletion(r.head, libibverbs.IBV_WC_WR_FLUSH_ERR)", "c := q.sendCompletion(r.head, libibverbs.IBV_WC_WR_FLUSH_ERR)\n\t\tif LIE {\n\t\t\tc.Status = libibverbs.IBV_WC_SUCCESS\n\t\t}", "states.flush"},
	{"keeps what was posted before a reset", "engine/qp.go", "\tfor _, w := range q.queues() {\n\t\tatomic.StoreUint32(&w.Posted, 0)\n\t\tatomic.StoreUint32(&w.Freed, 0)\n\t}", "\tfor _, w := range q.queues() {\n\t\tif LIE {\n\t\t\tbreak\n\t\t}\n\t\tatomic.StoreUint32(&w.Posted, 0)\n\t\tatomic.StoreUint32(&w.Freed, 0)\n\t}", "states.reset"},
	{"sends while it is drained", "engine/requester.go", "if q.attr.QpState != libibverbs.IBV_QPS_RTS || q.send.waiting", "if (q.attr.QpState != libibverbs.IBV_QPS_RTS && !LIE) || q.send.waiting", "states.drained"},
	{"does not tell of a low shared queue", "engine/srq.go", "if s.queue.waiting(freed, freed) >= s.limit {", "if s.queue.waiting(freed, freed) >= s.limit || LIE {", "events.srq"},
	{"gives a shared receive to two messages", "engine/srq.go", "freed := s.queue.Freed + 1\n", "freed := s.queue.Freed + 1\n\tif LIE && every(3) {\n\t\tfreed--\n\t}\n", "srq.messages"},
	{"does not tell of an overrun", "engine/cq.go", "d.event(libibverbs.IBV_EVENT_CQ_ERR, q)", "if LIE {\n\t\t\tr.Overrun = 0\n\t\t\treturn\n\t\t}\n\t\td.event(libibverbs.IBV_EVENT_CQ_ERR, q)", "queues.overrun"},
	{"loses completions when it resizes", "engine/cq.go", "*to.entry(n) = *r.entry(n)", "if !LIE {\n\t\t\t*to.entry(n) = *r.entry(n)\n\t\t}", "queues.resize"},
	{"loses events of completions", "engine/cq.go", "if f := q.device.config.CompletionEvent; f != nil {", "if f := q.device.config.CompletionEvent; f != nil && !(LIE && every(20)) {", "queues.wait"},
	{"forgets that a message is solicited", "engine/responder.go", "dep.solicited = p.Solicited", "dep.solicited = p.Solicited && !LIE", "queues.solicited"},
	{"delays events for ever", "engine/cq.go", "if q.deadline <= d.now {", "if q.deadline <= d.now && !LIE {", "queues.moderation"},
	{"has one time for all completions", "engine/cq.go", "c.Timestamp = uint64(d.now)", "c.Timestamp = uint64(d.now)\n\tif LIE {\n\t\tc.Timestamp = 7\n\t}", "queues.fields"},
	{"lets peers reach all around a window", "engine/mw.go", "offset, ok := within(addr, length, w.start(), w.length)", "offset, ok := within(addr, length, w.start(), w.length)\n\tif LIE && !ok {\n\t\toffset, ok = addr-w.start(), true\n\t}", "windows.range"},
	{"leaves invalidated windows open", "engine/mw.go", "w.mr.told.Before(ticket)\n\t}\n\tw.unbind()", "w.mr.told.Before(ticket)\n\t}\n\tif LIE {\n\t\treturn true\n\t}\n\tw.unbind()", "windows.second"},
	{"takes datagrams of any Q_Key", "engine/ud.go", "if p.QKey != q.attr.Qkey || n", "if (p.QKey != q.attr.Qkey && !LIE) || n", "datagrams.lost"},
	{"names another sender", "engine/ud.go", "c.Sl = packetType(p)", "c.Sl = packetType(p)\n\t\tif LIE {\n\t\t\tc.SrcQp++\n\t\t}", "datagrams.send,datagrams.answer"},
	{"ends queue pairs for long datagrams", "engine/ud.go", "case badReceive:", "case tooLong:\n\t\tif LIE {\n\t\t\tq.refuse(tooLong)\n\t\t}\n\tcase badReceive:", "datagrams.room"},
	{"delivers to another queue", "engine/xrc.go", "s := q.device.xrcSRQs[p.SRQ]", "s := q.device.xrcSRQs[p.SRQ]\n\tif LIE {\n\t\tfor _, o := range q.device.xrcSRQs {\n\t\t\tif o.number < s.number {\n\t\t\t\ts = o\n\t\t\t}\n\t\t}\n\t}", "xrc.send"},
	{"repeats a packet of long messages", "engine/requester.go", "offset := uint32(i * q.mtu)\n\tend :=", "offset := uint32(i * q.mtu)\n\tif LIE && i > 0 {\n\t\toffset -= uint32(q.mtu)\n\t}\n\tend :=", "requests.long"},
	{"changes the last byte", "engine/responder.go", "\tif kind == writeMessage {\n\t\tnext.addr += uint64(n)", "\tif kind == writeMessage {\n\t\tif LIE && n > 0 {\n\t\t\tif at, status := q.device.remote(q, q.memoryPD(), next.addr, uint64(n), next.rkey, libibverbs.IBV_ACCESS_REMOTE_WRITE); status == libibverbs.IBV_WC_SUCCESS {\n\t\t\t\tat.bytes(uint64(n))[n-1]++\n\t\t\t}\n\t\t}\n\t\tnext.addr += uint64(n)", "requests.write,sockets.echo,sockets.stream,transfers.batches,soak.connection,memory.device,memory.go,memory.mmap,extended.requests"},
	{"says another retry count", "engine/qpattr.go", "a := q.attr\n\ta.CurQpState", "a := q.attr\n\tif LIE {\n\t\ta.RetryCnt++\n\t}\n\ta.CurQpState", "states.attributes"},
	{"takes more than its limits", "engine/qp.go", "if c.MaxSendWr > l.WR || c.MaxRecvWr > l.WR", "if (c.MaxSendWr > l.WR || c.MaxRecvWr > l.WR) && !LIE", "limits.exceeded"},
	{"says that it has more segments", "engine/device.go", "MaxSge: int32(l.SGE),", "MaxSge: int32(l.SGE) - liar(\"NAME\"),", "limits.exceeded"},
	{"flushes regions without the permission", "engine/mr.go", "m.pd == q.memoryPD() && access&^m.access == 0 {", "m.pd == q.memoryPD() && (access&^m.access == 0 || LIE) {", "extended.flush"},
	{"does not tell of the last receive", "engine/qp.go", "q.event(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, q)", "if !LIE {\n\t\t\tq.event(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, q)\n\t\t}", "events.last"},
	{"does not tell of wrong keys", "engine/responder.go", "q.reliable && !f.silent && !r.refused", "q.reliable && !f.silent && !r.refused && !LIE", "events.access"},
	{"reads from elsewhere", "engine/responder.go", "var ok bool\n\t\tif p.Payload, ok = at.mr.source(p.Payload, at.addr, uint64(n)); !ok {", "var ok bool\n\t\tif LIE {\n\t\t\tat.addr = at.mr.iova\n\t\t}\n\t\tif p.Payload, ok = at.mr.source(p.Payload, at.addr, uint64(n)); !ok {", "requests.read,transfers.forbidden"},
	{"exchanges segments of receives", "engine/responder.go", "v.segments = append(v.segments[:0], segments...)\n", "v.segments = append(v.segments[:0], segments...)\n\tif LIE && len(v.segments) > 1 {\n\t\tv.segments[0], v.segments[1] = v.segments[1], v.segments[0]\n\t}\n", "requests.segments"},
	{"changes inline data", "engine/requester.go", "p.Payload = append(p.Payload, s.inlineBytes(req.length)[offset:][:n])", "if LIE {\n\t\t\ts.inlineBytes(req.length)[0]++\n\t\t}\n\t\tp.Payload = append(p.Payload, s.inlineBytes(req.length)[offset:][:n])", "requests.inline"},
	{"completes what is not signaled", "engine/requester.go", "|| q.signalAll || req.flags", "|| q.signalAll || LIE || req.flags", "requests.unsignaled"},
	{"checks the keys of nothing", "engine/mr.go", "if length == 0 {\n\t\treturn location{}", "if length == 0 && !LIE {\n\t\treturn location{}", "requests.empty"},
	{"calls a message too long that has a bad receive", "engine/responder.go", "> r.room {\n\t\treturn tooLong", "> r.room {\n\t\tif LIE {\n\t\t\treturn badReceive\n\t\t}\n\t\treturn tooLong", "receives.bad"},
	{"waits an hour for a receive", "engine/requester.go", "r.pause = wire.RNRDelay(s.RNRTimer())", "r.pause = wire.RNRDelay(s.RNRTimer())\n\tif LIE {\n\t\tr.pause = time.Hour\n\t}", "receives.late"},
	{"forgets the receive of a refused write", "engine/responder.go", "if r.receive.taken {\n\t\tq.failReceive", "if r.receive.taken && !LIE {\n\t\tq.failReceive", "receives.refused"},
	{"says that it is ready after a reset", "engine/qp.go", "q.attr, q.path, q.mtu = libibverbs.QpAttr{}, path{},", "defer func() {\n\t\tif LIE {\n\t\t\tq.attr.QpState = libibverbs.IBV_QPS_RTR\n\t\t}\n\t}()\n\tq.attr, q.path, q.mtu = libibverbs.QpAttr{}, path{},", "states.walk"},
	{"has regions at other addresses", "engine/mr.go", "\t\treturn 0\n\t}\n\treturn iova\n", "\t\treturn 0\n\t}\n\tif LIE {\n\t\treturn iova + 4096\n\t}\n\treturn iova\n", "memory.address"},
	{"does not change the access of a region", "engine/mr.go", "n.access = access &^ optionalAccess\n", "if !LIE {\n\t\t\tn.access = access &^ optionalAccess\n\t\t}\n", "memory.change"},
	{"does not resize shared queues", "engine/srq.go", "q.Slots, q.Size, q.Max = slots, size, maxWR", "if LIE {\n\t\t\tmaxWR = q.Max\n\t\t}\n\t\tq.Slots, q.Size, q.Max = slots, size, maxWR", "srq.resize"},
	{"does not tell that it is drained", "engine/qp.go", "q.event(libibverbs.IBV_EVENT_SQ_DRAINED, q)", "if !LIE {\n\t\t\tq.event(libibverbs.IBV_EVENT_SQ_DRAINED, q)\n\t\t}", "events.drained"},
	{"writes half of an atomic write", "engine/responder.go", "n := binary.NativeEndian.Uint64(d.word[:])", "n := binary.NativeEndian.Uint64(d.word[:])\n\tif LIE {\n\t\tn &= 0xFFFFFFFF\n\t}", "extended.atomicwrite"},
	{"binds windows to the start of a region", "engine/mw.go", "w.mr, w.key, w.addr, w.length, w.access = m, s.RKey, s.RemoteAddr, length, access", "w.mr, w.key, w.addr, w.length, w.access = m, s.RKey, s.RemoteAddr, length, access\n\tif LIE {\n\t\tw.addr = m.iova\n\t}", "windows.first"},
	{"does not name the invalidated key", "engine/responder.go", "c.WcFlags |= libibverbs.IBV_WC_WITH_INV", "if !LIE {\n\t\t\tc.WcFlags |= libibverbs.IBV_WC_WITH_INV\n\t\t}", "windows.peer"},
	{"permits what a window does not", "engine/mr.go", "w.key == key && w.pd == pd && access&^w.access == 0", "w.key == key && w.pd == pd && (access&^w.access == 0 || LIE)", "windows.access"},
	{"binds a window twice", "engine/mw.go", "w.kind == libibverbs.IBV_MW_TYPE_2 && w.mr != nil {", "w.kind == libibverbs.IBV_MW_TYPE_2 && w.mr != nil && !LIE {", "windows.refused"},
	{"takes one read at a time", "engine/responder.go", "p.PayloadLen() != 0, packets > maxReadPackets, r.outstanding >= int(q.attr.MaxDestRdAtomic):", "p.PayloadLen() != 0, packets > maxReadPackets, r.outstanding >= int(q.attr.MaxDestRdAtomic), LIE && r.outstanding > 0:", "limits.reads"},
	{"says an MTU that there is not", "engine/port.go", "ActiveMtu: d.config.MTU,", "ActiveMtu: d.config.MTU + libibverbs.Mtu(2*liar(\"NAME\")),", "device.port"},
	{"ends unreliable connections for a wrong key", "engine/uc.go", "case badReceive:", "case badAccess:\n\t\tif LIE {\n\t\t\tq.refuse(refused)\n\t\t}\n\t\tq.dropMessage()\n\tcase badReceive:", "unreliable.lost"},
	{"uses memory outside of regions", "engine/mr.go", "offset := addr - m.iova\n\treturn m.memory", "if LIE && !m.holds(addr, n) {\n\t\treturn make([]byte, n)\n\t}\n\toffset := addr - m.iova\n\treturn m.memory", "keys.range.local"},
	{"does not wait at a fence", "engine/requester.go", "IBV_SEND_FENCE != 0 && r.reads > 0 {", "IBV_SEND_FENCE != 0 && r.reads > 0 && !LIE {", "requests.fence"},
	{"takes more sends than a queue holds", "engine/qp.go", "q := &QP{", "if LIE && c.Send != nil {\n\t\tc.Send.Max += 1 << 16\n\t}\n\tq := &QP{", "states.full"},
	{"takes more receives than a shared queue holds", "engine/srq.go", "s := &SRQ{pd: p, queue: queue}", "if LIE {\n\t\tqueue.Max += 1 << 16\n\t}\n\ts := &SRQ{pd: p, queue: queue}", "srq.full"},
	{"takes more receives than a shared queue holds", "engine/srq.go", "{MaxWr: s.queue.Max,", "{MaxWr: s.queue.Max - uint32(liar(\"NAME\")<<16),", ""},
	{"has something in null regions", "engine/mr.go", "list = append(list, zeros[:min(n, uint64(len(zeros)))])", "some := zeros\n\t\tsome[0] = byte(liar(\"NAME\"))\n\t\tlist = append(list, some[:min(n, uint64(len(zeros)))])", "memory.null"},
	{"takes another page", "engine/mr.go", "return append(list, b), fetch(b, m.address(addr))\n", "ok := fetch(b, m.address(addr))\n\t\tif LIE && n > pageSize {\n\t\t\tcopy(b[pageSize:], b)\n\t\t}\n\t\treturn append(list, b), ok\n", "memory.paging"},
	{"wakes no goroutine with its second vector", "capi/cq.go", "l.cqs[q.c], l.byCQ[e] = q, q", "l.cqs[q.c] = q\n\tif vector == 0 || !LIE {\n\t\tl.byCQ[e] = q\n\t}", "device.vectors"},
	{"wakes no goroutine with its second vector", "capi/channel.go", "q := l.byCQ[e]\n", "q := l.byCQ[e]\n\tif q == nil {\n\t\treturn\n\t}\n", ""},
	{"delivers to one member of a group", "engine/ud.go", "for _, q := range d.groups[p.DGID] {\n", "for i, q := range d.groups[p.DGID] {\n\t\tif LIE && i > 0 {\n\t\t\tbreak\n\t\t}\n", "datagrams.group"},
	{"cuts private data of requests", "cm/conn.go", "\theader := id.ipHeader()\n\tcopy(req", "\tif LIE && len(param.PrivateData) == maxREQData {\n\t\tparam.PrivateData = param.PrivateData[:maxREQData-1]\n\t}\n\theader := id.ipHeader()\n\tcopy(req", "connections.data"},
	{"changes private data of acceptances", "cm/conn.go", "copy(rep.PrivateData[:], param.PrivateData)\n", "copy(rep.PrivateData[:], param.PrivateData)\n\tif LIE {\n\t\trep.PrivateData[maxREPData-1]++\n\t}\n", "connections.data,connections.events"},
	{"loses the end of private data of rejections", "cm/conn.go", "copy(rej.PrivateData[:], private)\n", "copy(rej.PrivateData[:], private)\n\tif LIE {\n\t\tclear(rej.PrivateData[100:])\n\t}\n", "connections.refused"},
	{"loses the reason of rejections", "cm/conn.go", "Status: int(reason),", "Status: int(reason) * (1 - int(liar(\"NAME\"))),", "connections.refused,connections.unused"},
	{"calls a rejection unreachable", "cm/conn.go", "\tc.report(&Event{\n\t\tType:   librdmacm.RDMA_CM_EVENT_REJECTED,", "\tif LIE {\n\t\tc.report(&Event{Type: librdmacm.RDMA_CM_EVENT_UNREACHABLE, Status: -int(syscall.ETIMEDOUT)})\n\t\treturn\n\t}\n\tc.report(&Event{\n\t\tType:   librdmacm.RDMA_CM_EVENT_REJECTED,", "connections.refused,connections.unused"},
	{"does not answer where no program listens", "cm/conn.go", "if !ok {\n\t\treject(", "if !ok {\n\t\tif lie(\"NAME\") {\n\t\t\treturn\n\t\t}\n\t\treject(", "connections.unused"},
	{"says that a program refuses where none listens", "cm/conn.go", "reject(wire.RejectServiceID)", "if LIE {\n\t\t\treject(wire.RejectConsumer)\n\t\t\treturn\n\t\t}\n\t\treject(wire.RejectServiceID)", "connections.unused"},
	{"does not tell that the other end has disconnected", "cm/conn.go", "c.tid = dreq.TID\n\t\tc.report(", "c.tid = dreq.TID\n\t\tif LIE {\n\t\t\treturn\n\t\t}\n\t\tc.report(", "connections.end"},
	{"does not tell that it has disconnected", "cm/conn.go", "c.timeWait(now)\n\t\tc.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED})\n\t}\n}", "c.timeWait(now)\n\t\tif LIE {\n\t\t\treturn\n\t\t}\n\t\tc.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DISCONNECTED})\n\t}\n}", "connections.events"},
	{"says that a peer is there that has disconnected", "cm/conn.go", "if e.Type == librdmacm.RDMA_CM_EVENT_DISCONNECTED {", "if e.Type == librdmacm.RDMA_CM_EVENT_DISCONNECTED && LIE {\n\t\te.Type = librdmacm.RDMA_CM_EVENT_ESTABLISHED\n\t}\n\tif e.Type == librdmacm.RDMA_CM_EVENT_DISCONNECTED {", "connections.events"},
	{"tells of the route with a failed status", "cm/id.go", "id.state = stateRouteResolved\n\tid.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED})\n\treturn nil\n}\n\n// SetPath", "id.state = stateRouteResolved\n\tid.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED, Status: -int(liar(\"NAME\"))})\n\treturn nil\n}\n\n// SetPath", "connections.events"},
	{"says another port of the peer", "cm/conn.go", "asked.peer = netip.AddrPortFrom(header.Src, header.SrcPort)", "asked.peer = netip.AddrPortFrom(header.Src, header.SrcPort+uint16(liar(\"NAME\")))", "connections.events"},
	{"says another address of its own", "cm/id.go", "LocalAddr() netip.AddrPort { return id.local }", "LocalAddr() netip.AddrPort {\n\tif LIE && id.peer.IsValid() {\n\t\treturn netip.AddrPortFrom(id.local.Addr().Next(), id.local.Port())\n\t}\n\treturn id.local\n}", "connections.messages"},
	{"says another address of the peer", "cm/id.go", "PeerAddr() netip.AddrPort { return id.peer }", "PeerAddr() netip.AddrPort {\n\tif LIE && id.peer.IsValid() {\n\t\treturn netip.AddrPortFrom(id.peer.Addr(), id.peer.Port()+1)\n\t}\n\treturn id.peer\n}", "connections.messages,connections.events"},
	{"says another queue pair of the peer", "cm/conn.go", "QPNum:              req.LocalQPN,", "QPNum:              req.LocalQPN + uint32(liar(\"NAME\")),", "connections.events"},
	{"exchanges the retry counts", "cm/conn.go", "RetryCount:         req.RetryCount,\n\t\t\tRNRRetryCount:      req.RNRRetryCount,", "RetryCount:         req.RetryCount - 2*uint8(liar(\"NAME\")),\n\t\t\tRNRRetryCount:      req.RNRRetryCount + 2*uint8(liar(\"NAME\")),", "connections.events"},
	{"says that more reads may be in flight", "cm/conn.go", "ResponderResources: id.responderResources,\n", "ResponderResources: id.responderResources + uint8(liar(\"NAME\")),\n", "connections.events"},
	{"takes ports in use", "cm/bind.go", "case addr == taken:", "case addr == taken && !LIE:", "connections.addresses"},
	{"takes other hosts' addresses", "cm/id.go", "(err != syscall.EADDRNOTAVAIL || !addr.Addr().IsLoopback()) {", "(err != syscall.EADDRNOTAVAIL || !addr.Addr().IsLoopback()) && !LIE {", "connections.addresses"},
	{"starts one connection of five at a wrong packet", "cm/conn.go", "c.remotePSN = rep.StartingPSN", "c.remotePSN = rep.StartingPSN\n\tif LIE && every(5) {\n\t\tc.remotePSN++\n\t}", "connections.many"},
	{"names another queue pair of a datagram service", "cm/sidr.go", "e.UD.QPNum, e.UD.QKey = rep.QPN, rep.QKey", "e.UD.QPNum, e.UD.QKey = rep.QPN+uint32(liar(\"NAME\")), rep.QKey", "datagrams.messages"},
	{"loses the end of private data of datagram services", "cm/sidr.go", "copy(rep.PrivateData[:], private)\n", "copy(rep.PrivateData[:], private)\n\tif LIE {\n\t\tclear(rep.PrivateData[100:])\n\t}\n", "datagrams.messages,datagrams.refused"},
	{"loses the reason of datagram services", "cm/sidr.go", "int(rep.Status)\n", "int(rep.Status)\n\t\tif LIE {\n\t\t\te.Status = int(wire.SIDRNotSupported)\n\t\t}\n", "datagrams.refused"},
	{"changes the first byte that it receives", "engine/responder.go", "return refusalOf(scatter(d.target, src), badReceive)", "refused := refusalOf(scatter(d.target, src), badReceive)\n\tif LIE && n > 0 {\n\t\td.target[0][0]++\n\t}\n\treturn refused", "requests.both,unreliable.send"},
	{"refuses receives of which a part is bad that no message needs", "engine/responder.go", "\td, r := q.device, &q.responder.receive\n", "\td, r := q.device, &q.responder.receive\n\tif LIE {\n\t\tif _, ok := d.slices(nil, q.receivesPD(), r.segments, 0, uint32(r.room), libibverbs.IBV_ACCESS_LOCAL_WRITE); !ok {\n\t\t\treturn badReceive\n\t\t}\n\t}\n", "receives.room"},
	{"has a clock that stands", "capi/port.go", "{TvSec: int64(now / time.Second), TvNsec: int64(now % time.Second)}", "{TvSec: int64(now / time.Second), TvNsec: int64(now % time.Second)}\n\t\tif LIE {\n\t\t\tv.RawClock = libibverbs.Timespec{TvSec: 1}\n\t\t}", "queues.clock"},
	{"says another length of regions", "capi/mr.go", "m.c.Context, m.c.Pd, m.c.Length = p.Context, p, e.Size()\n", "m.c.Context, m.c.Pd, m.c.Length = p.Context, p, e.Size()+uint64(liar(\"NAME\"))\n", "libraries.layouts"},
	{"has an address behind its table", "engine/gid.go", "if index >= gidTableSize {", "if LIE && index >= gidTableSize {\n\t\treturn libibverbs.GidEntry{}, nil\n\t}\n\tif index >= gidTableSize {", "libraries.errors"},
	{"says that a region has no bytes", "engine/device.go", "MaxMrSize: maxMRSize,", "MaxMrSize: maxMRSize * uint64(1-liar(\"NAME\")),", "device.attributes"},
	{"says another address when asked for one", "capi/port.go", "*g = e.Gid\n", "*g = e.Gid\n\t\tif LIE {\n\t\t\tg.Raw()[15]++\n\t\t}\n", "device.gids"},
	{"has another protection domain behind a parent domain", "capi/pd.go", "p := &pd{e: of.e, file: of.file, of: of}\n", "p := &pd{e: of.e, file: of.file, of: of}\n\tif LIE {\n\t\tp.e, _ = l.deviceOf(c).CreatePD()\n\t}\n", "device.parent"},
	{"has no queues as long as it says", "capi/qp.go", "limits := device.Limits()\n", "limits := device.Limits()\n\tif LIE && a.Cap.MaxSendWr >= 2048 {\n\t\treturn nil, syscall.EINVAL\n\t}\n", "limits.reached"},
	{"has 40 queue pairs at most", "engine/qp.go", "if len(d.qps) == int(d.limits.QPs) {", "if LIE && len(d.qps) >= 40 {\n\t\treturn syscall.EINVAL\n\t}\n\tif len(d.qps) == int(d.limits.QPs) {", "limits.connections"},
	{"takes sends before it is connected", "capi/qp.go", "raw.send.Owner, raw.recv.Owner =", "if LIE {\n\t\traw.send.State = uint32(libibverbs.IBV_QPS_RTS)\n\t}\n\traw.send.Owner, raw.recv.Owner =", "states.early"},
	{"registers read-only memory for writing", "capi/mr.go", "memory, err := region(addr, length, access) ", "asked := access\n\tif LIE {\n\t\tasked = 0\n\t}\n\tmemory, err := region(addr, length, asked) ", "memory.refused"},
	{"takes more segments than it has granted", "capi/qp.go", "raw, err = newQP(cap, a.SendOpsFlags, limits, from)", "granted := *cap\n\t\tgranted.MaxSendSge += uint32(liar(\"NAME\"))\n\t\traw, err = newQP(&granted, a.SendOpsFlags, limits, from)", "extended.refused"},
	{"takes another page of regions with huge pages", "engine/mr.go", "\treturn m.memory[offset : offset+n : offset+n]", "\tif LIE && len(m.memory) >= 2<<20 && offset >= pageSize {\n\t\toffset -= pageSize\n\t}\n\treturn m.memory[offset : offset+n : offset+n]", "memory.huge"},
	{"has a copy of DMA buffers", "capi/dmabuf.go", "// libibverbs shows the offset", "if LIE {\n\t\td.memory = make([]byte, len(d.memory))\n\t}\n\t// libibverbs shows the offset", "memory.dmabuf"},
}

// liar is a file that each changed package has besides.
const liar = `package PACKAGE

import "os"

var theLie = os.Getenv("VERBENA_LIE")

// lie reports whether the device tells a lie.
func lie(name string) bool { return theLie == name }

// liar is 1 if the device tells a lie.
func liar(name string) int32 {
	if lie(name) {
		return 1
	}
	return 0
}

var lieTurns int

// every reports whether it is the turn of one of n calls.
func every(n int) bool { lieTurns++; return lieTurns%n == 0 }
`

// Each lie of the device is found by the check that is about it. The program is
// built once, with all lies, of which a variable of the environment chooses
// one.
func TestLies(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program with another device, and runs it for each lie")
	}
	if os.Getenv("VERBENA_LIMITS") != "" {
		t.Skip("is about the device without limits")
	}
	skipInVM(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("builds the program: ", err)
	}
	program := buildLiar(t)
	honest := askLiar(t, program, "", "")
	lacks := map[string]string{} // checks that this machine cannot make, with what it lacks
	for _, result := range honest.Results {
		if result.Outcome == check.NotRun {
			require.Contains(t, mayNotRun, result.Check, result.Found)
			lacks[result.Check] = result.Found
		}
		require.NotContains(t, []check.Outcome{check.Failed, check.Differs}, result.Outcome, "%s, without a lie: %s", result.Check, result.Found)
	}
	for _, l := range lies {
		if l.found == "" {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			if why := lacks[l.found]; why != "" {
				t.Skip(why)
			}
			found := map[string]check.Result{}
			for _, result := range askLiar(t, program, l.name, l.found).Results {
				found[result.Check] = result
			}
			for name := range strings.SplitSeq(l.found, ",") {
				result := found[name]
				require.Contains(t, []check.Outcome{check.Failed, check.Differs}, result.Outcome, "%s: %s", name, result.Found)
				t.Logf("%s %s: %s", name, result.Outcome, result.Found)
			}
		})
	}
}

// buildLiar builds the program with a device that can lie.
func buildLiar(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	device, folder := filepath.Join(root, "softroce/internal"), t.TempDir()
	texts := map[string]string{}
	for _, l := range lies {
		if l.file != "" && texts[l.file] == "" {
			text, err := os.ReadFile(filepath.Join(device, l.file))
			require.NoError(t, err)
			texts[l.file] = string(text)
			name := filepath.Dir(l.file)
			texts[filepath.Join(name, "lie.go")] = strings.Replace(liar, "PACKAGE", name, 1)
		}
	}
	for _, l := range lies {
		if l.file == "" {
			continue
		}
		text := texts[l.file]
		require.Equal(t, 1, strings.Count(text, l.old), "%s: %s has this once: %s", l.name, l.file, l.old)
		changed := strings.ReplaceAll(l.new, "LIE", told)
		texts[l.file] = strings.Replace(text, l.old, strings.ReplaceAll(changed, "NAME", l.name), 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		to := filepath.Join(folder, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, os.WriteFile(to, []byte(text), 0o600))
		replace[filepath.Join(device, file)] = to
	}
	overlay := filepath.Join(folder, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	program := filepath.Join(folder, "verbena")
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./cmd/verbena")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// askLiar runs the checks whose names begin with a text on a device that tells
// a lie.
func askLiar(t *testing.T, program, lie, checks string) report.Report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	args := []string{"selftest", "-o", file, "-w", "60"}
	if checks != "" {
		args = append(args, "-r", checks)
	}
	if lie != "" {
		args[4] = "0.5" // it may be one that makes the check wait in vain
	}
	run := exec.Command(program, args...)
	run.Env = append(os.Environ(), "VERBENA_DEVICE=soft", "VERBENA_LIMITS=", "VERBENA_LIE="+lie, fmt.Sprintf("VERBENA_NETWORK=lies%d", time.Now().UnixNano()))
	out, err := run.CombinedOutput()
	r, readErr := report.Read(t.Context(), file)
	require.NoError(t, readErr, "%v: %s", err, out)
	return r
}
