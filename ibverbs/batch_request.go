package ibverbs

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
