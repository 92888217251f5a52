package ibverbs

import (
	"encoding/binary"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
