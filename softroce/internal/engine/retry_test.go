// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// ackTimeout is the timeout of connect's queue pairs.
var ackTimeout = wire.AckTimeout(14)

// opcodes returns those of the packets that arrived.
func (n *network) opcodes() (all []wire.Opcode) {
	for _, p := range n.seen {
		all = append(all, p.Opcode)
	}
	n.seen = nil
	return all
}

// dropping loses the first so many packets for which is is true.
func (n *network) dropping(times int, is func(p *wire.Packet) bool) {
	n.filter = func(p *wire.Packet) bool {
		if times > 0 && is(p) {
			times--
			return false
		}
		return true
	}
}

func isSend(p *wire.Packet) bool  { return p.Opcode.IsSend() }
func isWrite(p *wire.Packet) bool { return p.Opcode.IsWrite() }
func isAck(p *wire.Packet) bool   { return p.Opcode == wire.RCAck }

func TestAckTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		lost     int
		is       func(*wire.Packet) bool
		want     libibverbs.WcStatus
		received []result // once
	}{
		"as many requests as there are retries": {7, isSend, success, []result{ok(1)}},
		"one more":                              {8, isSend, libibverbs.IBV_WC_RETRY_EXC_ERR, nil},
		"as many ACKs":                          {7, isAck, success, []result{ok(1)}},
		"one more ACK":                          {8, isAck, libibverbs.IBV_WC_RETRY_EXC_ERR, []result{ok(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			n.dropping(tt.lost, tt.is)
			b.postRecv(1, b.mr.sge(0, 8))
			b.postRecv(2, b.mr.sge(8, 8))
			a.post(SendSlot{ID: 5, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
			var got []result
			for len(got) == 0 {
				n.step()
				got = results(a.send)
			}
			require.Equal(t, []result{{5, tt.want}}, got)
			timeouts := time.Duration(1 + 2 + 4*(tt.lost-2))
			require.GreaterOrEqual(t, n.now, timeouts*ackTimeout)
			require.Less(t, n.now, timeouts*ackTimeout+time.Millisecond)
			n.run()
			require.Equal(t, tt.received, results(b.recv))
		})
	}
}

// Retries that are counted begin anew with each progress.
func TestProgressRestoresRetries(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	for i := range uint64(3) {
		n.dropping(5, isWrite)
		a.post(SendSlot{ID: i, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
		n.run()
		require.Equal(t, []result{ok(i)}, results(a.send))
	}
}

// Retries that are counted also begin anew with each RNR NAK.
func TestRNRRestoresRetries(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.qp.attr.RnrRetry = 7
	naks, lost := 0, 0
	n.filter = func(p *wire.Packet) bool {
		switch {
		case isAck(p) && p.Syndrome.IsRNR():
			if naks++; naks == 9 {
				b.postRecv(1, b.mr.sge(0, 8))
			}
		case isSend(p) && naks > 0 && lost < naks:
			lost++
			return false
		}
		return true
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, 9, lost)
}

func TestTimeoutOfZeroIsForever(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.qp.attr.Timeout = 0
	n.dropping(1, isWrite)
	a.post(SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
	n.run()
	require.Empty(t, results(a.send))
	require.Less(t, n.now, time.Millisecond)
}

func TestRNR(t *testing.T) {
	wait := wire.RNRDelay(12)
	for name, tt := range map[string]struct {
		retries uint8
		opcode  libibverbs.WrOpcode
		after   int // RNR NAKs until there is a receive
		want    libibverbs.WcStatus
		naks    int
	}{
		"a receive just in time":    {6, libibverbs.IBV_WR_SEND, 6, libibverbs.IBV_WC_SUCCESS, 6},
		"one too late":              {6, libibverbs.IBV_WR_SEND, 7, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR, 7},
		"no retries":                {0, libibverbs.IBV_WR_SEND_WITH_IMM, 1, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR, 1},
		"without end":               {7, libibverbs.IBV_WR_SEND, 300, libibverbs.IBV_WC_SUCCESS, 300},
		"write with immediate data": {2, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, 2, libibverbs.IBV_WC_SUCCESS, 2},
		"such a write, too late":    {2, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, 3, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR, 3},
	} {
		for _, size := range []int{8, 3000} {
			t.Run(name, func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
				n.fillRandom(a.mr.memory)
				a.qp.attr.RnrRetry, a.qp.requester.rnrRetries = tt.retries, tt.retries
				naks := 0
				n.filter = func(p *wire.Packet) bool {
					if p.Opcode == wire.RCAck && p.Syndrome.IsRNR() {
						if naks++; naks == tt.after {
							b.postRecv(1, b.mr.sge(0, size))
						}
					}
					return true
				}
				a.post(SendSlot{ID: 1, Opcode: tt.opcode}.remote(b, 1<<13), a.mr.sge(0, size))
				a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 0))
				var got []result
				for len(got) < 2 {
					more := n.step()
					got = append(got, results(a.send)...)
					require.True(t, more || len(got) == 2)
				}
				require.Equal(t, tt.naks, naks)
				waited := naks
				if tt.want == libibverbs.IBV_WC_SUCCESS {
					require.Equal(t, []result{ok(1), ok(2)}, got)
					require.Equal(t, []result{ok(1)}, results(b.recv))
					at := 0
					if tt.opcode == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM {
						at = 1 << 13
					}
					require.Equal(t, a.mr.memory[:size], b.mr.memory[at:at+size])
				} else {
					waited--
					require.Equal(t, []result{{1, tt.want}, {2, libibverbs.IBV_WC_WR_FLUSH_ERR}}, got)
					require.Empty(t, poll(b.recv.ring))
				}
				require.GreaterOrEqual(t, n.now, time.Duration(waited)*wait)
				require.Less(t, n.now, time.Duration(waited)*wait+10*time.Millisecond)
				require.Equal(t, libibverbs.IBV_QPS_RTS, b.qp.attr.QpState) // the peer is unaffected
				require.Empty(t, b.takeEvents())
			})
		}
	}
}

// A gap makes one NAK, and what was lost is sent again at once, but nothing
// before it.
func TestSequenceNAK(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
	n.fillRandom(a.mr.memory)
	n.dropping(1, func(p *wire.Packet) bool { return p.Opcode == wire.RCWriteMiddle })
	n.watch = true
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 5*1024))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, a.mr.memory[:5*1024], b.mr.memory[:5*1024])
	naks, sent := 0, map[wire.PSN]int{}
	for _, p := range n.seen {
		if p.Opcode == wire.RCAck && p.Syndrome == wire.NakSequence {
			naks++
			require.Equal(t, wire.PSN(1<<24-20+1), p.PSN)
		} else if p.Opcode.IsWrite() {
			sent[p.PSN]++
		}
	}
	require.Equal(t, 1, naks)
	require.Equal(t, map[wire.PSN]int{1<<24 - 20: 1, 1<<24 - 19: 1, 1<<24 - 18: 2, 1<<24 - 17: 2, 1<<24 - 16: 2}, sent)
}

// A peer that always finds a packet out of sequence uses up retries, one for
// each timeout: another NAK without progress may be a copy.
func TestSequenceRetriesExceeded(t *testing.T) {
	for name, tt := range map[string]struct {
		naks int
		want libibverbs.WcStatus
	}{
		"not exceeded": {7, libibverbs.IBV_WC_SUCCESS},
		"exceeded":     {1000, libibverbs.IBV_WC_RETRY_EXC_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			naks := 0
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode == wire.RCAck && naks < tt.naks {
					naks++
					p.Syndrome = wire.NakSequence
				}
				return true
			}
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
			n.run()
			require.Equal(t, []result{{1, tt.want}}, results(a.send))
			require.LessOrEqual(t, a.qp.retries.Timeouts, uint64(8))
		})
	}
}

// An answer beyond a READ or atomic says that its own answer was lost.
func TestImpliedNAK(t *testing.T) {
	for name, op := range map[string]libibverbs.WrOpcode{
		"read": libibverbs.IBV_WR_RDMA_READ, "atomic": libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD,
	} {
		for behind, next := range map[string]libibverbs.WrOpcode{
			"write": libibverbs.IBV_WR_RDMA_WRITE, "read": libibverbs.IBV_WR_RDMA_READ, "atomic": libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP,
		} {
			t.Run(name+" before "+behind, func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
				*word(b.mr.memory, 0) = 7
				n.dropping(1, func(p *wire.Packet) bool { return p.Opcode.IsReadResponse() || p.Opcode == wire.RCAtomicAck })
				a.post(SendSlot{ID: 1, Opcode: op, CompareAdd: 1}.remote(b, 0), a.mr.sge(0, 8))
				for i := range uint64(8) {
					a.post(SendSlot{ID: 2 + i, Opcode: next}.remote(b, 8), a.mr.sge(8, 8))
				}
				n.watch = true
				for a.send.ring.Added < 9 {
					n.step()
				}
				require.Less(t, n.now, ackTimeout)
				require.Equal(t, []result{ok(1), ok(2), ok(3), ok(4), ok(5), ok(6), ok(7), ok(8), ok(9)}, results(a.send))
				require.Equal(t, uint64(7), *word(a.mr.memory, 0))
				want := uint64(7)
				if op == libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD {
					want = 8 // once
				}
				require.Equal(t, want, *word(b.mr.memory, 0))
				require.GreaterOrEqual(t, int(a.qp.requester.retries), 6)
			})
		}
	}
}

// ACKs of what is not under way mean nothing.
func TestGhostACK(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	n.filter = func(p *wire.Packet) bool { return !isAck(p) }
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
	n.step()
	at := a.qp.requester.acked
	for _, ghost := range []int{-1 << 22, -2, -1, 1, 2, 100, 1 << 22} {
		for _, s := range []wire.Syndrome{wire.Ack, wire.NakSequence, wire.NakRemoteAccess, wire.RNRNak(1)} {
			p := b.qp.packet(wire.RCAck, at.Add(ghost))
			p.Syndrome = s
			a.Receive(p)
			for _, op := range []wire.Opcode{wire.RCReadOnly, wire.RCAtomicAck} {
				a.Receive(b.qp.packet(op, at.Add(ghost)))
			}
		}
	}
	require.Equal(t, at, a.qp.requester.acked)
	require.Empty(t, results(a.send))
	n.filter = nil
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
}

func TestBadResponses(t *testing.T) {
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		spoil  func(p *wire.Packet)
	}{
		"read response to a write": {libibverbs.IBV_WR_RDMA_WRITE, func(p *wire.Packet) {
			p.Opcode = wire.RCReadOnly
		}},
		"atomic response to a write": {libibverbs.IBV_WR_RDMA_WRITE, func(p *wire.Packet) {
			p.Opcode, p.Payload = wire.RCAtomicAck, nil
		}},
		"atomic response to a read": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) {
			p.Opcode, p.Payload = wire.RCAtomicAck, nil
		}},
		"read response to an atomic": {libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, func(p *wire.Packet) {
			p.Opcode, p.Payload = wire.RCReadOnly, [][]byte{make([]byte, 8)}
		}},
		"middle first": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) {
			p.Opcode = wire.RCReadMiddle
		}},
		"first twice": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) {
			if p.Opcode == wire.RCReadMiddle {
				p.Opcode = wire.RCReadFirst
			}
		}},
		"last too early": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) {
			if p.Opcode == wire.RCReadMiddle {
				p.Opcode = wire.RCReadLast
			}
		}},
		"middle at the end": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) {
			if p.Opcode == wire.RCReadLast {
				p.Opcode = wire.RCReadMiddle
			}
		}},
		"answer with data to an atomic write": {libibverbs.IBV_WR_ATOMIC_WRITE, func(p *wire.Packet) {
			p.Payload = [][]byte{{1, 2, 3, 4}}
		}},
		"first of a read's answer to an atomic write": {libibverbs.IBV_WR_ATOMIC_WRITE, func(p *wire.Packet) {
			p.Opcode = wire.RCReadFirst
		}},
		"atomic response to an atomic write": {libibverbs.IBV_WR_ATOMIC_WRITE, func(p *wire.Packet) {
			p.Opcode, p.Payload = wire.RCAtomicAck, nil
		}},
		"too short": {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) { p.Payload = [][]byte{p.Payload[0][1:]} }},
		"too long":  {libibverbs.IBV_WR_RDMA_READ, func(p *wire.Packet) { p.Payload = append(p.Payload, p.Payload[0]) }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<13)
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode.IsResponse() {
					tt.spoil(p)
				}
				return true
			}
			size := 3000
			if tt.opcode == libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD {
				size = 8
			}
			a.post(SendSlot{ID: 1, Opcode: tt.opcode}.remote(b, 0), a.mr.sge(0, size))
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 8))
			n.run()
			require.Equal(t, []result{{1, libibverbs.IBV_WC_BAD_RESP_ERR}, {2, libibverbs.IBV_WC_WR_FLUSH_ERR}}, results(a.send))
			require.Equal(t, libibverbs.IBV_QPS_ERR, a.qp.attr.QpState)
		})
	}
}

// A READ goes on where its answer was lost.
func TestPartialRetryOfRead(t *testing.T) {
	for name, lost := range map[string]int{"first": 0, "second": 1, "last but one": 3, "last": 4} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
			n.fillRandom(b.mr.memory)
			at := a.qp.requester.psn.Add(lost)
			n.dropping(1, func(p *wire.Packet) bool { return p.Opcode.IsReadResponse() && p.PSN == at })
			n.watch = true
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 100), a.mr.split(0, 4100, 1000, 1100)...)
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, b.mr.memory[100:4200], a.mr.memory[:4100])
			var asked []wire.Packet
			for _, p := range n.seen {
				if p.Opcode == wire.RCReadRequest {
					asked = append(asked, p)
				}
			}
			require.Len(t, asked, 2)
			require.Equal(t, at, asked[1].PSN)
			require.Equal(t, b.mr.iova+100+uint64(lost)*1024, asked[1].Addr)
			require.Equal(t, uint32(4100-lost*1024), asked[1].Length)
		})
	}
}

// At most as many READs and atomics are under way as the peer remembers; a
// fence waits for all of them, and others do not.
func TestReadsUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		limit uint8
		flags libibverbs.SendFlags
		want  []wire.Opcode // before the first answer
	}{
		"four": {4, 0, []wire.Opcode{wire.RCReadRequest, wire.RCFetchAdd, wire.RCReadRequest, wire.RCWriteOnly}},
		"two":  {2, 0, []wire.Opcode{wire.RCReadRequest, wire.RCFetchAdd}},
		"fence": {4, libibverbs.IBV_SEND_FENCE, []wire.Opcode{
			wire.RCReadRequest, wire.RCFetchAdd, wire.RCReadRequest,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			a.qp.attr.MaxRdAtomic = tt.limit
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 8))
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD}.remote(b, 0), a.mr.sge(0, 8))
			a.post(SendSlot{ID: 3, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 8))
			a.post(SendSlot{ID: 4, Opcode: libibverbs.IBV_WR_RDMA_WRITE, Flags: uint32(tt.flags)}.remote(b, 0), a.mr.sge(0, 8))
			n.watch = true
			n.runFor(n.delay)
			n.step()
			require.Equal(t, tt.want, n.opcodes())
			n.run()
			require.Equal(t, []result{ok(1), ok(2), ok(3), ok(4)}, results(a.send))
		})
	}
}

// No more packets are under way than the window has, and long messages get
// through.
func TestWindow(t *testing.T) {
	const size = 1 << 20
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, size)
	a.qp.mtu, b.qp.mtu = 256, 256
	n.fillRandom(a.mr.memory)
	most := 0
	n.filter = func(p *wire.Packet) bool {
		r := &a.qp.requester
		most = max(most, r.sent.Diff(r.acked))
		return true
	}
	a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, size))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, a.mr.memory, b.mr.memory)
	require.Equal(t, window, most)

	n.fillRandom(b.mr.memory)
	a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, size))
	a.post(SendSlot{ID: 3, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{ok(2), ok(3)}, results(a.send))
	require.Equal(t, b.mr.memory, a.mr.memory)
}

// Copies of one NAK are obeyed once, also where they arrive apart, so that they
// use up no retries.
func TestCopiesOfNAKs(t *testing.T) {
	for name, tt := range map[string]struct {
		lost   func(p *wire.Packet) bool // once
		opcode libibverbs.WrOpcode
		copied func(p *wire.Packet) bool
		want   Retries
	}{
		"of a request out of sequence": {
			isWrite, write, func(p *wire.Packet) bool { return p.Syndrome == wire.NakSequence },
			Retries{SequenceErrors: 1, PacketsSentAgain: 3},
		},
		"of one that finds no receive": {
			func(*wire.Packet) bool { return false }, send, func(p *wire.Packet) bool { return p.Syndrome.IsRNR() },
			Retries{ReceiversNotReady: 1, PacketsSentAgain: 3},
		},
		"implied by a later answer": {
			func(p *wire.Packet) bool { return p.Opcode.IsReadResponse() }, read, func(p *wire.Packet) bool { return p.Opcode.IsReadResponse() },
			Retries{MissedAnswers: 1, PacketsSentAgain: 3},
		},
	} {
		for _, apart := range []time.Duration{0, 10 * time.Microsecond} {
			t.Run(fmt.Sprint(name, " ", apart), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
				a.qp.attr.RnrRetry, a.qp.requester.rnrRetries = 2, 2
				lost, copied := false, false
				n.filter = func(p *wire.Packet) bool {
					switch {
					case !lost && tt.lost(p):
						lost = true
						return false
					case !copied && tt.copied(p):
						copied = true
						for i := range 9 {
							n.flying = append(n.flying, flight{n.now + n.delay + time.Duration(i)*apart, n.clone(p)})
						}
						for id := range uint64(3) {
							b.postRecv(id, b.mr.sge(0, 8))
						}
					}
					return true
				}
				for id := range uint64(3) {
					a.post(SendSlot{ID: id, Opcode: tt.opcode}.remote(b, 0), a.mr.sge(0, 8))
				}
				n.run()
				require.True(t, copied)
				require.Equal(t, []result{ok(0), ok(1), ok(2)}, results(a.send))
				require.Equal(t, tt.want, a.qp.retries)
			})
		}
	}
}

// Each NAK that follows progress is obeyed, also while another retry is under
// way.
func TestNAKsAfterProgress(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<16)
	times := map[int]int{}
	n.filter = func(p *wire.Packet) bool {
		if !p.Opcode.IsWrite() {
			return true
		}
		i := p.PSN.Diff(1<<24 - 20)
		times[i]++
		return i != 16 && i != 32 || times[i] > i/16 // packet 16 is lost once, packet 32 twice
	}
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), a.mr.sge(0, 1<<16))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.EqualValues(t, 2, a.qp.retries.SequenceErrors)
	require.Zero(t, a.qp.retries.Timeouts)
}
