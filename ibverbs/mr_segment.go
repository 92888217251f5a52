package ibverbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RemoteBuffer is memory of a peer.
type RemoteBuffer struct {
	Addr uint64 // in the peer's address space
	RKey uint32
	Len  uint64 // bytes
}

// Sub returns n bytes of the buffer from offset on. It does not check bounds;
// the peer's device does.
func (r RemoteBuffer) Sub(offset, n uint64) RemoteBuffer {
	return RemoteBuffer{Addr: r.Addr + offset, RKey: r.RKey, Len: n}
}

// Segment is a piece of a memory region in a work request.
type Segment struct {
	mr        *MR
	offset, n int
}

// Sub returns n bytes of the region from offset on, for a work request. If the
// region does not have them, posting the request fails.
func (mr *MR) Sub(offset, n int) Segment { return Segment{mr: mr, offset: offset, n: n} }

// All returns the whole region, for a work request.
func (mr *MR) All() Segment { return mr.Sub(0, mr.size) }

// Bytes returns the memory of the segment, nil if the region does not have it
// or only the device can reach it.
func (s Segment) Bytes() []byte {
	if s.inside() != nil || s.mr.bytes == nil {
		return nil
	}
	return s.mr.bytes[s.offset : s.offset+s.n : s.offset+s.n]
}

// Len returns the size in bytes.
func (s Segment) Len() int { return s.n }

// Remote describes the segment to a peer, which may use it as far as the
// region's access flags allow. It fails if the region does not have it.
func (s Segment) Remote() (RemoteBuffer, error) {
	if err := s.inside(); err != nil {
		return RemoteBuffer{}, err
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

// check returns nil if a work request can have the segment.
func (s Segment) check() error {
	if err := s.inside(); err != nil {
		return err
	}
	if uint64(s.n) > 1<<32-1 {
		return fmt.Errorf("segment of %d bytes of %s: a work request's has less than 4 GiB: %w",
			s.n, s.mr.object.Name(), syscall.EINVAL)
	}
	return nil
}

// inside returns nil if the region has the segment.
func (s Segment) inside() error {
	switch {
	case s.mr == nil || s.mr.raw == nil:
		return fmt.Errorf("segment without a memory region: %w", syscall.EINVAL)
	case s.mr.object.Closed() || s.mr.unusable.Load():
		return s.mr.usable()
	case s.offset < 0 || s.n < 0 || s.offset > s.mr.size-s.n:
		return fmt.Errorf("segment of %d bytes at %d is outside %s of %d bytes: %w",
			s.n, s.offset, s.mr.object.Name(), s.mr.size, syscall.EINVAL)
	}
	return nil
}

func (s Segment) addr() uint64 { return s.mr.start + uint64(s.offset) }

func (s Segment) sge() libibverbs.Sge {
	return libibverbs.Sge{Addr: s.addr(), Length: uint32(s.n), Lkey: s.mr.lkey}
}

func (mr *MR) notInline() error {
	return fmt.Errorf("memory of %s cannot be sent inline: only the device reaches it: %w", mr.object.Name(), syscall.EINVAL)
}
