package ibverbs

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// SetSegments changes what is sent, written or read into.
func (r SendWR) SetSegments(segments ...Segment) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	switch wr.Opcode {
	case libibverbs.IBV_WR_BIND_MW, libibverbs.IBV_WR_LOCAL_INV, libibverbs.IBV_WR_FLUSH, libibverbs.IBV_WR_ATOMIC_WRITE:
		return r.has("segments", wr)
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		if len(segments) != 1 || segments[0].n != atomicSize {
			return r.refuse(wr, cerr.Invalid("an atomic operation has one segment of 8 bytes, for its result"))
		}
		err = written(segments)
	case libibverbs.IBV_WR_RDMA_READ:
		err = written(segments)
	}
	if err != nil {
		return r.refuse(wr, err)
	}
	b, inline := r.batch, SendFlags(wr.SendFlags)&SendInline != 0
	if len(segments) > b.arena.segments {
		return r.refuse(wr, b.arena.refused(segments, false))
	}
	var bytes uint64
	for k := range segments {
		s := &segments[k]
		if !s.sound() || inline {
			return b.setOther(r.i, segments)
		}
		bytes += uint64(s.n)
	}
	if room := b.more[r.i].room; bytes > room {
		return r.refuse(wr, tooLong(bytes, room))
	}
	first := r.i * b.arena.segments
	for k := range segments {
		b.arena.sges[first+k] = segments[k].sge()
		b.owner[first+k] = segments[k].owner()
	}
	wr.NumSge = int32(len(segments))
	runtime.KeepAlive(b)
	return nil
}

// addressable returns nil if this process has the memory of all segments of
// request i.
func (b *SendBatch) addressable(i int) error {
	for k, mr := range b.owners(i) {
		if mr != nil && mr.bytes == nil {
			return notInline(k, mr)
		}
	}
	return nil
}

func notInline(k int, mr *MR) error { return inSegment(k, mr.notInline()) }

func inSegment(k int, err error) error { return fmt.Errorf("segment %d: %w", k, err) }

// readdress changes the segments of request i from the device's addresses to
// this process's, which C reads inline data at, or back.
func (b *SendBatch) readdress(i int, inline bool) {
	sges := b.arena.place(i)
	for k, mr := range b.owners(i) {
		if mr == nil {
			continue
		}
		to := mr.start - addressOf(mr.bytes)
		if inline {
			to = -to
		}
		sges[k].Addr += to
	}
}
