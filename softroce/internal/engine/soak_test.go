// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

var (
	soakMessages = flag.Int("soak.messages", 6000, "how many messages TestSoak sends")
	soakPairs    = flag.Int("soak.pairs", 12, "between how many pairs of queue pairs")
	soakSeed     = flag.Uint64("soak.seed", 1, "of its choices")
	soakSeeds    = flag.Uint64("soak.seeds", 10, "how many runs there are, each with the next seed")
)

const (
	soakDepth = 16   // messages of a direction that are under way
	soakSize  = 4096 // of a message, at most
)

// What an end's memory has soakDepth places for.
const (
	sendPlaces = iota
	recvPlaces
	writePlaces // the peer writes here
	sourcePlaces
	readPlaces
	kindsOfPlaces

	counterOffset = kindsOfPlaces * soakDepth * soakSize
	soakMemory    = counterOffset + 64
)

func place(kind int, n uint64) int { return (kind*soakDepth + int(n%soakDepth)) * soakSize }

// traffic is what one end sends to another.
type traffic struct {
	from, to *end
	key      uint64
	posted   uint64
	done     uint64
	ops      [soakDepth]op
	expected []op // by the receiver, in this order
	recvs    uint64
	received uint64
	sum      uint64 // of what was added to the receiver's counter
	bySwap   uint64
}

type op struct {
	slot SendSlot
	size int
	n    uint64
	old  uint64 // what an atomic is to find
}

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

func (tr *traffic) opKey(n uint64) uint64 { return tr.key<<32 + n }

// post posts a message of random kind and size.
func (tr *traffic) post(n *network) {
	m, i := tr.from.mr, tr.posted
	o := op{n: i, size: n.random.IntN(soakSize + 1)}
	switch n.random.IntN(4) {
	case 0:
		o.size = n.random.IntN(65)
	case 1:
		o.size = min(soakSize, max(0, n.random.IntN(5)*tr.from.qp.mtu+n.random.IntN(3)-1))
	}
	s := &o.slot
	s.ID, s.Imm = i, uint32(i)
	s.Opcode = []libibverbs.WrOpcode{
		libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM,
		libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP,
		libibverbs.IBV_WR_ATOMIC_WRITE, libibverbs.IBV_WR_FLUSH,
	}[n.random.IntN(9)]
	if i%8 == 7 || n.random.IntN(2) == 0 {
		s.Flags |= uint32(libibverbs.IBV_SEND_SIGNALED)
	}
	if n.random.IntN(8) == 0 {
		s.Flags |= uint32(libibverbs.IBV_SEND_FENCE)
	}
	local := place(sendPlaces, i)
	switch s.Opcode {
	case libibverbs.IBV_WR_RDMA_READ:
		local = place(readPlaces, i)
		source := place(sourcePlaces, i)
		pattern(tr.to.mr.memory[source:source+o.size], tr.opKey(i))
		*s = s.remote(tr.to, source)
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		local, o.size = place(readPlaces, i), 8
		s.CompareAdd = i + 1
		o.old = tr.sum
		tr.sum += s.CompareAdd
		*s = s.remote(tr.to, counterOffset)
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		local, o.size = place(readPlaces, i), 8
		s.CompareAdd, s.Swap = tr.bySwap, i+1
		o.old = tr.bySwap
		tr.bySwap = i + 1
		*s = s.remote(tr.to, counterOffset+8)
	case libibverbs.IBV_WR_ATOMIC_WRITE:
		o.size, s.CompareAdd = 0, tr.opKey(i)
		*s = s.remote(tr.to, counterOffset+16)
	case libibverbs.IBV_WR_FLUSH:
		s.CompareAdd, s.Swap = uint64(o.size), uint64(libibverbs.IBV_FLUSH_GLOBAL)
		*s = s.remote(tr.to, place(writePlaces, i))
		o.size = 0
	default:
		pattern(m.memory[local:local+o.size], tr.opKey(i))
		*s = s.remote(tr.to, place(writePlaces, i))
		if s.Opcode != libibverbs.IBV_WR_RDMA_WRITE {
			tr.expected = append(tr.expected, o)
		}
	}
	if cut := n.random.IntN(o.size + 1); n.random.IntN(2) == 0 {
		tr.from.postQuiet(*s, m.split(local, o.size, cut)...)
	} else {
		tr.from.postQuiet(*s, m.sge(local, o.size))
	}
	tr.ops[i%soakDepth] = o
	tr.posted++
}

// check looks at what a completion says, and at the memory of all messages that
// are done with it.
func (tr *traffic) check(t *testing.T, c Completion) {
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, c.Status, "message %d of pair %d", c.WrId, tr.key)
	require.GreaterOrEqual(t, c.WrId, tr.done)
	for ; tr.done <= c.WrId; tr.done++ {
		o := &tr.ops[tr.done%soakDepth]
		switch o.slot.Opcode {
		case libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
			at := place(writePlaces, o.n)
			require.Equal(t, patternOf(o.size, tr.opKey(o.n)), tr.to.mr.memory[at:at+o.size])
		case libibverbs.IBV_WR_RDMA_READ:
			at := place(readPlaces, o.n)
			require.Equal(t, patternOf(o.size, tr.opKey(o.n)), tr.from.mr.memory[at:at+o.size])
		case libibverbs.IBV_WR_ATOMIC_WRITE: // a later one may be done, too
			require.GreaterOrEqual(t, *word(tr.to.mr.memory, counterOffset+16), o.slot.CompareAdd)
		case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
			require.Equal(t, o.old, *word(tr.from.mr.memory, place(readPlaces, o.n)), "atomic %d of pair %d", o.n, tr.key)
		}
	}
}

// checkReceived looks at a received message.
func (tr *traffic) checkReceived(t *testing.T, c Completion) {
	require.NotEmpty(t, tr.expected, "a message came twice")
	o := tr.expected[0]
	tr.expected = tr.expected[1:]
	require.Equal(t, ok(tr.received), result{c.WrId, c.Status})
	require.Equal(t, uint32(o.size), c.ByteLen)
	if o.slot.Opcode != libibverbs.IBV_WR_SEND {
		require.Equal(t, uint32(o.n), uint32(*c.ImmData()))
	}
	if o.slot.Opcode != libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM {
		at := place(recvPlaces, tr.received)
		require.Equal(t, patternOf(o.size, tr.opKey(o.n)), tr.to.mr.memory[at:at+o.size])
	}
	tr.received++
}

func (tr *traffic) postRecvs() {
	for tr.recvs < tr.received+soakDepth {
		tr.to.postRecv(tr.recvs, tr.to.mr.sge(place(recvPlaces, tr.recvs), soakSize))
		tr.recvs++
	}
}

// Messages of random kinds and sizes between many queue pairs arrive whole, in
// order and once, although packets are lost, repeated, reordered and corrupted.
func TestSoak(t *testing.T) {
	for seed := *soakSeed; seed < *soakSeed+*soakSeeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { soak(t, seed) })
	}
}

func soak(t *testing.T, seed uint64) {
	n := newNetwork(t, seed)
	n.drop, n.duplicate, n.reorder, n.corrupt = 0.01, 0.01, 0.01, 0.01
	for i := range 3 {
		d := n.node(byte(i + 1))
		if seed%2 == 0 {
			d.limit(1 + n.random.IntN(8))
		}
	}
	var all []*traffic
	for i := range *soakPairs {
		from, to := n.nodes[i%3], n.nodes[n.random.IntN(3)]
		var a, b *end
		if i%4 == 3 {
			a, b = n.xrcEnds(from, to, soakMemory)
		} else {
			a, b = n.end(from, libibverbs.IBV_QPT_RC, nil, soakMemory), n.end(to, libibverbs.IBV_QPT_RC, nil, soakMemory)
		}
		n.join(a, b)
		a.qp.mtu = 256 << n.random.IntN(3)
		b.qp.mtu = a.qp.mtu
		for _, e := range []*end{a, b} {
			e.qp.attr.RnrRetry = 7
			e.qp.attr.QpAccessFlags |= libibverbs.IBV_ACCESS_FLUSH_GLOBAL
			e.mr = e.memory(e.pd, soakMemory, allAccess|libibverbs.IBV_ACCESS_FLUSH_GLOBAL)
			e.qp.attr.MinRnrTimer = 1
			e.qp.attr.Timeout = 8
		}
		key := uint64(2 * i)
		all = append(all, &traffic{from: a, to: b, key: key})
		if b.srq == nil { // XRC has one direction
			all = append(all, &traffic{from: b, to: a, key: key + 1})
		}
	}
	quota := uint64(*soakMessages/len(all) + 1)
	for working := true; working; {
		working = false
		for _, tr := range all {
			for tr.posted < quota && tr.posted < tr.done+soakDepth && n.random.IntN(3) > 0 {
				tr.post(n)
			}
			if n.random.IntN(20) == 0 {
				tr.postRecvs()
			}
			for _, c := range poll(tr.from.send.ring) {
				tr.check(t, c)
			}
			for _, c := range poll(tr.to.recv.ring) {
				tr.checkReceived(t, c)
			}
			if tr.posted == quota && tr.done < quota && tr.ops[(quota-1)%soakDepth].slot.Flags&uint32(libibverbs.IBV_SEND_SIGNALED) == 0 {
				// So that the last ones complete, too.
				quota++
			}
			working = working || tr.done < quota
		}
		for range 4 {
			n.step()
		}
	}
	n.run()
	for _, tr := range all {
		require.Empty(t, tr.expected)
		require.Empty(t, poll(tr.from.send.ring))
		require.Empty(t, poll(tr.to.recv.ring))
		require.Equal(t, tr.sum, *word(tr.to.mr.memory, counterOffset))
		require.Equal(t, tr.bySwap, *word(tr.to.mr.memory, counterOffset+8))
		require.Equal(t, libibverbs.IBV_QPS_RTS, tr.from.qp.attr.QpState)
	}
	t.Logf("%d messages in %v of virtual time", uint64(len(all))*quota, n.now)
}
