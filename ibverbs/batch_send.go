package ibverbs

import (
	"fmt"
	"math"
	"runtime"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// SendBatch is a list of send requests that is posted in one call. It is made
// once and used again: filling, changing and posting it allocates nothing. It
// must not be used concurrently.
//
// A batch does not keep what its requests name open. The memory regions must
// stay open until the requests have completed; until then they also keep the
// memory reachable. What C looks at while it posts (inline data, a header, an
// address handle, a memory window and its region) is held during the call, and
// posting it after it was closed is an error.
type SendBatch struct {
	arena *arena[libibverbs.SendWr]
	more  []sendMore
	owner []*MR            // of each segment, as arena.sges
	holds int              // requests for which hold has something to do
	uses  []*object.Object // what hold holds, if it is not stale
	stale bool

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

// sendRequest is what a request has beside ID, flags and segments. It is small,
// because it is made and copied for each.
type sendRequest struct {
	op  libibverbs.WrOpcode
	imm libibverbs.Be32 // or the key to invalidate, as it stands
	wr  libibverbs.SendWrWr
}

// add puts a request at the end of the list.
func (b *SendBatch) add(r sendRequest, id uint64, flags SendFlags, room uint64, segments []Segment) error {
	if b == nil {
		return errNoBatch
	}
	if flags&SendInline != 0 {
		if err := checkInline(r.op); err != nil {
			return err
		}
	}
	a := b.arena
	wr, sges, err := a.next(segments, flags&SendInline != 0)
	if err != nil {
		return err
	}
	// One by one, which is faster than as a whole. What only other opcodes
	// have stays as an earlier request has left it.
	wr.WrId, wr.Next, wr.SgList, wr.NumSge = id, nil, sges, int32(len(segments))
	wr.Opcode, wr.SendFlags = r.op, uint32(flags)
	*wr.ImmData() = r.imm
	wr.Wr, wr.QpType = r.wr, libibverbs.SendWrQpType{}
	if a.n > 0 {
		a.wrs[a.n-1].Next = wr
	}
	b.own(a.n, segments)
	b.more[a.n].room = room
	a.n++
	if flags&SendInline != 0 {
		b.holds++
		b.stale = true
	}
	if b.extended == 0 && extendedOnly(r.op) {
		b.extended = a.n
	}
	runtime.KeepAlive(a)
	return nil
}

// checkInline refuses what has nothing to send: C would take its segments for
// data, and what came for a place to write to.
func checkInline(op libibverbs.WrOpcode) error {
	switch op {
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return fmt.Errorf("%v with SendInline: %w", op, syscall.EINVAL)
	}
	return nil
}

func (b *SendBatch) own(i int, segments []Segment) {
	owner := b.owner[i*b.arena.segments:]
	for k := range segments {
		owner[k] = segments[k].mr
	}
}

// addRemote is add for a request that works on a peer's memory.
func (b *SendBatch) addRemote(r sendRequest, id uint64, remote RemoteBuffer, flags SendFlags, segments []Segment) error {
	if err := fits(segments, remote.Len); err != nil {
		return err
	}
	*r.wr.Rdma() = libibverbs.SendWrWrRdma{RemoteAddr: remote.Addr, Rkey: remote.RKey}
	return b.add(r, id, flags, remote.Len, segments)
}

func fits(segments []Segment, room uint64) error {
	var n uint64
	for i := range segments {
		n += uint64(max(segments[i].n, 0))
	}
	if n > room {
		return fmt.Errorf("%d bytes for a remote buffer of %d: %w", n, room, syscall.EINVAL)
	}
	return nil
}

// Send adds a message that the peer receives into what it has posted. The ID
// comes back with the completion.
func (b *SendBatch) Send(id uint64, flags SendFlags, segments ...Segment) error {
	return b.add(sendRequest{op: libibverbs.IBV_WR_SEND}, id, flags, unlimited, segments)
}

// SendImm adds a message with 32 bits of immediate data, given in this host's
// byte order.
func (b *SendBatch) SendImm(id uint64, imm uint32, flags SendFlags, segments ...Segment) error {
	r := sendRequest{op: libibverbs.IBV_WR_SEND_WITH_IMM, imm: libibverbs.NewBe32(imm)}
	return b.add(r, id, flags, unlimited, segments)
}

// SendInv adds a message that also invalidates a remote key at the peer: that
// of a memory window, which the peer's completion names.
func (b *SendBatch) SendInv(id uint64, rkey uint32, flags SendFlags, segments ...Segment) error {
	r := sendRequest{op: libibverbs.IBV_WR_SEND_WITH_INV, imm: libibverbs.Be32(rkey)}
	return b.add(r, id, flags, unlimited, segments)
}

// Write adds an RDMA write of the segments to a peer's memory.
func (b *SendBatch) Write(id uint64, to RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.addRemote(sendRequest{op: libibverbs.IBV_WR_RDMA_WRITE}, id, to, flags, segments)
}

// WriteImm adds an RDMA write that also takes a receive of the peer's, which
// completes with 32 bits of immediate data.
func (b *SendBatch) WriteImm(id uint64, to RemoteBuffer, imm uint32, flags SendFlags, segments ...Segment) error {
	r := sendRequest{op: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, imm: libibverbs.NewBe32(imm)}
	return b.addRemote(r, id, to, flags, segments)
}

// Read adds an RDMA read of a peer's memory into the segments.
func (b *SendBatch) Read(id uint64, from RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.addRemote(sendRequest{op: libibverbs.IBV_WR_RDMA_READ}, id, from, flags, segments)
}
