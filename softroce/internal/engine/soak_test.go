// SPDX-License-Identifier: Apache-2.0

//go:build linux

package engine

import (
	"encoding/binary"
	"flag"
	"fmt"
	"slices"
	"syscall"
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

// soakEnd is an end with memory of some kind, all of whose operations are
// counted.
type soakEnd struct {
	*end
	bytes   []byte
	null    *MR // region without memory
	changes func() counts
	counted counts // what the counters are to have
}

// add counts a request as each operation of ops.
func (e *soakEnd) add(ops libibverbs.QpAttachCompCntrOp) {
	for op := countSends; op <= countRemoteWrites; op <<= 1 {
		if ops&op != 0 {
			e.counted[op] = [2]uint64{e.counted[op][0] + 1, 0}
		}
	}
}

// traffic is what one end sends to another.
type traffic struct {
	from, to *soakEnd
	window   *MW    // of type 2, to all of the receiver's memory; nil: that cannot have one
	bound    uint32 // key of the window; 0: it is not bound, or a message that invalidates it is under way
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
	null bool   // whether the region without memory takes the place of the sender's memory
}

// data returns the bytes that a message moves.
func (tr *traffic) data(o *op) []byte {
	if o.null {
		return make([]byte, o.size)
	}
	return patternOf(o.size, tr.opKey(o.n))
}

// countedAs has what counters know a request as, at both of its ends.
var countedAs = map[libibverbs.WrOpcode][2]libibverbs.QpAttachCompCntrOp{
	libibverbs.IBV_WR_SEND:                {countSends, countRecvs},
	libibverbs.IBV_WR_SEND_WITH_IMM:       {countSends, countRecvs},
	libibverbs.IBV_WR_SEND_WITH_INV:       {countSends, countRecvs},
	libibverbs.IBV_WR_RDMA_WRITE:          {countWrites, countRemoteWrites},
	libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM: {countWrites, countRemoteWrites | countRecvs},
	libibverbs.IBV_WR_RDMA_READ:           {countReads, countRemoteReads},
}

func (tr *traffic) opKey(n uint64) uint64 { return tr.key<<32 + n }

// post posts a message of random kind and size.
func (tr *traffic) post(n *network) {
	i := tr.posted
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
		libibverbs.IBV_WR_ATOMIC_WRITE, libibverbs.IBV_WR_FLUSH, libibverbs.IBV_WR_SEND_WITH_INV,
	}[n.random.IntN(10)]
	if s.Opcode == libibverbs.IBV_WR_FLUSH && tr.to.mr.dm != nil || s.Opcode == libibverbs.IBV_WR_SEND_WITH_INV && tr.bound == 0 {
		s.Opcode = libibverbs.IBV_WR_SEND
	}
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
		pattern(tr.to.bytes[source:source+o.size], tr.opKey(i))
		*s = tr.remote(n, *s, source)
		o.null = n.random.IntN(8) == 0
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		local, o.size = place(readPlaces, i), 8
		s.CompareAdd = i + 1
		o.old = tr.sum
		tr.sum += s.CompareAdd
		*s = tr.remote(n, *s, counterOffset)
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		local, o.size = place(readPlaces, i), 8
		s.CompareAdd, s.Swap = tr.bySwap, i+1
		o.old = tr.bySwap
		tr.bySwap = i + 1
		*s = tr.remote(n, *s, counterOffset+8)
	case libibverbs.IBV_WR_ATOMIC_WRITE:
		o.size, s.CompareAdd = 0, tr.opKey(i)
		*s = tr.remote(n, *s, counterOffset+16)
	case libibverbs.IBV_WR_FLUSH:
		s.CompareAdd, s.Swap = uint64(o.size), uint64(libibverbs.IBV_FLUSH_GLOBAL)
		*s = tr.remote(n, *s, place(writePlaces, i))
		o.size = 0
	default:
		pattern(tr.from.bytes[local:local+o.size], tr.opKey(i))
		o.null = n.random.IntN(8) == 0
		*s = tr.remote(n, *s, place(writePlaces, i))
		if s.Opcode == libibverbs.IBV_WR_SEND_WITH_INV {
			s.Imm, tr.bound = tr.bound, 0
			s.Flags |= uint32(libibverbs.IBV_SEND_FENCE) // a lost answer to a read is asked for again, with the key
		}
		if s.Opcode != libibverbs.IBV_WR_RDMA_WRITE {
			tr.expected = append(tr.expected, o)
		}
	}
	tr.from.add(countedAs[s.Opcode][0])
	tr.to.add(countedAs[s.Opcode][1])
	m := tr.from.mr
	if o.null {
		m = tr.from.null
	}
	if cut := n.random.IntN(o.size + 1); n.random.IntN(2) == 0 {
		tr.from.postQuiet(*s, m.split(local, o.size, cut)...)
	} else {
		tr.from.postQuiet(*s, m.sge(local, o.size))
	}
	tr.ops[i%soakDepth] = o
	tr.posted++
}

// remote makes s refer to the receiver's memory at offset, by the key of the
// region or of the window.
func (tr *traffic) remote(n *network, s SendSlot, offset int) SendSlot {
	s = s.remote(tr.to.end, offset)
	if tr.bound != 0 && n.random.IntN(2) == 0 {
		s.RKey = tr.bound
	}
	return s
}

// invalidates reports whether a message that invalidates the window is under
// way.
func (tr *traffic) invalidates() bool {
	return slices.ContainsFunc(tr.expected, func(o op) bool { return o.slot.Opcode == libibverbs.IBV_WR_SEND_WITH_INV })
}

// rebind lets the receiver bind the window again after a message has
// invalidated it.
func (tr *traffic) rebind() {
	w := tr.window
	s := bindSlot(w, tr.to.mr, 0, soakMemory, tr.to.mr.access&(remoteAccess|flushAccess))
	// Signaled, since the other direction, which uses the same queue, may be
	// over: then no later completion frees the place in the queue.
	s.ID, s.Flags = bindID, uint32(libibverbs.IBV_SEND_SIGNALED)
	tr.to.postQuiet(*s)
}

// bindID is the ID of requests that bind windows.
const bindID = 1 << 63

// sent returns the new completions of the sender's messages.
func (tr *traffic) sent(t *testing.T) []Completion {
	return slices.DeleteFunc(poll(tr.from.send.ring), func(c Completion) bool {
		if c.WrId != bindID {
			return false
		}
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, c.Status)
		return true
	})
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
			require.Equal(t, tr.data(o), tr.to.bytes[at:at+o.size])
		case libibverbs.IBV_WR_RDMA_READ:
			if at := place(readPlaces, o.n); !o.null {
				require.Equal(t, tr.data(o), tr.from.bytes[at:at+o.size])
			}
		case libibverbs.IBV_WR_ATOMIC_WRITE: // a later one may be done, too
			require.GreaterOrEqual(t, *word(tr.to.bytes, counterOffset+16), o.slot.CompareAdd)
		case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
			require.Equal(t, o.old, *word(tr.from.bytes, place(readPlaces, o.n)), "atomic %d of pair %d", o.n, tr.key)
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
	switch o.slot.Opcode {
	case libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
		require.Equal(t, uint32(o.n), uint32(*c.ImmData()))
	case libibverbs.IBV_WR_SEND_WITH_INV:
		require.Equal(t, libibverbs.IBV_WC_WITH_INV, c.WcFlags&libibverbs.IBV_WC_WITH_INV)
		require.Equal(t, o.slot.Imm, *c.InvalidatedRkey())
		require.Nil(t, tr.window.mr)
		tr.rebind()
	}
	if o.slot.Opcode != libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM {
		at := place(recvPlaces, tr.received)
		require.Equal(t, tr.data(&o), tr.to.bytes[at:at+o.size])
	}
	tr.received++
}

func (tr *traffic) postRecvs() {
	for tr.recvs < tr.received+soakDepth {
		tr.to.postRecv(tr.recvs, tr.to.mr.sge(place(recvPlaces, tr.recvs), soakSize))
		tr.recvs++
	}
}

// give gives the end memory of some kind, and what goes with it. The memory may
// be the device's, if that has enough, or paged on demand.
func (n *network) give(e *end, kind int) *soakEnd {
	s := &soakEnd{end: e, counted: counts{}}
	const access = allAccess | libibverbs.IBV_ACCESS_FLUSH_GLOBAL
	var err error
	switch {
	case kind%3 == 1 && e.limits.DM-uint32(e.dm) >= 2*soakMemory:
		dm := e.dmem(soakMemory)
		s.bytes = dm.Bytes()
		e.mr, err = e.pd.RegisterDM(dm, 0, soakMemory, remoteAccess|localWrite|zeroBased)
	case kind%3 == 2:
		s.bytes, err = syscall.Mmap(-1, 0, soakMemory, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_SHARED)
		require.NoError(n.t, err)
		n.t.Cleanup(func() { require.NoError(n.t, syscall.Munmap(s.bytes)) })
		e.mr, err = e.pd.RegisterOnDemand(addressOf(s.bytes), soakMemory, addressOf(s.bytes), access|onDemand)
	default:
		e.mr = e.memory(e.pd, soakMemory, access)
		s.bytes = e.mr.memory
	}
	require.NoError(n.t, err)
	s.null, err = e.pd.AllocNullMR()
	require.NoError(n.t, err)
	s.changes = e.perOp(libibverbs.IBV_COMP_CNTR_TYPE_WRS)
	return s
}

// page takes pages of an end's memory away, which the system brings back with
// their content, or asks the device to fetch them.
func (e *soakEnd) page(n *network) {
	if !e.mr.paged {
		return
	}
	if from := n.random.IntN(soakMemory / pageSize); n.random.IntN(2) == 0 {
		_, err := e.pd.Prefetch(e.mr.iova+uint64(from*pageSize), pageSize, e.mr.key, true)
		require.NoError(n.t, err)
	} else {
		require.NoError(n.t, syscall.Madvise(e.bytes[from*pageSize:][:pageSize], syscall.MADV_DONTNEED))
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
	limited := seed%2 == 0
	for i := range 3 {
		d := n.node(byte(i + 1))
		if limited {
			d.limit(1 + n.random.IntN(8))
		}
	}
	// In some runs, what depends on answers is shown only now and then, and
	// acknowledgements that are not awaited are heard late.
	var gates []*gate
	if merged := seed%4 > 1; merged {
		for _, d := range n.nodes {
			d.config.Merges = func() bool { return n.random.IntN(4) > 0 }
			d.config.LongPacket = 1 << 15
		}
	}
	if seed%3 == 0 {
		for _, d := range n.nodes {
			gates = append(gates, &gate{ways: map[uint32]*gateWay{}})
			d.config.Outgoing = gates[len(gates)-1]
			d.lazy = &laziness{}
			d.config.Acks = d.lazy
		}
	}
	show := func() {
		for i, g := range gates {
			g.open = true
			n.nodes[i].Publish()
			g.open = false
		}
	}
	var all []*traffic
	var tags []*tagTraffic
	var ends []*soakEnd
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
			e.qp.attr.MinRnrTimer = 1
			e.qp.attr.Timeout = 8
		}
		key := uint64(2 * i)
		x, y := n.give(a, i+int(seed)), n.give(b, n.random.IntN(3))
		ends = append(ends, x, y)
		all = append(all, &traffic{from: x, to: y, key: key})
		if b.srq == nil { // XRC has one direction, and no windows of type 2
			all = append(all, &traffic{from: y, to: x, key: key + 1})
			for _, tr := range all[len(all)-2:] {
				if tr.to.mr.dm == nil {
					tr.window = tr.to.window(tr.to.pd, libibverbs.IBV_MW_TYPE_2)
					tr.rebind()
				}
			}
		}
	}
	for i := range 3 {
		tags = append(tags, n.newTagTraffic(uint64(i)))
	}
	quota := uint64(*soakMessages/len(all) + 1)
	for working := true; working; {
		working = false
		shown := n.random.IntN(2) == 0 || gates == nil
		if shown {
			show()
		}
		for _, tr := range all {
			for tr.posted < quota && tr.posted < tr.done+soakDepth && n.random.IntN(3) > 0 {
				tr.post(n)
			}
			if n.random.IntN(20) == 0 {
				tr.postRecvs()
			}
			if shown {
				for _, c := range tr.sent(t) {
					tr.check(t, c)
				}
				for _, c := range poll(tr.to.recv.ring) {
					tr.checkReceived(t, c)
				}
			}
			if tr.posted == quota && tr.done < quota && tr.ops[(quota-1)%soakDepth].slot.Flags&uint32(libibverbs.IBV_SEND_SIGNALED) == 0 {
				// So that the last ones complete, too.
				quota++
			}
			if tr.window != nil && tr.bound == 0 && tr.window.mr != nil && !tr.invalidates() {
				tr.bound = tr.window.key
			}
			working = working || tr.done < quota
		}
		for _, tr := range tags {
			working = tr.work(quota, shown) || working
		}
		if n.random.IntN(20) == 0 {
			ends[n.random.IntN(len(ends))].page(n)
		}
		for range 4 {
			n.step()
		}
	}
	n.run()
	show()
	n.run()
	show()
	for _, tr := range all {
		require.Empty(t, tr.expected)
		require.Empty(t, tr.sent(t))
		require.Empty(t, poll(tr.to.recv.ring))
		require.Equal(t, tr.sum, *word(tr.to.bytes, counterOffset))
		require.Equal(t, tr.bySwap, *word(tr.to.bytes, counterOffset+8))
		require.Equal(t, libibverbs.IBV_QPS_RTS, tr.from.qp.attr.QpState)
	}
	for i, e := range ends {
		counted := e.changes()
		if limited { // long reads come in parts
			require.GreaterOrEqual(t, counted[countRemoteReads][0], e.counted[countRemoteReads][0])
			delete(counted, countRemoteReads)
			delete(e.counted, countRemoteReads)
		}
		require.Equal(t, e.counted, counted, "end %d", i)
	}
	t.Logf("%d messages in %v of virtual time", uint64(len(all))*quota, n.now)
}

// tagTraffic is what one end sends to the tag list of another. The receiving
// end adds and deletes receives at any time.
type tagTraffic struct {
	*tagPair
	key       uint64
	sent      uint64
	sentDone  uint64
	ended     uint64             // messages up to this one have arrived
	arrived   map[uint64]bool    // others that have arrived
	messages  [tagDepth]tagged   // under way: tag, length, and the opcode IBV_WC_TM_NO_TAG for those without a tag
	list      map[uint64]*listed // receives in the list, by their IDs
	places    [tagDepth]bool     // whether a receive of the list has the place
	plain     int                // receives that are posted outside the list
	posted    uint64             // of these, since the beginning
	handled   uint32
	recvID    uint64
	fins, end int // messages that end a rendezvous, and rendezvous that have ended
}

// listed is a receive in the list.
type listed struct {
	handle    uint32
	tag, mask uint64
	place     int
	message   uint64 // that has matched, if there is one
	matched   bool
}

const (
	tagDepth = 8
	tagPlace = 2048
	tagSize  = 1500
)

func (n *network) newTagTraffic(key uint64) *tagTraffic {
	tr := &tagTraffic{tagPair: n.tagPair(true, tagDepth, 2*tagDepth), key: 1000 + key, arrived: map[uint64]bool{}, list: map[uint64]*listed{}}
	for _, e := range []*end{tr.a, tr.b} {
		e.qp.attr.RnrRetry, e.qp.attr.MinRnrTimer, e.qp.attr.Timeout = 7, 1, 8
	}
	return tr
}

func (tr *tagTraffic) data(i uint64) []byte {
	return patternOf(int(tr.messages[i%tagDepth].length), tr.key<<32+i)
}

// send sends a message of random kind.
func (tr *tagTraffic) send() {
	i := tr.sent
	tr.sent++
	m := &tr.messages[i%tagDepth]
	*m = tagged{tag: uint64(tr.random.IntN(4)), length: uint32(tr.random.IntN(tagSize - tagHeaderLen))}
	kind := []libibverbs.TmhOp{libibverbs.IBV_TMH_EAGER, libibverbs.IBV_TMH_EAGER, libibverbs.IBV_TMH_RNDV, libibverbs.IBV_TMH_NO_TAG}[tr.random.IntN(4)]
	if kind == libibverbs.IBV_TMH_NO_TAG {
		m.opcode = tmNone
	}
	at := int(i%tagDepth) * tagPlace
	b := tr.a.mr.memory[at:]
	clear(b[:tagHeaderLen])
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[4:], uint32(i))
	binary.BigEndian.PutUint64(b[8:], m.tag)
	n := tagHeaderLen
	if kind == libibverbs.IBV_TMH_RNDV {
		data := tagDepth*tagPlace + at
		copy(tr.a.mr.memory[data:], tr.data(i))
		n += copy(b[tagHeaderLen:], tr.rndv(data, int(m.length)))
		m.opcode = libibverbs.IBV_WC_RDMA_READ
	} else {
		n += copy(b[tagHeaderLen:], tr.data(i))
	}
	tr.a.post(SendSlot{ID: i, Opcode: libibverbs.IBV_WR_SEND}, tr.a.mr.split(at, n, tr.random.IntN(n))...)
}

// work lets both ends do something, and poll completions if shown is true. It
// returns whether messages are left.
func (tr *tagTraffic) work(quota uint64, shown bool) bool {
	t := tr.t
	if shown {
		for _, c := range poll(tr.a.send.ring) {
			require.Equal(t, ok(tr.sentDone), result{c.WrId, c.Status})
			tr.sentDone++
		}
		for _, c := range poll(tr.a.recv.ring) {
			require.Equal(t, success, c.Status)
			require.EqualValues(t, rendezvousLen, c.ByteLen)
			tr.fins++
		}
		for _, c := range poll(tr.cq.ring) {
			tr.check(c)
		}
	}
	if tr.sent < quota && tr.sent < min(tr.ended, tr.sentDone)+tagDepth {
		tr.send()
	}
	for tr.a.qp.recv.Posted-tr.a.qp.recv.Freed < 2*tagDepth {
		tr.a.postRecv(0, tr.a.mr.sge(2*tagDepth*tagPlace, 64))
	}
	switch tr.random.IntN(8) {
	case 0, 1, 2:
		tr.addOne()
	case 3:
		for id, r := range tr.list {
			if !r.matched {
				tr.op(libibverbs.IBV_WR_TAG_DEL, id, func(op *libibverbs.OpsWr) { op.Tm.Handle = r.handle })
			}
			break
		}
	case 4:
		if tr.plain < tagDepth {
			tr.recv(tr.posted, tr.b.mr.sge(tagDepth*tagPlace+int(tr.posted%tagDepth)*tagPlace, tagPlace))
			tr.posted++
			tr.plain++
		}
	}
	return tr.ended < quota || tr.sentDone < quota || tr.fins < tr.end
}

// addOne adds a receive to the list, if there is room.
func (tr *tagTraffic) addOne() {
	place := slices.Index(tr.places[:], false)
	if place < 0 {
		return
	}
	r := &listed{place: place}
	if tr.random.IntN(4) > 0 {
		r.tag, r.mask = uint64(tr.random.IntN(4)), 3
	}
	tr.recvID++
	r.handle = tr.tagPair.add(tr.recvID, r.tag, r.mask, tr.b.mr.split(place*tagPlace, tagPlace, tr.random.IntN(tagPlace))...)
	tr.list[tr.recvID], tr.places[place] = r, true
}

// check looks at a completion of the queue with the tag list.
func (tr *tagTraffic) check(c Completion) {
	t := tr.t
	forget := func() {
		tr.places[tr.list[c.WrId].place] = false
		delete(tr.list, c.WrId)
	}
	switch {
	case c.Opcode == tmDel:
		if c.Status == success {
			require.False(t, tr.list[c.WrId].matched)
			forget()
		} else {
			require.Equal(t, libibverbs.IBV_WC_TM_ERR, c.Status)
		}
	case c.WcFlags&(match|valid) != 0:
		require.Equal(t, success, c.Status)
		r := tr.list[c.WrId]
		require.NotNil(t, r, "receive %d completed again", c.WrId)
		if c.WcFlags&match != 0 {
			require.False(t, r.matched)
			require.Equal(t, r.tag, c.Tag&r.mask)
			r.matched, r.message = true, tr.number(c.TagContext)
			require.Equal(t, tr.messages[r.message%tagDepth].tag, c.Tag)
		}
		if c.WcFlags&valid != 0 {
			require.True(t, r.matched)
			require.Equal(t, tr.messages[r.message%tagDepth].length, c.ByteLen)
			require.Equal(t, tr.data(r.message), tr.b.mr.memory[r.place*tagPlace:][:c.ByteLen])
			if tr.messages[r.message%tagDepth].opcode == libibverbs.IBV_WC_RDMA_READ {
				tr.end++
			}
			tr.arrive(r.message)
			forget()
		}
	case c.Opcode == tmRecv || c.Opcode == tmNone:
		require.Equal(t, success, c.Status)
		tr.plain--
		b := tr.b.mr.memory[tagDepth*tagPlace+int(c.WrId%tagDepth)*tagPlace:][:c.ByteLen]
		i := tr.number(binary.BigEndian.Uint32(b[4:]))
		m := tr.messages[i%tagDepth]
		require.Equal(t, c.Opcode == tmNone, m.opcode == tmNone)
		if m.opcode != libibverbs.IBV_WC_RDMA_READ {
			require.Equal(t, tr.data(i), b[tagHeaderLen:])
		}
		if c.Opcode == tmRecv {
			tr.handled++
			tr.sync(tr.handled)
		}
		tr.arrive(i)
	default:
		require.Fail(t, "unexpected completion", "%+v", c)
	}
}

// number returns the number of a message under way, of which low has the lower
// bits.
func (tr *tagTraffic) number(low uint32) uint64 {
	i := tr.ended + uint64(low-uint32(tr.ended))
	require.Less(tr.t, i, tr.sent, "message %d", low)
	require.False(tr.t, tr.arrived[i], "message %d came twice", i)
	return i
}

func (tr *tagTraffic) arrive(i uint64) {
	tr.arrived[i] = true
	for ; tr.arrived[tr.ended]; tr.ended++ {
		delete(tr.arrived, tr.ended)
	}
}
