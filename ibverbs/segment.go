// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// RemoteBuffer describes memory of a peer.
type RemoteBuffer struct {
	Addr uint64 // address in the peer's address space
	RKey uint32 // key of the peer's memory region or window
	Len  uint64 // size in bytes

	// outside marks a result of Sub that is outside the buffer it came
	// from. In such a result, Addr is an offset.
	outside bool
}

// Sub returns n bytes of the buffer starting at offset. If they are outside the
// buffer, requests that have the result are refused, and AppendBinary fails.
// The peer's device checks only the bounds of the memory region, which may be
// larger than the buffer.
func (r RemoteBuffer) Sub(offset, n uint64) RemoteBuffer {
	switch {
	case r.outside:
		return r
	case offset > r.Len || n > r.Len-offset:
		return RemoteBuffer{Addr: offset, Len: n, outside: true}
	}
	return RemoteBuffer{Addr: r.Addr + offset, RKey: r.RKey, Len: n}
}

// check returns an error if the buffer is outside the one it came from.
func (r RemoteBuffer) check() error {
	if r.outside {
		return cerr.Invalid("remote buffer of %d bytes at %d is outside the remote buffer that it is a piece of", r.Len, r.Addr)
	}
	return nil
}

// takes returns an error if the given number of bytes does not fit into the
// buffer.
func (r RemoteBuffer) takes(bytes uint64) error {
	if bytes > r.Len {
		return tooLong(bytes, r.Len)
	}
	return r.check()
}

// Segment is memory for a work request: part of a memory region (see [MR.Sub]),
// memory registered without this package (see [RawSegment]), or bytes to be
// sent inline (see [InlineBytes]).
type Segment struct {
	mr        *MR
	offset, n int
	inline    *byte // bytes of InlineBytes, which have no region; nil for other segments
}

// Sub returns n bytes of the region starting at offset, for a work request. If
// they are outside the region, the batch refuses the request.
func (mr *MR) Sub(offset, n int) Segment { return Segment{mr: mr, offset: offset, n: n} }

// All returns the whole region, for a work request.
func (mr *MR) All() Segment { return mr.Sub(0, mr.size) }

// Sub returns n bytes of the segment starting at offset. If they are outside
// the segment, the batch refuses the request.
func (s Segment) Sub(offset, n int) Segment {
	if offset < 0 || n < 0 || offset > s.n-n {
		return Segment{mr: outside, offset: offset, n: n}
	}
	return Segment{mr: s.mr, inline: s.inline, offset: s.offset + offset, n: n}
}

// outside is the region of segments that are outside the segment they came
// from.
var outside = &MR{}

// Bytes returns the memory of the segment, or nil if the segment is outside its
// region or only the device can access the memory.
func (s Segment) Bytes() []byte {
	if s.inline != nil {
		return unsafe.Slice(s.inline, s.offset+s.n)[s.offset:]
	}
	if s.inside() != nil || s.mr.bytes == nil {
		return nil
	}
	return s.mr.bytes[s.offset : s.offset+s.n : s.offset+s.n]
}

// Len returns the size of the segment in bytes.
func (s Segment) Len() int { return s.n }

// Remote describes the segment to a peer. The region's access flags limit what
// the peer may do. The key is that of the whole region, so the peer can access
// all of the region with it. Remote fails if the segment is outside its region.
func (s Segment) Remote() (RemoteBuffer, error) {
	if err := s.inside(); err != nil {
		return RemoteBuffer{}, cerr.Argument("Segment.Remote", "", err)
	}
	if s.mr.keyOnly {
		return RemoteBuffer{}, cerr.Refuse("Segment.Remote", s.mr.object.Name(), "the remote key of memory from RawSegment is not known")
	}
	return RemoteBuffer{Addr: s.addr(), RKey: s.mr.rkey, Len: uint64(s.n)}, nil
}

// isValid reports whether check would return nil. It is small enough to be
// inlined into the functions that add requests.
func (s *Segment) isValid() bool {
	mr := s.mr
	if mr == nil {
		return false
	}
	closed, unusable := mr.object.Closed(), mr.unusable.Load()
	return !closed && !unusable && mr.raw != nil &&
		uint64(s.n) <= 1<<32-1 && uint(s.offset) <= uint(mr.size) && s.n <= mr.size-s.offset
}

// owner returns the region of a valid segment, for a batch to keep. It does not
// return s.mr: if it did, the compiler would assume that the batch also keeps
// the memory of InlineBytes, and would move that memory to the heap.
func (s *Segment) owner() *MR { return s.mr.itself }

// written returns an error if the device may not write to one of the segments.
// It ignores segments that are not valid.
func written(segments []Segment) error {
	for k := range segments {
		if s := &segments[k]; s.mr != nil && s.mr.readOnly && s.isValid() {
			if err := s.checkWrite(); err != nil {
				return inSegment(k, err)
			}
		}
	}
	return nil
}

// sinks returns an error if an RDMA read may not go into one of the segments.
// On iWARP, that takes remote write access. It ignores segments that are not
// valid.
func sinks(segments []Segment) error {
	if err := written(segments); err != nil {
		return err
	}
	for k := range segments {
		if s := &segments[k]; s.mr != nil && s.mr.noSink && s.n > 0 && s.isValid() {
			return inSegment(k, cerr.Invalid(
				"%s is without AccessRemoteWrite, which the memory of an RDMA read needs on iWARP", s.mr.object.Name()))
		}
	}
	return nil
}

// checkWrite returns an error if the device may not write to a valid segment.
func (s Segment) checkWrite() error {
	if s.mr.readOnly && s.n > 0 {
		return cerr.Invalid("%s is without AccessLocalWrite, so the device cannot write to it", s.mr.object.Name())
	}
	return nil
}

// check returns an error if a work request cannot have the segment.
func (s Segment) check() error {
	if err := s.inside(); err != nil {
		return err
	}
	if uint64(s.n) > 1<<32-1 {
		return cerr.Invalid("segment of %s has %d bytes, more than %d",
			s.mr.object.Name(), s.n, uint32(1<<32-1))
	}
	return nil
}

// inside returns an error if the segment is outside its region.
func (s Segment) inside() error {
	switch {
	case s.inline != nil:
		return cerr.Invalid("a segment from InlineBytes, of %d bytes, can only be sent, with SendInline", s.n)
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

// checkRecv returns an error unless the program can copy a received message to
// the segment: its memory must be mapped, and a device must be allowed to write
// to it.
func (s Segment) checkRecv() error {
	if err := s.check(); err != nil {
		return err
	}
	if s.mr.bytes == nil && s.n > 0 {
		return cerr.Invalid("the memory of %s is not mapped, so no message can be copied to it", s.mr.object.Name())
	}
	return s.checkWrite()
}

// fill copies the start of data to a segment that passed checkRecv or is from
// InlineBytes, and returns the rest. It fails if the region was closed after
// that check.
func (s Segment) fill(data []byte) (rest []byte, err error) {
	if s.inline != nil {
		return data[copy(s.Bytes(), data):], nil
	}
	if err := s.mr.self().Use(); err != nil {
		return data, err
	}
	defer s.mr.object.Done()
	if err := s.check(); err != nil {
		return data, err
	}
	return data[copy(s.mr.bytes[s.offset:s.offset+s.n], data):], nil
}

func (s Segment) addr() uint64 { return s.mr.start + uint64(s.offset) }

func (s Segment) sge() libibverbs.Sge {
	return libibverbs.Sge{Addr: s.addr(), Length: uint32(s.n), Lkey: s.mr.lkey}
}

func (mr *MR) notInline() error {
	return cerr.Invalid("the memory of %s cannot be sent inline: only the device can access it", mr.object.Name())
}

// RawSegment returns n bytes at addr with the local key lkey, for memory that
// was registered without this package. Only the device checks the key and the
// address, and nothing keeps the memory in place. The segment has no Bytes and
// no Remote, and cannot be sent inline. RawSegment allocates; Sub on its result
// does not.
func RawSegment(addr uint64, n int, lkey uint32) Segment {
	mr := &MR{raw: &libibverbs.Mr{Lkey: lkey}, region: region{start: addr, size: n, lkey: lkey, keyOnly: true}}
	mr.itself = mr
	mr.object.InitUnlisted(fmt.Sprintf("raw memory with key %#x", lkey))
	return mr.All()
}

// noBytes is the memory of an empty segment from InlineBytes.
var noBytes byte

// InlineBytes returns a segment of any memory of this process, for requests
// with SendInline. A batch refuses the segment in other requests. The batch
// copies the bytes when the request is added or changed, so b can be reused at
// once. A request can have at most 4096 such bytes, and no more than the queue
// pair was made for; see QPConfig.MaxInline.
func InlineBytes(b []byte) Segment {
	if len(b) == 0 {
		return Segment{inline: &noBytes}
	}
	return Segment{inline: unsafe.SliceData(b), n: len(b)}
}

// SetSegments changes the memory to send or write from, or to read into.
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
			return r.refuse(wr, cerr.Invalid("an atomic operation needs one segment of 8 bytes, for its result"))
		}
		err = written(segments)
	case libibverbs.IBV_WR_RDMA_READ:
		err = sinks(segments)
	}
	if err != nil {
		return r.refuse(wr, err)
	}
	b, inline := r.batch, wr.SendFlags&SendInline != 0
	if len(segments) > b.arena.segments {
		return r.refuse(wr, b.arena.refused(segments, false))
	}
	var bytes uint64
	for k := range segments {
		s := &segments[k]
		if !s.isValid() || inline {
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

// addressable returns an error if this process cannot access the memory of all
// segments of request i.
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

// readdress changes the addresses in the segments of request i. If inline is
// set, it replaces addresses for the device by addresses in this process, where
// C reads inline data. Otherwise, it does the reverse.
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
