// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Over an unreliable connection a message with a gap is lost, and the next one
// arrives whole.
func TestUnreliableLoss(t *testing.T) {
	for name, lost := range map[string]wire.Opcode{
		"first": wire.UCSendFirst, "middle": wire.UCSendMiddle, "last": wire.UCSendLast, "only": wire.UCSendOnly,
		"write first": wire.UCWriteFirst, "write middle": wire.UCWriteMiddle, "write last": wire.UCWriteLastImm,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_UC, 1<<14)
			op, size := send, 3000
			if lost.IsWrite() {
				op = writeImm
			}
			if lost == wire.UCSendOnly {
				size = 100
			}
			n.dropping(1, func(p *wire.Packet) bool { return p.Opcode == lost })
			b.postRecv(1, b.mr.sge(0, 4096))
			b.postRecv(2, b.mr.sge(4096, 4096))
			n.fillRandom(a.mr.memory)
			a.post(SendSlot{ID: 1, Opcode: op}.remote(b, 8192), a.mr.sge(0, size))
			a.post(SendSlot{ID: 2, Opcode: op}.remote(b, 0), a.mr.sge(4096, size))
			n.run()
			require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
			require.Equal(t, []result{ok(1)}, results(b.recv)) // one message, in the first receive
			require.Equal(t, a.mr.memory[4096:4096+size], b.mr.memory[:size])
		})
	}
}

func TestUnreliableStatuses(t *testing.T) {
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		spoil  func(a, b *end, s *SendSlot, sge *libibverbs.Sge, recv *libibverbs.Sge)
		sender libibverbs.WcStatus
		recv   libibverbs.WcStatus // of the first receive; noRecv: the second message has it
	}{
		"read":         {read, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {}, locOp, noRecv},
		"atomic":       {fetchAdd, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {}, locOp, noRecv},
		"invalidate":   {sendInv, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {}, locOp, noRecv},
		"local key":    {send, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { sge.Lkey ^= 1 }, locProt, noRecv},
		"remote key":   {write, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.RKey ^= 1 }, success, noRecv},
		"imm, key":     {writeImm, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.RKey ^= 1 }, success, noRecv},
		"no right":     {write, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { b.qp.attr.QpAccessFlags = 0 }, success, noRecv},
		"long message": {send, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { recv.Length = 2000 }, success, noRecv},
		"receive key":  {send, func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { recv.Lkey ^= 1 }, success, locProt},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_UC, 8192)
			s, sge, recv := SendSlot{ID: 1, Opcode: tt.opcode}.remote(b, 0), a.mr.sge(0, 3000), b.mr.sge(0, 4096)
			tt.spoil(a, b, &s, &sge, &recv)
			b.postRecv(1, recv)
			b.postRecv(2, recv)
			a.post(s, sge)
			a.post(SendSlot{ID: 2, Opcode: send}, a.mr.sge(0, 8))
			n.run()
			if tt.sender != success {
				require.Equal(t, []result{{1, tt.sender}, {2, flushed}}, results(a.send))
				require.Empty(t, results(b.recv))
				return
			}
			require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
			if tt.recv == noRecv {
				require.Equal(t, []result{ok(1)}, results(b.recv))
				return
			}
			require.Equal(t, []result{{1, tt.recv}, {2, flushed}}, results(b.recv))
			require.Empty(t, b.takeEvents())
		})
	}
}

// ah makes an address handle for another node, or a group.
func (e *end) ah(gid wire.GID) uint64 {
	attr := &libibverbs.AhAttr{IsGlobal: 1, PortNum: 1}
	attr.Grh.TrafficClass, attr.Grh.HopLimit = 8, 3
	*attr.Grh.Dgid.Raw() = gid
	ah, err := e.pd.CreateAH(attr)
	require.NoError(e.t, err)
	return ah.handle
}

// datagramPair makes two datagram queue pairs with Q_Key 0x1111.
func (n *network) datagramPair() (a, b *end) {
	a, b = n.end(n.node(1), libibverbs.IBV_QPT_UD, nil, 1<<14), n.end(n.node(2), libibverbs.IBV_QPT_UD, nil, 1<<14)
	for _, e := range []*end{a, b} {
		e.datagrams(e.qp, 0x1111)
	}
	return a, b
}

// to addresses a datagram.
func (s SendSlot) to(a, b *end) SendSlot {
	s.AH, s.RemoteQPN, s.RemoteQKey = a.ah(testGID(b.number())), b.qp.number, 0x1111
	return s
}

func TestDatagrams(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	for _, size := range []int{0, 1, 100, 4095, 4096} {
		n.fillRandom(a.mr.memory)
		b.postRecv(1, b.mr.sge(0, 20), b.mr.sge(1000, 25), b.mr.sge(2000, 5000))
		a.post(SendSlot{ID: 1, Opcode: sendImm, Imm: 77}.to(a, b), a.mr.split(0, size, size/3)...)
		n.run()
		require.Equal(t, []result{ok(1)}, results(a.send))
		c := poll(b.recv.ring)[0]
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, c.Status)
		require.Equal(t, uint32(size+40), c.ByteLen)
		require.Equal(t, a.qp.number, c.SrcQp)
		require.Equal(t, libibverbs.IBV_WC_GRH|libibverbs.IBV_WC_WITH_IMM, c.WcFlags)
		require.Equal(t, uint32(77), uint32(*c.ImmData()))
		require.Equal(t, uint8(8|2), c.Sl, "UDP and IPv4")
		m := b.mr.memory
		got := append(append(append([]byte{}, m[:20]...), m[1000:1025]...), m[2000:]...)
		require.Equal(t, make([]byte, 20), got[:20])
		require.Equal(t, []byte{0x45, 8}, got[20:22])
		require.Equal(t, byte(3), got[28])
		require.Equal(t, []byte{192, 0, 2, 1, 192, 0, 2, 2}, got[32:40])
		require.Equal(t, a.mr.memory[:size], got[40:40+size])
	}
}

func TestPacketType(t *testing.T) {
	require.Equal(t, uint8(8|2), packetType(&wire.Packet{DGID: testGID(1)}))
	require.Equal(t, uint8(8|1), packetType(&wire.Packet{DGID: wire.GID{0: 0x20, 15: 1}}))
}

func TestDatagramStatuses(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil  func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge)
		sender libibverbs.WcStatus
		recv   libibverbs.WcStatus // noRecv: nothing arrives, and the next one does
	}{
		"Q_Key":             {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.RemoteQKey++ }, success, noRecv},
		"own Q_Key":         {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.RemoteQKey = 1<<31 + 5 }, success, success},
		"number":            {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.RemoteQPN++ }, success, noRecv},
		"longer than MTU":   {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { sge.Length = 4097 }, success, noRecv},
		"room for less":     {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { recv.Length = 139 }, success, noRecv},
		"just room":         {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { recv.Length = 140 }, success, success},
		"receive key":       {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { recv.Lkey++ }, success, locProt},
		"local key":         {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { sge.Lkey++ }, locProt, noRecv},
		"no address handle": {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.AH = 1 << 40 }, locOp, noRecv},
		"handle of another domain": {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {
			other := *a
			other.pd = a.node.pd()
			s.AH = other.ah(testGID(2))
		}, locOp, noRecv},
		"write": {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.Opcode = write }, locOp, noRecv},
		"read":  {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) { s.Opcode = read }, locOp, noRecv},
		"fetch and add": {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {
			s.Opcode, sge.Length = fetchAdd, 8
		}, locOp, noRecv},
		"compare and swap": {func(a, b *end, s *SendSlot, sge, recv *libibverbs.Sge) {
			s.Opcode, sge.Length = cmpSwap, 8
		}, locOp, noRecv},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.datagramPair()
			good := SendSlot{ID: 2, Opcode: send}.to(a, b)
			s, sge, recv := good, a.mr.sge(0, 100), b.mr.sge(0, 8192)
			s.ID = 1
			tt.spoil(a, b, &s, &sge, &recv)
			b.postRecv(1, recv)
			b.postRecv(2, b.mr.sge(0, 8192))
			a.post(s, sge)
			a.post(good, a.mr.sge(0, 8))
			n.run()
			if tt.sender != success {
				require.Equal(t, []result{{1, tt.sender}, {2, flushed}}, results(a.send))
				require.Empty(t, results(b.recv))
				return
			}
			require.Equal(t, []result{ok(1), ok(2)}, results(a.send))
			switch tt.recv {
			case noRecv:
				require.Equal(t, []result{ok(1)}, results(b.recv))
			case success:
				require.Equal(t, []result{ok(1), ok(2)}, results(b.recv))
			default:
				require.Equal(t, []result{{1, tt.recv}, {2, flushed}}, results(b.recv))
				require.Empty(t, b.takeEvents())
			}
		})
	}
}

// Datagrams for which there is no receive are gone, and the sender does not
// learn it.
func TestDatagramsWithoutReceive(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	s := SendSlot{Opcode: send}.to(a, b)
	for round := range uint64(10) {
		for range 50 {
			a.postQuiet(s, a.mr.sge(0, 1000))
		}
		s.ID = round
		a.post(s, a.mr.sge(0, 1000))
		n.run()
		require.Equal(t, []result{ok(round)}, results(a.send))
	}
	b.postRecv(1, b.mr.sge(0, 1040))
	n.run()
	require.Empty(t, results(b.recv), "nothing has waited for it")
	a.post(s, a.mr.sge(0, 1000))
	n.run()
	require.Equal(t, []result{ok(1)}, results(b.recv))
}

// A datagram to a queue pair of a connection is dropped, and so is a
// connection's packet to a queue pair of datagrams.
func TestDatagramsAndConnections(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	x, y := n.pair(libibverbs.IBV_QPT_RC, 4096)
	y.postRecv(1, y.mr.sge(0, 4096))
	s := SendSlot{ID: 1, Opcode: send}.to(a, b)
	s.RemoteQPN = y.qp.number
	a.post(s, a.mr.sge(0, 1000))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Empty(t, results(y.recv))

	b.postRecv(2, b.mr.sge(0, 4096))
	x.qp.attr.DestQpNum = b.qp.number
	x.post(SendSlot{ID: 3, Opcode: send}, x.mr.sge(0, 1000))
	n.run()
	require.Equal(t, []result{{3, retryExc}}, results(x.send))
	require.Empty(t, results(b.recv))
}

// A datagram to a group arrives at each of its members, the sender too, but not
// where there is no receive.
func TestMulticastCopies(t *testing.T) {
	group := wire.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	c := n.end(b.node, libibverbs.IBV_QPT_UD, nil, 4096)
	deaf := n.end(b.node, libibverbs.IBV_QPT_UD, nil, 4096)
	outside := n.end(b.node, libibverbs.IBV_QPT_UD, nil, 4096)
	for _, e := range []*end{c, deaf, outside} {
		e.datagrams(e.qp, 0x1111)
	}
	for _, e := range []*end{a, b, c, deaf} {
		require.NoError(t, e.qp.Attach(group))
	}
	for _, e := range []*end{a, b, c, outside} {
		e.postRecv(1, e.mr.sge(0, 4096))
	}
	n.fillRandom(a.mr.memory[8192:])
	s := SendSlot{ID: 1, Opcode: send, AH: a.ah(group), RemoteQPN: multicastQPN, RemoteQKey: 0x1111}
	a.post(s, a.mr.sge(8192, 1000))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	for _, e := range []*end{a, b, c} {
		require.Equal(t, []result{ok(1)}, results(e.recv))
		require.Equal(t, a.mr.memory[8192:9192], e.mr.memory[40:1040])
	}
	require.Empty(t, results(deaf.recv))
	require.Empty(t, results(outside.recv))
}

// A datagram or message of an unreliable connection that is longer than the
// receive, wherever it exceeds it, is lost, and ends nothing: the receive
// serves the next one. So it is with receives that queue pairs share, and for
// each member of a group.
func TestLongForReceive(t *testing.T) {
	const room = 2500 // more than two packets
	for name, kind := range map[string]libibverbs.QpType{"UC": libibverbs.IBV_QPT_UC, "UD": libibverbs.IBV_QPT_UD} {
		for _, shared := range []bool{false, true} {
			for _, sizes := range [][]int{{room}, {0}, {10, 30}, {1024}, {room - 1, 0}} {
				t.Run(fmt.Sprint(name, " ", shared, " ", sizes), func(t *testing.T) {
					n := newNetwork(t, 1)
					d1, d2 := n.node(1), n.node(2)
					var srq *SRQ
					if shared {
						srq = d2.srq(d2.pd(), 8)
					}
					a, b := n.end(d1, kind, nil, 1<<14), n.end(d2, kind, srq, 1<<14)
					members := []*end{b}
					header, good := 0, SendSlot{Opcode: sendImm}
					if kind == libibverbs.IBV_QPT_UD {
						group := wire.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
						members = append(members, n.end(d2, kind, srq, 1<<14))
						a.datagrams(a.qp, 0x1111)
						for _, e := range members {
							e.datagrams(e.qp, 0x1111)
							require.NoError(t, e.qp.Attach(group))
						}
						header, good.AH, good.RemoteQPN, good.RemoteQKey = wire.GRHLen, a.ah(group), multicastQPN, 0x1111
					} else {
						n.join(a, b)
					}
					for _, e := range members {
						for id := range uint64(2) {
							at, sges := 0, []libibverbs.Sge(nil)
							for _, size := range sizes {
								sges = append(sges, e.mr.sge(at, size))
								at += size
							}
							if shared {
								postRecv(t, srq.queue, id, sges...)
							} else {
								e.postRecv(id, sges...)
							}
						}
					}
					sum := 0
					for _, size := range sizes {
						sum += size
					}
					for range 3 {
						a.post(good, a.mr.sge(0, max(sum+1-header, 1)))
					}
					n.run()
					for _, e := range members {
						require.Empty(t, results(e.recv))
						require.Equal(t, libibverbs.IBV_QPS_RTS, e.qp.attr.QpState)
						require.Empty(t, e.takeEvents())
					}
					if sum < header {
						return // there is none that has room
					}
					good.Imm = 5
					a.post(good, a.mr.sge(0, sum-header))
					n.run()
					for _, e := range members {
						c := poll(e.recv.ring)
						require.Len(t, c, 1)
						require.Equal(t, libibverbs.IBV_WC_SUCCESS, c[0].Status)
						require.EqualValues(t, 5, *c[0].ImmData())
						require.EqualValues(t, sum, c[0].ByteLen)
						if !shared {
							require.Zero(t, c[0].WrId)
						}
					}
				})
			}
		}
	}
}

// A receive that waits for a message that fits is flushed as any other.
func TestLongForReceiveThenError(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.datagramPair()
	b.postRecv(1, b.mr.sge(0, 100))
	b.postRecv(2, b.mr.sge(0, 100))
	a.post(SendSlot{Opcode: send}.to(a, b), a.mr.sge(0, 100))
	n.run()
	require.Empty(t, results(b.recv))
	b.modify(libibverbs.IBV_QPS_ERR)
	n.run()
	require.Equal(t, []result{{1, flushed}, {2, flushed}}, results(b.recv))
}
