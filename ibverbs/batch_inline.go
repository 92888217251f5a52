package ibverbs

import (
	"fmt"
	"math/bits"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
)

// maxCopied is how many bytes of InlineBytes a request can have, which is more
// than any device takes inline.
const maxCopied = 4096

// copies is memory outside of Go's heap where a batch keeps what InlineBytes
// gave: that of request i is in slot i.
type copies struct {
	memory []byte
	slot   int // bytes, a power of two
}

func newCopies(requests, slot int) (*copies, error) {
	memory, err := mem.Map(requests * slot)
	if err != nil {
		return nil, fmt.Errorf("memory for %d bytes inline of each of %d requests: %w", slot, requests, err)
	}
	c := &copies{memory, slot}
	runtime.AddCleanup(c, func(m []byte) { _ = mem.Unmap(m) }, memory) // as an arena's
	return c, nil
}

func (c *copies) of(request int) []byte { return c.memory[request*c.slot:][:c.slot] }

// reserve makes each slot of the batch large enough for n bytes.
func (b *SendBatch) reserve(n uint64) error {
	if b.copies != nil && n <= uint64(b.copies.slot) {
		return nil
	}
	larger, err := newCopies(len(b.arena.wrs), 1<<bits.Len64(max(n, 64)-1))
	if err != nil {
		return err
	}
	if old := b.copies; old != nil {
		for i := range b.arena.wrs {
			copy(larger.of(i), old.of(i))
			// Segments that are not in use are changed too, which does no harm.
			moved := addressOf(larger.of(i)) - addressOf(old.of(i))
			for k := range b.arena.place(i) {
				if b.owner[i*b.arena.segments+k] == nil {
					b.arena.sges[i*b.arena.segments+k].Addr += moved
				}
			}
		}
	}
	b.copies = larger
	return nil
}

// addOther is the rest of add, for segments of which not all are sound.
func (b *SendBatch) addOther(i int, segments []Segment) (*libibverbs.SendWr, error) {
	if err := b.setOther(i, segments); err != nil {
		b.disown(i)
		return nil, err
	}
	wr := &b.arena.wrs[i]
	if SendFlags(wr.SendFlags)&SendInline != 0 {
		b.holds++
	}
	b.arena.n = i + 1
	runtime.KeepAlive(b)
	return wr, nil
}

// setOther writes the segments of request i, whatever they are.
func (b *SendBatch) setOther(i int, segments []Segment) error {
	wr := &b.arena.wrs[i]
	inline := SendFlags(wr.SendFlags)&SendInline != 0
	if err := b.arena.check(segments, copiesFor(wr)); err != nil {
		return refusedSend(wr.Opcode, i, err)
	}
	var bytes, copied uint64
	copies := false
	for k := range segments {
		s := &segments[k]
		bytes += uint64(s.n)
		switch {
		case s.inline != nil:
			copies, copied = true, copied+uint64(s.n)
		case inline && s.mr.bytes == nil:
			return refusedSend(wr.Opcode, i, notInline(k, s.mr))
		}
	}
	if room := b.more[i].room; bytes > room {
		return refusedSend(wr.Opcode, i, tooLong(bytes, room))
	}
	if copied > maxCopied {
		return refusedSend(wr.Opcode, i, cerr.Invalid("%d bytes from InlineBytes, more than %d", copied, maxCopied))
	}
	if copies {
		if err := b.reserve(copied); err != nil {
			return err
		}
	}
	used := 0
	for k := range segments {
		s, at := &segments[k], i*b.arena.segments+k
		if s.inline == nil {
			b.arena.sges[at], b.owner[at] = s.sge(), s.owner()
			continue
		}
		place := b.copies.of(i)[used:]
		used += copy(place, s.Bytes())
		b.arena.sges[at], b.owner[at] = libibverbs.Sge{Addr: addressOf(place), Length: uint32(s.n)}, nil
	}
	wr.NumSge = int32(len(segments))
	if inline {
		b.readdress(i, true)
		b.stale = true
	}
	runtime.KeepAlive(b)
	return nil
}

// copiesFor reports whether a request can have InlineBytes: it sends, and C
// copies what it sends.
func copiesFor(wr *libibverbs.SendWr) bool {
	switch wr.Opcode {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return false
	}
	return SendFlags(wr.SendFlags)&SendInline != 0
}

// copied returns the index of a segment of request i that InlineBytes gave, -1
// if there is none.
func (b *SendBatch) copied(i int) int {
	for k, mr := range b.owners(i) {
		if mr == nil {
			return k
		}
	}
	return -1
}
