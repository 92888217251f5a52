package ibverbs

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/object"
)

// MR is a memory region: memory that the device can reach. Its methods may be
// called concurrently. What the device does with the memory is not
// synchronised with Go: read what a peer wrote only after a completion says
// that it is there.
type MR struct {
	object  object.Object
	pd      *PD
	raw     *libibverbs.Mr
	bytes   []byte
	release func()
}

// Alloc maps size bytes of fresh memory, zeroed and outside of Go's heap, and
// registers them; see ibv_reg_mr(3). Close unmaps them.
func (pd *PD) Alloc(size int, access AccessFlags) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if size <= 0 {
		return nil, badMR(pd, fmt.Sprintf("%d bytes", size))
	}
	bytes, err := mem.Map(size)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	unmap := func() { _ = mem.Unmap(bytes) } // cannot fail for what Map returned
	mr, err := pd.register(bytes, access, unmap)
	if err != nil {
		unmap()
		return nil, err
	}
	return mr, nil
}

// Register registers memory that the caller has; see ibv_reg_mr(3). Memory of
// Go's heap is pinned until Close. The pages around the slice are registered
// too as far as they are in the same pages, but peers reach only the slice.
func (pd *PD) Register(b []byte, access AccessFlags) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if len(b) == 0 {
		return nil, badMR(pd, "no memory")
	}
	pinner := new(runtime.Pinner)
	pinner.Pin(unsafe.SliceData(b))
	mr, err := pd.register(b, access, pinner.Unpin)
	if err != nil {
		pinner.Unpin()
		return nil, err
	}
	return mr, nil
}

func badMR(pd *PD, what string) error {
	return &cerr.Error{Op: "ibv_reg_mr", Object: what + " on " + pd.object.Name(), Errno: syscall.EINVAL}
}

// register is called with pd in use.
func (pd *PD) register(b []byte, access AccessFlags, release func()) (*MR, error) {
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return nil, badMR(pd, access.String()+" without AccessLocalWrite")
	}
	raw, err := libibverbs.RegMr(pd.raw, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)), int32(access))
	if err != nil {
		return nil, cerr.Wrap(fmt.Sprintf("%d bytes on %s", len(b), pd.object.Name()), err)
	}
	mr := &MR{pd: pd, raw: raw, bytes: b, release: release}
	mr.object.Init(fmt.Sprintf("MR %#x of %s", raw.Lkey, pd.context.Name()), &pd.object)
	return mr, nil
}

// Bytes returns the memory, nil after Close. What it returned before must not
// be used after Close either; memory from Alloc is no longer mapped then.
func (mr *MR) Bytes() []byte {
	if mr.object.Closed() {
		return nil
	}
	return mr.bytes
}

// Len returns the size in bytes.
func (mr *MR) Len() int { return len(mr.bytes) }

// LKey returns the key that local requests name the region by.
func (mr *MR) LKey() uint32 { return mr.raw.Lkey }

// RKey returns the key that peers name the region by.
func (mr *MR) RKey() uint32 { return mr.raw.Rkey }

// Remote describes the whole region to a peer, which may use it as far as the
// region's access flags allow.
func (mr *MR) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: mr.addr(), RKey: mr.raw.Rkey, Len: uint64(len(mr.bytes))}
}

// Sub returns n bytes of the region from offset on, for a work request. If the
// region does not have them, posting the request fails.
func (mr *MR) Sub(offset, n int) Segment { return Segment{mr: mr, offset: offset, n: n} }

// All returns the whole region, for a work request.
func (mr *MR) All() Segment { return mr.Sub(0, len(mr.bytes)) }

func (mr *MR) addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mr.bytes)))) }

// Raw returns the C object, which is valid until Close.
func (mr *MR) Raw() *libibverbs.Mr { return mr.raw }

// Close takes the memory away from the device; see ibv_dereg_mr(3). Requests
// that are still under way with it fail.
func (mr *MR) Close() error {
	return mr.self().Close(nil, func() error {
		if err := mr.pd.context.unlessRemoved(libibverbs.DeregMr(mr.raw)); err != nil {
			return cerr.Wrap(mr.object.Name(), err)
		}
		mr.release()
		return nil
	})
}

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

// Bytes returns the memory of the segment, nil if the region does not have it.
func (s Segment) Bytes() []byte {
	if s.check() != nil {
		return nil
	}
	return s.mr.bytes[s.offset : s.offset+s.n : s.offset+s.n]
}

// Len returns the size in bytes.
func (s Segment) Len() int { return s.n }

func (s Segment) check() error {
	switch {
	case s.mr == nil || s.mr.raw == nil:
		return fmt.Errorf("segment without a memory region: %w", syscall.EINVAL)
	case s.mr.object.Closed():
		return s.mr.object.Err()
	case s.offset < 0 || s.n < 0 || s.offset > len(s.mr.bytes)-s.n || uint64(s.n) > 1<<32-1:
		return fmt.Errorf("segment of %d bytes at %d is outside %s of %d bytes: %w",
			s.n, s.offset, s.mr.object.Name(), len(s.mr.bytes), syscall.EINVAL)
	}
	return nil
}

func (s Segment) sge() libibverbs.Sge {
	return libibverbs.Sge{Addr: s.mr.addr() + uint64(s.offset), Length: uint32(s.n), Lkey: s.mr.raw.Lkey}
}
