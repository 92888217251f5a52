package ibverbs

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// RemoteBuffer is memory of a peer.
type RemoteBuffer struct {
	Addr uint64 // in the peer's address space
	RKey uint32
	Len  uint64 // bytes
}

// Sub returns n bytes of the buffer from offset on. It does not check bounds; the
// peer's device checks those of the memory region, which may be larger than the
// buffer.
func (r RemoteBuffer) Sub(offset, n uint64) RemoteBuffer {
	return RemoteBuffer{Addr: r.Addr + offset, RKey: r.RKey, Len: n}
}

// Segment is memory in a work request: a piece of a memory region (see
// [MR.Sub]), memory that something else has registered (see [RawSegment]), or
// bytes that are sent inline (see [InlineBytes]).
type Segment struct {
	mr        *MR
	offset, n int
	inline    *byte // of InlineBytes, which have no region; nil for others
}

// Sub returns n bytes of the region from offset on, for a work request. If the
// region does not have them, posting the request fails.
func (mr *MR) Sub(offset, n int) Segment { return Segment{mr: mr, offset: offset, n: n} }

// All returns the whole region, for a work request.
func (mr *MR) All() Segment { return mr.Sub(0, mr.size) }

// Sub returns n bytes of the segment from offset on. If the segment does not
// have them, posting the request fails.
func (s Segment) Sub(offset, n int) Segment {
	if offset < 0 || n < 0 || offset > s.n-n {
		return Segment{mr: outside, offset: offset, n: n}
	}
	return Segment{mr: s.mr, inline: s.inline, offset: s.offset + offset, n: n}
}

// outside is the region of segments that are outside of the one that they are a
// piece of.
var outside = &MR{}

// Bytes returns the memory of the segment, nil if the region does not have it
// or only the device can reach it.
func (s Segment) Bytes() []byte {
	if s.inline != nil {
		return unsafe.Slice(s.inline, s.offset+s.n)[s.offset:]
	}
	if s.inside() != nil || s.mr.bytes == nil {
		return nil
	}
	return s.mr.bytes[s.offset : s.offset+s.n : s.offset+s.n]
}

// Len returns the size in bytes.
func (s Segment) Len() int { return s.n }

// Remote describes the segment to a peer, which may use it as far as the
// region's access flags allow. The key in it is that of the whole region, all of
// which the peer can reach with it. It fails if the region does not have the
// segment.
func (s Segment) Remote() (RemoteBuffer, error) {
	if err := s.inside(); err != nil {
		return RemoteBuffer{}, cerr.Argument("Segment.Remote", "", err)
	}
	if s.mr.keyOnly {
		return RemoteBuffer{}, cerr.Refuse("Segment.Remote", s.mr.object.Name(), "its remote key is not known here")
	}
	return RemoteBuffer{Addr: s.addr(), RKey: s.mr.rkey, Len: uint64(s.n)}, nil
}

// sound reports whether check returns nil. It is small enough to be inlined into
// what adds requests.
func (s *Segment) sound() bool {
	mr := s.mr
	if mr == nil {
		return false
	}
	closed, unusable := mr.object.Closed(), mr.unusable.Load()
	return !closed && !unusable && mr.raw != nil &&
		uint64(s.n) <= 1<<32-1 && uint(s.offset) <= uint(mr.size) && s.n <= mr.size-s.offset
}

// owner returns the region of a sound segment for a batch to keep. It is a copy of
// the pointer that the compiler cannot take for that of InlineBytes, whose memory
// may therefore stay on its function's stack.
func (s *Segment) owner() *MR { return s.mr.itself }

// written returns nil if the device may write to all segments that are sound.
func written(segments []Segment) error {
	for k := range segments {
		if s := &segments[k]; s.mr != nil && s.mr.readOnly && s.n > 0 && s.sound() {
			return cerr.Invalid("segment %d: %s is without AccessLocalWrite, so the device cannot write to it",
				k, s.mr.object.Name())
		}
	}
	return nil
}

// check returns nil if a work request can have the segment.
func (s Segment) check() error {
	if err := s.inside(); err != nil {
		return err
	}
	if uint64(s.n) > 1<<32-1 {
		return cerr.Invalid("segment of %d bytes of %s: a work request's has less than 4 GiB",
			s.n, s.mr.object.Name())
	}
	return nil
}

// inside returns nil if the region has the segment.
func (s Segment) inside() error {
	switch {
	case s.inline != nil:
		return cerr.Invalid("%d bytes from InlineBytes: they can only be sent, with SendInline", s.n)
	case s.mr == outside:
		return cerr.Invalid("segment of %d bytes at %d is outside the segment that it is a piece of", s.n, s.offset)
	case s.mr == nil || s.mr.raw == nil:
		return cerr.Invalid("segment without a memory region")
	case s.mr.object.Closed() || s.mr.unusable.Load():
		return s.mr.usable()
	case s.offset < 0 || s.n < 0 || s.offset > s.mr.size-s.n:
		return cerr.Invalid("segment of %d bytes at %d is outside %s of %d bytes",
			s.n, s.offset, s.mr.object.Name(), s.mr.size)
	}
	return nil
}

func (s Segment) addr() uint64 { return s.mr.start + uint64(s.offset) }

func (s Segment) sge() libibverbs.Sge {
	return libibverbs.Sge{Addr: s.addr(), Length: uint32(s.n), Lkey: s.mr.lkey}
}

func (mr *MR) notInline() error {
	return cerr.Invalid("memory of %s cannot be sent inline: only the device reaches it", mr.object.Name())
}

// RawSegment returns n bytes at an address that requests name by a local key,
// for memory that something else than this package has registered. Only the
// device checks whether the key, the address and the memory are right, and
// nothing keeps the memory there. It has no Bytes and no Remote, and cannot be
// sent inline. It allocates; Sub of what it returns does not.
func RawSegment(addr uint64, n int, lkey uint32) Segment {
	mr := &MR{raw: &libibverbs.Mr{Lkey: lkey}, region: region{start: addr, size: n, lkey: lkey, keyOnly: true}}
	mr.itself = mr
	mr.object.InitUnlisted(fmt.Sprintf("raw memory with key %#x", lkey))
	return mr.All()
}

// noBytes stands for the memory of no bytes.
var noBytes byte

// InlineBytes returns any memory of this process for requests with SendInline;
// without, it is refused. The batch copies it when the request is added or
// changed, so that it can be used for something else at once. A request can
// have up to 4096 bytes so, if the queue pair was made for as many; see
// QPConfig.MaxInline.
func InlineBytes(b []byte) Segment {
	if len(b) == 0 {
		return Segment{inline: &noBytes}
	}
	return Segment{inline: unsafe.SliceData(b), n: len(b)}
}

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
