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

// SendBatch is a list of send requests that is posted in one call. It is made
// once and used again: filling, changing and posting it allocates nothing. It
// must not be used concurrently. See ibv_post_send(3) and ibv_wr_post(3).
//
// A batch does not keep what its requests name open. The memory regions must
// stay open until the requests have completed; until then they also keep the
// memory reachable. What C looks at while it posts (inline data, a header, an
// address handle, a memory window and its region) is held during the call, and
// posting it after it was closed is an error.
type SendBatch struct {
	arena *arena[libibverbs.SendWr]
	more  []sendMore
	owner []*MR            // of each segment, as arena.sges; nil for those in copies
	holds int              // requests for which hold has something to do
	uses  []*object.Object // what hold holds, if it is not stale
	stale bool

	copies *copies // of InlineBytes; nil until there are some

	// The first request that only ibv_wr_* can post, counted from 1; 0: none.
	extended int
}

// sendMore is what a request needs beside what C is given.
type sendMore struct {
	used [2]*object.Object // what C looks at while it posts; the first is set first
	room uint64            // bytes that the remote buffer has
}

const unlimited = math.MaxUint64

// NewSendBatch makes a batch for so many requests with up to so many segments
// each. Its memory goes away with the last reference to it.
func NewSendBatch(requests, segments int) (*SendBatch, error) {
	a, err := newArena[libibverbs.SendWr](requests, segments)
	if err != nil {
		return nil, err
	}
	for i := range a.wrs {
		a.wrs[i].SgList = unsafe.SliceData(a.place(i))
		if i > 0 {
			a.wrs[i-1].Next = &a.wrs[i] // used or not: see begin
		}
	}
	return &SendBatch{
		arena: a, more: make([]sendMore, requests), owner: make([]*MR, requests*segments),
	}, nil
}

// Len returns how many requests the batch has.
func (b *SendBatch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.arena.used())
}

// Reset empties the batch.
func (b *SendBatch) Reset() {
	if n := b.Len(); n > 0 {
		// Nothing is kept alive by a batch that does not need it.
		clear(b.more[:n])
		clear(b.owner[:n*b.arena.segments])
		clear(b.uses)
		b.uses, b.stale = b.uses[:0], false
		b.arena.n, b.holds, b.extended = 0, 0, 0
	}
}

// add puts a request at the end of the list and returns it, so that its caller
// can write what only its opcode has, and keep the batch alive until then. room
// is how many bytes the segments may have together.
//
// Most of a program's time with a batch goes by here, so the numbers are written
// first, while they are in registers, and nothing is called for a request that
// can be added.
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
	wr.WrId, wr.NumSge, wr.Opcode, wr.SendFlags = id, int32(len(segments)), op, uint32(flags)
	*wr.ImmData() = imm // or the key to invalidate
	// The rest stays as an earlier request has left it, unless it would mean
	// something here: the union starts with a datagram's address handle.
	wr.Wr.Rdma().RemoteAddr, wr.QpType.Xrc().RemoteSrqn = 0, 0
	b.more[i].room = room
	if len(segments) > a.segments {
		return nil, refusedSend(op, i, a.refused(segments, false))
	}
	first, bytes := i*a.segments, uint64(0)
	for k := range segments {
		s := &segments[k]
		if !s.sound() {
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

// checkInline refuses what has nothing to send: C would take its segments for
// data, and what came for a place to write to.
func checkInline(op libibverbs.WrOpcode) error {
	switch op {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return cerr.Invalid("SendInline is only for requests that send what their segments have")
	}
	return nil
}

// disown forgets the regions of a request that cannot be added.
func (b *SendBatch) disown(i int) {
	clear(b.owner[i*b.arena.segments:][:b.arena.segments])
}

// owners returns the regions of the segments that request i has, nil for those
// that have none.
func (b *SendBatch) owners(i int) []*MR {
	return b.owner[i*b.arena.segments:][:b.arena.wrs[i].NumSge]
}

// inline makes a request that is about to be added one whose data C reads.
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

// addRemote is add for a request that works on a peer's memory.
func (b *SendBatch) addRemote(op libibverbs.WrOpcode, imm libibverbs.Be32, id uint64, remote RemoteBuffer, flags SendFlags, segments []Segment) error {
	wr, err := b.add(op, imm, id, flags, remote.Len, segments)
	if err != nil {
		return err
	}
	*wr.Wr.Rdma() = libibverbs.SendWrWrRdma{RemoteAddr: remote.Addr, Rkey: remote.RKey}
	runtime.KeepAlive(b)
	return nil
}

// refusedSend names the request that the batch does not take.
func refusedSend(op libibverbs.WrOpcode, i int, err error) error {
	return cerr.Argument(opPostSend, fmt.Sprintf("%v, request %d of the batch", op, i), err)
}

func tooLong(bytes, room uint64) error {
	return cerr.Invalid("%d bytes for a remote buffer of %d", bytes, room)
}

// Send adds a message that the peer receives into what it has posted. The ID
// comes back with the completion. It fails with ErrBatchFull, or with
// syscall.EINVAL for segments that cannot be; see ibv_post_send(3). So do the
// other methods that add.
func (b *SendBatch) Send(id uint64, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND, 0, id, flags, unlimited, segments)
	return err
}

// SendImm adds a message with 32 bits of immediate data, given in this host's
// byte order; see ibv_post_send(3).
func (b *SendBatch) SendImm(id uint64, imm uint32, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.NewBe32(imm), id, flags, unlimited, segments)
	return err
}

// SendInv adds a message that also invalidates a remote key at the peer: that
// of a memory window, which the peer's completion names; see ibv_post_send(3).
func (b *SendBatch) SendInv(id uint64, rkey uint32, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND_WITH_INV, libibverbs.Be32(rkey), id, flags, unlimited, segments)
	return err
}

// Write adds an RDMA write of the segments to a peer's memory; see
// ibv_post_send(3).
func (b *SendBatch) Write(id uint64, to RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.addRemote(libibverbs.IBV_WR_RDMA_WRITE, 0, id, to, flags, segments)
}

// WriteImm adds an RDMA write that also takes a receive of the peer's, which
// completes with 32 bits of immediate data, given in this host's byte order; see
// ibv_post_send(3).
func (b *SendBatch) WriteImm(id uint64, to RemoteBuffer, imm uint32, flags SendFlags, segments ...Segment) error {
	return b.addRemote(libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.NewBe32(imm), id, to, flags, segments)
}

// Read adds an RDMA read of a peer's memory into the segments; see
// ibv_post_send(3).
func (b *SendBatch) Read(id uint64, from RemoteBuffer, flags SendFlags, segments ...Segment) error {
	if err := written(segments); err != nil {
		return refusedSend(libibverbs.IBV_WR_RDMA_READ, b.Len(), err)
	}
	return b.addRemote(libibverbs.IBV_WR_RDMA_READ, 0, id, from, flags, segments)
}

// WR returns the request at index i, to be changed in place. It may have
// been posted: what C was given does not change any more.
func (b *SendBatch) WR(i int) SendWR { return SendWR{b, i} }

// SendWR is a request of a batch. It is valid until Reset. Setting
// something that the request does not have gives an error, and so does what
// adding the request would refuse; the request is then as it was.
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

// missing is apart from wr so that wr can be inlined.
func (r SendWR) missing() error {
	return cerr.Refuse(opPostSend, fmt.Sprintf("request %d", r.i), "the batch has %d requests", r.batch.Len())
}

func (r SendWR) has(what string, wr *libibverbs.SendWr, ops ...libibverbs.WrOpcode) error {
	for _, op := range ops {
		if wr.Opcode == op {
			return nil
		}
	}
	return r.refuse(wr, cerr.Invalid("it has no %s", what))
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
	if was, inline := SendFlags(wr.SendFlags)&SendInline != 0, flags&SendInline != 0; was != inline {
		if err := firstError(checkInline(wr.Opcode), r.batch.addressable(r.i)); err != nil {
			return r.refuse(wr, err)
		}
		if k := r.batch.copied(r.i); k >= 0 { // they are there only because the request is inline
			return r.refuse(wr, cerr.Invalid("segment %d is from InlineBytes, and stays inline", k))
		}
		r.batch.readdress(r.i, inline)
	}
	wr.SendFlags = uint32(flags)
	r.batch.count(before, r.i)
	runtime.KeepAlive(r.batch)
	return nil
}

// count keeps holds right after request i was changed.
func (b *SendBatch) count(before bool, i int) {
	b.stale = true
	switch now := b.held(i); {
	case now && !before:
		b.holds++
	case before && !now:
		b.holds--
	}
}

// SetImm changes the immediate data, given in this host's byte order.
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

// SetInvalidate changes the key that is made invalid.
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

// SetRemote changes the memory of the peer that is written, read, or operated
// on.
func (r SendWR) SetRemote(remote RemoteBuffer) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	switch wr.Opcode {
	case libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ:
		if n := r.length(wr); n > remote.Len {
			return r.refuse(wr, tooLong(n, remote.Len))
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

// SetOperands changes the numbers of an atomic operation: those of CompareSwap,
// or the one of FetchAdd, whose second is not used.
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

// SetDestination changes who gets the datagram.
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
		used[1] = to.AH.self() // the first is the header
	} else {
		used[0] = to.AH.self()
	}
	r.batch.count(before, r.i)
	runtime.KeepAlive(r.batch)
	return nil
}

// SetXRCSRQ says which shared receive queue of the peer's takes the message,
// for a queue pair that sends to XRC.
func (r SendWR) SetXRCSRQ(number uint32) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	wr.QpType.Xrc().RemoteSrqn = number
	runtime.KeepAlive(r.batch)
	return nil
}

// atomicSize is how many bytes an atomic operation is about.
const atomicSize = 8

func checkAtomic(at RemoteBuffer) error {
	switch {
	case at.Addr%atomicSize != 0:
		return cerr.Invalid("atomic operation at %#x, which is not a multiple of 8", at.Addr)
	case at.Len < atomicSize:
		return cerr.Invalid("atomic operation on 8 bytes in a remote buffer of %d", at.Len)
	}
	return nil
}

// CompareSwap adds an atomic operation on the first 8 bytes of a peer's memory,
// which must be aligned to 8 bytes: if they are compare, they become swap. What
// they were goes into result, which has 8 bytes, in this host's byte order; see
// ibv_post_send(3).
func (b *SendBatch) CompareSwap(id uint64, at RemoteBuffer, compare, swap uint64, flags SendFlags, result Segment) error {
	return b.addAtomic(libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, id, at, compare, swap, flags, result)
}

// FetchAdd adds an atomic operation on the first 8 bytes of a peer's memory,
// which must be aligned to 8 bytes: add is added to them. What they were goes
// into result, which has 8 bytes, in this host's byte order; see
// ibv_post_send(3).
func (b *SendBatch) FetchAdd(id uint64, at RemoteBuffer, add uint64, flags SendFlags, result Segment) error {
	return b.addAtomic(libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, id, at, add, 0, flags, result)
}

func (b *SendBatch) addAtomic(op libibverbs.WrOpcode, id uint64, at RemoteBuffer, operand, swap uint64, flags SendFlags, result Segment) error {
	if err := checkAtomic(at); err != nil {
		return refusedSend(op, b.Len(), err)
	}
	if result.n != atomicSize {
		return refusedSend(op, b.Len(), cerr.Invalid("atomic operation with a result of %d bytes, not 8", result.n))
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

// AtomicWrite adds a write of 8 bytes, as they stand here, to a peer's memory,
// which must be aligned to 8 bytes; nobody there sees only some of them. The
// queue pair must have been made for it: see ibv_wr_post(3).
func (b *SendBatch) AtomicWrite(id uint64, to RemoteBuffer, data [8]byte, flags SendFlags) error {
	if err := checkAtomic(to); err != nil {
		return refusedSend(libibverbs.IBV_WR_ATOMIC_WRITE, b.Len(), err)
	}
	return b.addExtended(libibverbs.IBV_WR_ATOMIC_WRITE, id, flags, libibverbs.SendWrWrAtomic{
		RemoteAddr: to.Addr, CompareAdd: binary.NativeEndian.Uint64(data[:]), Rkey: to.RKey,
	}, to.Len)
}

// FlushPlacement says how far data has to get.
type FlushPlacement = libibverbs.PlacementType

// How far data has to get; combine them with |.
const (
	FlushGlobal     FlushPlacement = libibverbs.IBV_FLUSH_GLOBAL     // all of the peer's machine sees it
	FlushPersistent FlushPlacement = libibverbs.IBV_FLUSH_PERSISTENT // it survives a loss of power
)

// Flush adds a request that completes when what was written to a range of a
// peer's memory before has got as far as placement says. The region must have
// the access flag of the same name, and the queue pair must have been made for
// it: see ibv_wr_post(3).
func (b *SendBatch) Flush(id uint64, at RemoteBuffer, placement FlushPlacement, flags SendFlags) error {
	return b.flush(id, at, placement, libibverbs.IBV_FLUSH_RANGE, flags)
}

// FlushRegion is Flush for the whole memory region that at is in.
func (b *SendBatch) FlushRegion(id uint64, at RemoteBuffer, placement FlushPlacement, flags SendFlags) error {
	return b.flush(id, at, placement, libibverbs.IBV_FLUSH_MR, flags)
}

func (b *SendBatch) flush(id uint64, at RemoteBuffer, placement FlushPlacement, level libibverbs.SelectivityLevel, flags SendFlags) error {
	if placement == 0 || placement&^(FlushGlobal|FlushPersistent) != 0 {
		return refusedSend(libibverbs.IBV_WR_FLUSH, b.Len(), cerr.Invalid("placement is %v, neither FlushGlobal nor FlushPersistent", placement))
	}
	return b.addExtended(libibverbs.IBV_WR_FLUSH, id, flags, libibverbs.SendWrWrAtomic{
		RemoteAddr: at.Addr, CompareAdd: at.Len, Swap: uint64(placement) | uint64(level)<<8, Rkey: at.RKey,
	}, at.Len)
}

// addExtended is add for a request that can be posted only with ibv_wr_*. C has
// no fields for it in ibv_send_wr; package datapath reads these.
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

// Destination is who gets a datagram; see [PD.CreateDestination].
type Destination struct {
	AH    *AH    // the way to the peer's port
	QPNum uint32 // of the peer
	QKey  uint32 // that the peer's queue pair has
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

// SendImmTo adds a datagram with 32 bits of immediate data, given in this
// host's byte order; see ibv_post_send(3).
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
	b.look(b.arena.n-1, to.AH.self(), nil)
	return nil
}

// TSO adds a large message that the device cuts into packets with mss bytes of
// data each, every one behind a copy of the header; for a queue pair of type
// QPTypeRawPacket, or of QPTypeUD with [SendWR.SetDestination]; see
// ibv_post_send(3). The header lies in a memory region.
func (b *SendBatch) TSO(id uint64, header Segment, mss uint16, flags SendFlags, segments ...Segment) error {
	if err := header.check(); err != nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", err))
	}
	if header.mr.bytes == nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", header.mr.notInline()))
	}
	if header.n == 0 || header.n > 1<<16-1 || mss == 0 {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), cerr.Invalid("packets of %d bytes behind a header of %d", mss, header.n))
	}
	wr, err := b.add(libibverbs.IBV_WR_TSO, 0, id, flags, unlimited, segments)
	if err != nil {
		return err
	}
	*wr.Tso() = libibverbs.SendWrTso{
		Hdr: unsafe.Pointer(&header.mr.bytes[header.offset]), HdrSz: uint16(header.n), Mss: mss,
	}
	b.look(b.arena.n-1, &header.mr.object, nil)
	return nil
}

// notDatagram returns the index of the first request that is not a datagram
// with a destination, -1 if all are.
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

// BindMW adds a bind of a memory window of type 2: once it has completed, peers
// may use the memory as the binding says, by the window's new key, which
// [MW.Remote] has; see ibv_post_send(3).
func (b *SendBatch) BindMW(id uint64, mw *MW, binding Binding, flags SendFlags) error {
	switch {
	case b == nil || b.arena == nil:
		return noBatch(opPostSend, libibverbs.IBV_WR_BIND_MW.String())
	case b.arena.n == len(b.arena.wrs):
		return ErrBatchFull // before the window takes its next key
	}
	request, err := mw.BindWR(binding)
	if err != nil {
		return err
	}
	wr, err := b.add(libibverbs.IBV_WR_BIND_MW, 0, id, flags&^SendInline, unlimited, nil)
	if err != nil {
		return err
	}
	*wr.BindMw() = request
	b.look(b.arena.n-1, mw.self(), binding.Memory.mr.self())
	return nil
}

// LocalInv adds a request that makes a key of this side's invalid: that of a
// memory window; see ibv_post_send(3).
func (b *SendBatch) LocalInv(id uint64, rkey uint32, flags SendFlags) error {
	_, err := b.add(libibverbs.IBV_WR_LOCAL_INV, libibverbs.Be32(rkey), id, flags, unlimited, nil)
	return err
}
