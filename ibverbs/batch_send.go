package ibverbs

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
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
