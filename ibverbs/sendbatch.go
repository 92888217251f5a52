// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/object"
)

// SendBatch is a list of send requests that is posted in one call. Make it once
// and use it again: filling, changing and posting it allocates nothing. It must
// not be used concurrently. See ibv_post_send(3) and ibv_wr_post(3).
//
// A batch does not keep open what its requests use. Memory regions must stay
// open until the requests have completed; they also keep their memory
// reachable. During a post, the batch holds open what C reads: the regions of
// inline data and headers, address handles, memory windows and their regions.
// If one of these was closed before, posting fails.
type SendBatch struct {
	arena *arena[libibverbs.SendWr]
	more  []sendMore
	owner []*MR            // region of each segment in arena.sges; nil if it is in copies
	holds int              // number of requests for which C reads objects during a post
	uses  []*object.Object // objects that C reads during a post; out of date if stale is set
	stale bool             // whether listUses must update uses

	copies *copies // bytes of InlineBytes; nil until there are some

	// extended is the position of the first request that only ibv_wr_* can
	// post, counted from 1; 0 means that there is none.
	extended int
}

// sendMore holds what a request needs in addition to what C gets.
type sendMore struct {
	used [2]*object.Object // objects that C reads while it posts; used[0] is set first
	room uint64            // size of the remote buffer in bytes
}

// unlimited is the room of a request without a remote buffer.
const unlimited = math.MaxUint64

// NewSendBatch makes a batch with room for the given number of requests, each
// with at most the given number of segments. Its memory is released with the
// last reference to it.
func NewSendBatch(requests, segments int) (*SendBatch, error) {
	a, err := newArena[libibverbs.SendWr](requests, segments)
	if err != nil {
		return nil, err
	}
	for i := range a.wrs {
		a.wrs[i].SgList = unsafe.SliceData(a.place(i))
		if i > 0 {
			a.wrs[i-1].Next = &a.wrs[i] // set even while request i is not in use: see begin
		}
	}
	return &SendBatch{
		arena: a, more: make([]sendMore, requests), owner: make([]*MR, requests*segments),
	}, nil
}

// Len returns the number of requests in the batch.
func (b *SendBatch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.arena.used())
}

// Reset empties the batch.
func (b *SendBatch) Reset() {
	if n := b.Len(); n > 0 {
		// An empty batch keeps nothing alive.
		clear(b.more[:n])
		clear(b.owner[:n*b.arena.segments])
		clear(b.uses)
		b.uses, b.stale = b.uses[:0], false
		b.arena.n, b.holds, b.extended = 0, 0, 0
	}
}

// add appends a request and returns it. The caller writes the fields of its
// opcode, and must keep the batch alive meanwhile. room is the maximum number
// of bytes in all segments together.
//
// Programs spend most of their batch time here, so add writes the numbers
// first, while they are in registers, and calls nothing for a valid request.
func (b *SendBatch) add(op libibverbs.WrOpcode, imm libibverbs.Be32, id uint64, flags SendFlags, room uint64, segments []Segment) (*libibverbs.SendWr, error) {
	if b == nil || b.arena == nil {
		return nil, noBatch(opPostSend, op.String())
	}
	a := b.arena
	i := a.n
	if i >= len(a.wrs) {
		return nil, ErrBatchFull
	}
	wr := &a.wrs[i]
	wr.WrId, wr.NumSge, wr.Opcode, wr.SendFlags = id, int32(len(segments)), op, flags
	*wr.ImmData() = imm // or the key to invalidate
	// Other fields of an earlier request stay, except for those that would
	// have an effect on this one: the union starts with a datagram's
	// address handle.
	wr.Wr.Rdma().RemoteAddr, wr.QpType.Xrc().RemoteSrqn = 0, 0
	b.more[i].room = room
	if len(segments) > a.segments {
		return nil, refusedSend(op, i, a.refused(segments, false))
	}
	first, bytes := i*a.segments, uint64(0)
	for k := range segments {
		s := &segments[k]
		if !s.isValid() {
			return b.addOther(i, segments)
		}
		a.sges[first+k] = s.sge()
		b.owner[first+k] = s.owner()
		bytes += uint64(s.n)
	}
	if bytes > room {
		b.disown(i)
		return nil, refusedSend(op, i, tooLong(bytes, room))
	}
	if flags&SendInline != 0 {
		if err := b.inline(i); err != nil {
			return nil, err
		}
	}
	a.n = i + 1
	runtime.KeepAlive(b)
	return wr, nil
}

// checkInline refuses SendInline for requests that send nothing. C would send
// the contents of their segments, which are for results.
func checkInline(op libibverbs.WrOpcode) error {
	switch op {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return cerr.Invalid("SendInline is only for requests that send the contents of their segments")
	}
	return nil
}

// disown forgets the regions of a request that cannot be added.
func (b *SendBatch) disown(i int) {
	clear(b.owner[i*b.arena.segments:][:b.arena.segments])
}

// owners returns the regions of the segments of request i. It has nil for
// segments in copies.
func (b *SendBatch) owners(i int) []*MR {
	return b.owner[i*b.arena.segments:][:b.arena.wrs[i].NumSge]
}

// inline prepares request i, which is about to be added, for SendInline.
func (b *SendBatch) inline(i int) error {
	if err := firstError(checkInline(b.arena.wrs[i].Opcode), b.addressable(i)); err != nil {
		b.disown(i)
		return refusedSend(b.arena.wrs[i].Opcode, i, err)
	}
	b.readdress(i, true)
	b.holds++
	b.stale = true
	return nil
}

// addRemote appends a request that accesses a peer's memory.
func (b *SendBatch) addRemote(op libibverbs.WrOpcode, imm libibverbs.Be32, id uint64, remote RemoteBuffer, flags SendFlags, segments []Segment) error {
	if remote.outside {
		return refusedSend(op, b.Len(), remote.check())
	}
	wr, err := b.add(op, imm, id, flags, remote.Len, segments)
	if err != nil {
		return err
	}
	*wr.Wr.Rdma() = libibverbs.SendWrWrRdma{RemoteAddr: remote.Addr, Rkey: remote.RKey}
	runtime.KeepAlive(b)
	return nil
}

// refusedSend returns the error for a request at index i that the batch refuses
// because of err.
func refusedSend(op libibverbs.WrOpcode, i int, err error) error {
	return cerr.Argument(opPostSend, fmt.Sprintf("%v, request %d of the batch", op, i), err)
}

func tooLong(bytes, room uint64) error {
	return cerr.Invalid("%d bytes do not fit into the remote buffer of %d bytes", bytes, room)
}

// Send adds a message, which the peer receives into a receive that it has
// posted; see ibv_post_send(3). The completion has the ID. Like all methods
// that add a request, it fails with an error matching ErrBatchFull, or
// syscall.EINVAL if a segment is invalid.
func (b *SendBatch) Send(id uint64, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND, 0, id, flags, unlimited, segments)
	return err
}

// SendImm adds a message with 32 bits of immediate data in the host's byte
// order; see ibv_post_send(3).
func (b *SendBatch) SendImm(id uint64, imm uint32, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.NewBe32(imm), id, flags, unlimited, segments)
	return err
}

// SendInv adds a message that also invalidates the key of one of the peer's
// memory windows; see ibv_post_send(3). The peer's completion has the key.
func (b *SendBatch) SendInv(id uint64, rkey uint32, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND_WITH_INV, libibverbs.Be32(rkey), id, flags, unlimited, segments)
	return err
}

// Write adds an RDMA write of the segments to a peer's memory; see
// ibv_post_send(3).
func (b *SendBatch) Write(id uint64, to RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.addRemote(libibverbs.IBV_WR_RDMA_WRITE, 0, id, to, flags, segments)
}

// WriteImm adds an RDMA write with 32 bits of immediate data in the host's byte
// order; see ibv_post_send(3). It completes a receive of the peer, which
// reports the immediate data.
func (b *SendBatch) WriteImm(id uint64, to RemoteBuffer, imm uint32, flags SendFlags, segments ...Segment) error {
	return b.addRemote(libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.NewBe32(imm), id, to, flags, segments)
}

// Read adds an RDMA read of a peer's memory into the segments; see
// ibv_post_send(3). On iWARP, their regions need AccessRemoteWrite.
func (b *SendBatch) Read(id uint64, from RemoteBuffer, flags SendFlags, segments ...Segment) error {
	if err := sinks(segments); err != nil {
		return refusedSend(libibverbs.IBV_WR_RDMA_READ, b.Len(), err)
	}
	return b.addRemote(libibverbs.IBV_WR_RDMA_READ, 0, id, from, flags, segments)
}

// mark gives the last request the ID last and the others the ID id. It makes
// the last request signaled if signaled is set, and no other request. It
// reports whether one of the requests is a read or an atomic operation.
func (b *SendBatch) mark(id, last uint64, signaled bool) (fetches bool) {
	wrs := b.arena.used()
	for i := range wrs {
		wrs[i].WrId = id
		wrs[i].SendFlags &^= SendSignaled
		switch wrs[i].Opcode {
		case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
			fetches = true
		}
	}
	wrs[len(wrs)-1].WrId = last
	if signaled {
		wrs[len(wrs)-1].SendFlags |= SendSignaled
	}
	runtime.KeepAlive(b)
	return fetches
}

// WR returns the request at index i, to change it in place. Changing a request
// that has been posted does not affect what C was given.
func (b *SendBatch) WR(i int) SendWR { return SendWR{b, i} }

// SendWR is a request of a batch. It is valid until Reset. Its methods fail if
// the request does not have what they set, or if adding the request with the
// new value would fail. A method that fails leaves the request unchanged.
type SendWR struct {
	batch *SendBatch
	i     int
}

func (r SendWR) wr() (*libibverbs.SendWr, error) {
	if uint(r.i) >= uint(r.batch.Len()) {
		return nil, r.missing()
	}
	return &r.batch.arena.wrs[r.i], nil
}

// missing returns the error for a request that the batch does not have. It is
// not a part of wr, so that the compiler can inline wr.
func (r SendWR) missing() error {
	return cerr.Refuse(opPostSend, fmt.Sprintf("request %d", r.i), "the batch has %d requests", r.batch.Len())
}

func (r SendWR) has(what string, wr *libibverbs.SendWr, ops ...libibverbs.WrOpcode) error {
	for _, op := range ops {
		if wr.Opcode == op {
			return nil
		}
	}
	return r.refuse(wr, cerr.Invalid("the request has no %s", what))
}

func (r SendWR) refuse(wr *libibverbs.SendWr, err error) error {
	return refusedSend(wr.Opcode, r.i, err)
}

// SetID changes the ID.
func (r SendWR) SetID(id uint64) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	wr.WrId = id
	runtime.KeepAlive(r.batch)
	return nil
}

// SetFlags changes the flags.
func (r SendWR) SetFlags(flags SendFlags) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	before := r.batch.held(r.i)
	if was, inline := wr.SendFlags&SendInline != 0, flags&SendInline != 0; was != inline {
		if err := firstError(checkInline(wr.Opcode), r.batch.addressable(r.i)); err != nil {
			return r.refuse(wr, err)
		}
		if k := r.batch.copied(r.i); k >= 0 { // only an inline request can have a segment from InlineBytes
			return r.refuse(wr, cerr.Invalid("SetFlags cannot clear SendInline: segment %d is from InlineBytes", k))
		}
		r.batch.readdress(r.i, inline)
	}
	wr.SendFlags = flags
	r.batch.count(before, r.i)
	runtime.KeepAlive(r.batch)
	return nil
}

// count updates b.holds after a change of request i. before is the result of
// held(i) before the change.
func (b *SendBatch) count(before bool, i int) {
	b.stale = true
	switch now := b.held(i); {
	case now && !before:
		b.holds++
	case before && !now:
		b.holds--
	}
}

// SetImm changes the immediate data, in the host's byte order.
func (r SendWR) SetImm(imm uint32) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if wr.Opcode != libibverbs.IBV_WR_SEND_WITH_IMM && wr.Opcode != libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM {
		return r.has("immediate data", wr)
	}
	*wr.ImmData() = libibverbs.NewBe32(imm)
	runtime.KeepAlive(r.batch)
	return nil
}

// SetInvalidate changes the key to invalidate.
func (r SendWR) SetInvalidate(rkey uint32) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if err := r.has("key to invalidate", wr, libibverbs.IBV_WR_SEND_WITH_INV, libibverbs.IBV_WR_LOCAL_INV); err != nil {
		return err
	}
	*wr.InvalidateRkey() = rkey
	runtime.KeepAlive(r.batch)
	return nil
}

// SetRemote changes the peer's memory that the request writes, reads or
// operates on.
func (r SendWR) SetRemote(remote RemoteBuffer) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if err := remote.check(); err != nil {
		return r.refuse(wr, err)
	}
	switch wr.Opcode {
	case libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ:
		if err := remote.takes(r.length(wr)); err != nil {
			return r.refuse(wr, err)
		}
		wr.Wr.Rdma().RemoteAddr, wr.Wr.Rdma().Rkey = remote.Addr, remote.RKey
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, libibverbs.IBV_WR_ATOMIC_WRITE:
		if err := checkAtomic(remote); err != nil {
			return r.refuse(wr, err)
		}
		wr.Wr.Atomic().RemoteAddr, wr.Wr.Atomic().Rkey = remote.Addr, remote.RKey
	case libibverbs.IBV_WR_FLUSH:
		a := wr.Wr.Atomic()
		a.RemoteAddr, a.CompareAdd, a.Rkey = remote.Addr, remote.Len, remote.RKey
	default:
		return r.has("remote buffer", wr)
	}
	r.batch.more[r.i].room = remote.Len
	runtime.KeepAlive(r.batch)
	return nil
}

func (r SendWR) length(wr *libibverbs.SendWr) (n uint64) {
	for _, sge := range r.batch.arena.place(r.i)[:wr.NumSge] {
		n += uint64(sge.Length)
	}
	return n
}

// SetOperands changes the operands of an atomic operation: both of CompareSwap,
// or the one of FetchAdd, which ignores swap.
func (r SendWR) SetOperands(compareOrAdd, swap uint64) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if err := r.has("operands", wr, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD); err != nil {
		return err
	}
	wr.Wr.Atomic().CompareAdd, wr.Wr.Atomic().Swap = compareOrAdd, swap
	runtime.KeepAlive(r.batch)
	return nil
}

// SetDestination changes the destination of a datagram.
func (r SendWR) SetDestination(to Destination) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if err := r.has("destination", wr, libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_TSO); err != nil {
		return err
	}
	if err := to.check(); err != nil {
		return r.refuse(wr, err)
	}
	to.set(wr.Wr.Ud())
	before, used := r.batch.held(r.i), &r.batch.more[r.i].used
	if wr.Opcode == libibverbs.IBV_WR_TSO {
		used[1] = to.AH.self() // used[0] is the region of the header
	} else {
		used[0] = to.AH.self()
	}
	r.batch.count(before, r.i)
	runtime.KeepAlive(r.batch)
	return nil
}

// SetXRCSRQ sets the number of the peer's shared receive queue that takes the
// message, for a queue pair of type QPTypeXRCSend.
func (r SendWR) SetXRCSRQ(number uint32) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	wr.QpType.Xrc().RemoteSrqn = number
	runtime.KeepAlive(r.batch)
	return nil
}

// atomicSize is the size of an atomic operation's operands in bytes.
const atomicSize = 8

func checkAtomic(at RemoteBuffer) error {
	switch {
	case at.outside:
		return at.check()
	case at.Addr%atomicSize != 0:
		return cerr.Invalid("the address of an atomic operation is %#x, not a multiple of 8", at.Addr)
	case at.Len < atomicSize:
		return cerr.Invalid("the remote buffer has %d bytes, fewer than the 8 of an atomic operation", at.Len)
	}
	return nil
}

// CompareSwap adds an atomic operation on the first 8 bytes of a peer's memory,
// whose address must be a multiple of 8; see ibv_post_send(3). If the bytes
// equal compare, they become swap. Their previous value goes into result, which
// must have 8 bytes, in the host's byte order.
func (b *SendBatch) CompareSwap(id uint64, at RemoteBuffer, compare, swap uint64, flags SendFlags, result Segment) error {
	return b.addAtomic(libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, id, at, compare, swap, flags, result)
}

// FetchAdd adds an atomic operation on the first 8 bytes of a peer's memory,
// whose address must be a multiple of 8; see ibv_post_send(3). It adds the
// value add to the bytes. Their previous value goes into result, which must
// have 8 bytes, in the host's byte order.
func (b *SendBatch) FetchAdd(id uint64, at RemoteBuffer, add uint64, flags SendFlags, result Segment) error {
	return b.addAtomic(libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, id, at, add, 0, flags, result)
}

func (b *SendBatch) addAtomic(op libibverbs.WrOpcode, id uint64, at RemoteBuffer, operand, swap uint64, flags SendFlags, result Segment) error {
	if err := checkAtomic(at); err != nil {
		return refusedSend(op, b.Len(), err)
	}
	if result.n != atomicSize {
		return refusedSend(op, b.Len(), cerr.Invalid("the result of an atomic operation has %d bytes, not 8", result.n))
	}
	segments := []Segment{result}
	if err := written(segments); err != nil {
		return refusedSend(op, b.Len(), err)
	}
	wr, err := b.add(op, 0, id, flags, at.Len, segments)
	if err != nil {
		return err
	}
	*wr.Wr.Atomic() = libibverbs.SendWrWrAtomic{RemoteAddr: at.Addr, CompareAdd: operand, Swap: swap, Rkey: at.RKey}
	runtime.KeepAlive(b)
	return nil
}

// AtomicWrite adds a write of 8 bytes to a peer's memory, whose address must be
// a multiple of 8; see ibv_wr_post(3). A reader of that memory sees all of the
// bytes or none. The queue pair must have been made for such requests; see
// QPConfig.SendOps.
func (b *SendBatch) AtomicWrite(id uint64, to RemoteBuffer, data [8]byte, flags SendFlags) error {
	if err := checkAtomic(to); err != nil {
		return refusedSend(libibverbs.IBV_WR_ATOMIC_WRITE, b.Len(), err)
	}
	return b.addExtended(libibverbs.IBV_WR_ATOMIC_WRITE, id, flags, libibverbs.SendWrWrAtomic{
		RemoteAddr: to.Addr, CompareAdd: binary.NativeEndian.Uint64(data[:]), Rkey: to.RKey,
	}, to.Len)
}

// FlushPlacement says where written data must have arrived before a flush
// completes.
type FlushPlacement = libibverbs.PlacementType

// The places where written data must have arrived before a flush completes;
// combine them with |.
const (
	FlushGlobal     FlushPlacement = libibverbs.IBV_FLUSH_GLOBAL     // the peer's whole machine sees the data
	FlushPersistent FlushPlacement = libibverbs.IBV_FLUSH_PERSISTENT // the data survives a loss of power
)

// Flush adds a request that completes when the data of earlier writes to a
// range of a peer's memory has arrived where placement says; see
// ibv_wr_post(3). The region must have the access flag of the same name, such
// as AccessFlushGlobal. The queue pair must have been made for such requests;
// see QPConfig.SendOps.
func (b *SendBatch) Flush(id uint64, at RemoteBuffer, placement FlushPlacement, flags SendFlags) error {
	return b.flush(id, at, placement, libibverbs.IBV_FLUSH_RANGE, flags)
}

// FlushRegion adds a request like Flush, but for the whole memory region that
// contains at.
func (b *SendBatch) FlushRegion(id uint64, at RemoteBuffer, placement FlushPlacement, flags SendFlags) error {
	return b.flush(id, at, placement, libibverbs.IBV_FLUSH_MR, flags)
}

func (b *SendBatch) flush(id uint64, at RemoteBuffer, placement FlushPlacement, level libibverbs.SelectivityLevel, flags SendFlags) error {
	if placement == 0 || placement&^(FlushGlobal|FlushPersistent) != 0 {
		return refusedSend(libibverbs.IBV_WR_FLUSH, b.Len(), cerr.Invalid("placement is %v, neither FlushGlobal nor FlushPersistent", placement))
	}
	if err := at.check(); err != nil {
		return refusedSend(libibverbs.IBV_WR_FLUSH, b.Len(), err)
	}
	return b.addExtended(libibverbs.IBV_WR_FLUSH, id, flags, libibverbs.SendWrWrAtomic{
		RemoteAddr: at.Addr, CompareAdd: at.Len, Swap: uint64(placement) | uint64(level)<<8, Rkey: at.RKey,
	}, at.Len)
}

// addExtended appends a request that only ibv_wr_* can post. C's ibv_send_wr
// has no fields for such requests; package datapath reads the given fields
// instead.
func (b *SendBatch) addExtended(op libibverbs.WrOpcode, id uint64, flags SendFlags, fields libibverbs.SendWrWrAtomic, room uint64) error {
	wr, err := b.add(op, 0, id, flags, room, nil)
	if err != nil {
		return err
	}
	*wr.Wr.Atomic() = fields
	if b.extended == 0 {
		b.extended = b.arena.n
	}
	runtime.KeepAlive(b)
	return nil
}

// Destination is the destination of a datagram; see [PD.CreateDestination].
type Destination struct {
	AH    *AH    // path to the peer's port
	QPNum uint32 // number of the peer's queue pair
	QKey  uint32 // key of the peer's queue pair
}

func (d Destination) check() error {
	if d.AH.self() == nil {
		return cerr.Invalid("datagram without an address handle")
	}
	return nil
}

func (d Destination) set(ud *libibverbs.SendWrWrUd) {
	*ud = libibverbs.SendWrWrUd{Ah: d.AH.Raw(), RemoteQpn: d.QPNum, RemoteQkey: d.QKey}
}

// SendTo adds a datagram, for a queue pair of type QPTypeUD; see
// ibv_post_send(3).
func (b *SendBatch) SendTo(id uint64, to Destination, flags SendFlags, segments ...Segment) error {
	return b.addTo(libibverbs.IBV_WR_SEND, 0, id, to, flags, segments)
}

// SendImmTo adds a datagram with 32 bits of immediate data in the host's byte
// order, for a queue pair of type QPTypeUD; see ibv_post_send(3).
func (b *SendBatch) SendImmTo(id uint64, to Destination, imm uint32, flags SendFlags, segments ...Segment) error {
	return b.addTo(libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.NewBe32(imm), id, to, flags, segments)
}

func (b *SendBatch) addTo(op libibverbs.WrOpcode, imm libibverbs.Be32, id uint64, to Destination, flags SendFlags, segments []Segment) error {
	if err := to.check(); err != nil {
		return refusedSend(op, b.Len(), err)
	}
	wr, err := b.add(op, imm, id, flags, unlimited, segments)
	if err != nil {
		return err
	}
	to.set(wr.Wr.Ud())
	b.noteObjects(b.arena.n-1, to.AH.self(), nil)
	return nil
}

// TSO adds a large message that the device cuts into packets; see
// ibv_post_send(3). Each packet has a copy of the header, which must lie in a
// memory region, and at most mss bytes of data. The queue pair must be of type
// QPTypeRawPacket, or of QPTypeUD with [SendWR.SetDestination].
func (b *SendBatch) TSO(id uint64, header Segment, mss uint16, flags SendFlags, segments ...Segment) error {
	if err := header.check(); err != nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", err))
	}
	if header.mr.bytes == nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", header.mr.notInline()))
	}
	if header.n == 0 || header.n > 1<<16-1 || mss == 0 {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), cerr.Invalid("mss is %d and the header has %d bytes, not from 1 to 65535 each", mss, header.n))
	}
	wr, err := b.add(libibverbs.IBV_WR_TSO, 0, id, flags, unlimited, segments)
	if err != nil {
		return err
	}
	*wr.Tso() = libibverbs.SendWrTso{
		Hdr: unsafe.Pointer(&header.mr.bytes[header.offset]), HdrSz: uint16(header.n), Mss: mss,
	}
	b.noteObjects(b.arena.n-1, &header.mr.object, nil)
	return nil
}

// notDatagram returns the index of the first request that is not a datagram
// with a destination, or -1 if there is none.
func (b *SendBatch) notDatagram() int {
	for i := range b.arena.used() {
		wr := &b.arena.wrs[i]
		switch wr.Opcode {
		case libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_TSO:
			if wr.Wr.Ud().Ah != nil {
				continue
			}
		}
		return i
	}
	return -1
}

// maxCopied limits the bytes of InlineBytes in a request. No device takes more
// inline.
const maxCopied = 4096

// copies is memory outside Go's heap for the bytes of InlineBytes. Slot i holds
// the bytes of request i.
type copies struct {
	memory []byte
	slot   int // size of a slot in bytes, a power of two
}

func newCopies(requests, slot int) (*copies, error) {
	memory, err := mem.Map(requests * slot)
	if err != nil {
		return nil, fmt.Errorf("allocate %d inline bytes for each of %d requests: %w", slot, requests, err)
	}
	c := &copies{memory, slot}
	runtime.AddCleanup(c, func(m []byte) { _ = mem.Unmap(m) }, memory) // the order in which memory is freed does not matter
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
			// This also changes unused segments, which does no harm.
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

// addOther finishes add for a request with a segment that is not valid.
func (b *SendBatch) addOther(i int, segments []Segment) (*libibverbs.SendWr, error) {
	if err := b.setOther(i, segments); err != nil {
		b.disown(i)
		return nil, err
	}
	wr := &b.arena.wrs[i]
	if wr.SendFlags&SendInline != 0 {
		b.holds++
	}
	b.arena.n = i + 1
	runtime.KeepAlive(b)
	return wr, nil
}

// setOther writes the segments of request i, whatever their kinds.
func (b *SendBatch) setOther(i int, segments []Segment) error {
	wr := &b.arena.wrs[i]
	inline := wr.SendFlags&SendInline != 0
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

// copiesFor reports whether a request can have segments from InlineBytes: it
// must send its segments, and C must copy them.
func copiesFor(wr *libibverbs.SendWr) bool {
	switch wr.Opcode {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return false
	}
	return wr.SendFlags&SendInline != 0
}

// copied returns the index of a segment of request i that came from
// InlineBytes, or -1 if there is none.
func (b *SendBatch) copied(i int) int {
	for k, mr := range b.owners(i) {
		if mr == nil {
			return k
		}
	}
	return -1
}

// BindMW adds a request that binds a memory window of type 2; see
// ibv_post_send(3). Once it has completed, peers may use the memory as the
// binding says, with the window's new key, which is in [MW.Remote]. The window
// must not be bound when the device executes the request: invalidate it first,
// with a request of this program or of a peer. If the request fails, the window
// can only be closed.
func (b *SendBatch) BindMW(id uint64, mw *MW, binding Binding, flags SendFlags) error {
	switch {
	case b == nil || b.arena == nil:
		return noBatch(opPostSend, libibverbs.IBV_WR_BIND_MW.String())
	case b.arena.n == len(b.arena.wrs):
		return ErrBatchFull // before the window takes its next key
	}
	request, err := mw.bindWR(binding)
	if err != nil {
		return err
	}
	wr, err := b.add(libibverbs.IBV_WR_BIND_MW, 0, id, flags&^SendInline, unlimited, nil)
	if err != nil {
		return err
	}
	*wr.BindMw() = request
	b.noteObjects(b.arena.n-1, mw.self(), binding.Memory.mr.self())
	return nil
}

// LocalInv adds a request that invalidates the key of one of this program's
// memory windows; see ibv_post_send(3).
func (b *SendBatch) LocalInv(id uint64, rkey uint32, flags SendFlags) error {
	_, err := b.add(libibverbs.IBV_WR_LOCAL_INV, libibverbs.Be32(rkey), id, flags, unlimited, nil)
	return err
}
