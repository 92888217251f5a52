package ibverbs

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// TagOpFlags are the options of an operation on a tag list; combine them with
// |.
type TagOpFlags = libibverbs.OpsFlags

// The options of an operation on a tag list.
const (
	TagOpSignaled TagOpFlags = libibverbs.IBV_OPS_SIGNALED // ask for a completion
	TagOpSync     TagOpFlags = libibverbs.IBV_OPS_TM_SYNC  // TagOp.Unexpected is valid
)

// TagOp is what all operations on a tag list have.
//
// A message without a receive in the list is unexpected, and takes one of
// SRQ.PostRecv. The device then uses receives that are added later only when it
// hears that the program has dealt with as many unexpected messages as the
// device has met, so that no later message overtakes one of these.
type TagOp struct {
	ID         uint64 // comes back with the completion of the operation itself
	Flags      TagOpFlags
	Unexpected uint32 // with TagOpSync: unexpected messages that the program has dealt with until now
}

// TagRecv is a receive for the messages whose tag, as far as Mask has bits, is
// Tag. Both are in this host's byte order.
type TagRecv struct {
	Tag, Mask uint64
	ID        uint64 // comes back with the completion of the message
}

// TagHandle names a receive in the tag list of a shared receive queue, from
// when it was added until its message completes or it is deleted.
type TagHandle struct {
	srq    *SRQ
	handle uint32
}

// TagBatch is a list of operations on the tag list of a shared receive queue,
// which is posted in one call, made once and used again as a SendBatch is. It
// must not be used concurrently.
type TagBatch struct {
	arena   *arena[libibverbs.OpsWr]
	deletes []*SRQ             // for each operation that deletes, whose handle it has
	posted  int                // of these operations, by the last call that posted
	to      *SRQ               // where that posted to
	bad     **libibverbs.OpsWr // for C to write to; a variable would be allocated for each call
}

// NewTagBatch makes a batch for so many operations, with up to so many segments
// for each receive that is added. Its memory goes away with the last reference
// to it.
func NewTagBatch(operations, segments int) (*TagBatch, error) {
	a, err := newArena[libibverbs.OpsWr](operations, segments)
	if err != nil {
		return nil, err
	}
	return &TagBatch{arena: a, deletes: make([]*SRQ, operations), bad: new(*libibverbs.OpsWr)}, nil
}

// Len returns how many operations the batch has.
func (b *TagBatch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.arena.used())
}

// Reset empties the batch.
func (b *TagBatch) Reset() {
	if b.Len() > 0 {
		clear(b.deletes[:b.Len()])
		b.arena.n, b.posted, b.to = 0, 0, nil
	}
}

// Add adds a receive to the list: the next message that it is for, and for
// which no earlier receive is, is written to the segments, in order. The memory
// regions must stay open until the message has completed or the receive is
// deleted. Handle returns the receive's handle once the batch is posted.
//
// A tag with bits that the mask does not have would match nothing, and gives
// syscall.EINVAL.
func (b *TagBatch) Add(op TagOp, recv TagRecv, segments ...Segment) error {
	if recv.Tag&^recv.Mask != 0 {
		return cerr.Refuse(opPostTags, "", "tag %#x has bits that its mask %#x lacks", recv.Tag, recv.Mask)
	}
	return b.add(op, libibverbs.IBV_WR_TAG_ADD, segments, nil, libibverbs.OpsWrTm{
		Add: libibverbs.OpsWrTmAdd{RecvWrId: recv.ID, Tag: recv.Tag, Mask: recv.Mask},
	})
}

// Delete takes a receive out of the list. If a message took it first, the
// operation completes with the status WCTagMatching; that of the message comes
// as well. The handle must be of the queue that the batch is posted to, and the
// program must not have seen the message's completion yet.
func (b *TagBatch) Delete(op TagOp, handle TagHandle) error {
	if handle.srq == nil {
		return cerr.Refuse(opPostTags, "", "the handle is zero; TagBatch.Handle returns one")
	}
	return b.add(op, libibverbs.IBV_WR_TAG_DEL, nil, handle.srq, libibverbs.OpsWrTm{Handle: handle.handle})
}

// Sync only tells the device op.Unexpected, with TagOpSync set or not.
// Completions with WCFlagTagSync ask for it.
func (b *TagBatch) Sync(op TagOp) error {
	op.Flags |= TagOpSync
	return b.add(op, libibverbs.IBV_WR_TAG_SYNC, nil, nil, libibverbs.OpsWrTm{})
}

func (b *TagBatch) add(
	op TagOp, opcode libibverbs.OpsWrOpcode, segments []Segment, deletes *SRQ, tm libibverbs.OpsWrTm,
) error {
	if b == nil || b.arena == nil {
		return noBatch(opPostTags, "")
	}
	a := b.arena
	if a.n == len(a.wrs) {
		return ErrBatchFull
	}
	if err := a.check(segments, false); err != nil {
		return cerr.Argument(opPostTags, fmt.Sprintf("operation %d of the batch", a.n), err)
	}
	if err := written(segments); err != nil {
		return cerr.Argument(opPostTags, fmt.Sprintf("operation %d of the batch", a.n), err)
	}
	tm.UnexpectedCnt = op.Unexpected
	if len(segments) > 0 {
		sges := a.place(a.n)
		for k := range segments {
			sges[k] = segments[k].sge()
		}
		tm.Add.SgList, tm.Add.NumSge = &sges[0], int32(len(segments))
	}
	place := &a.wrs[a.n]
	*place = libibverbs.OpsWr{WrId: op.ID, Opcode: opcode, Flags: int32(op.Flags), Tm: tm}
	if a.n > 0 {
		a.wrs[a.n-1].Next = place
	}
	b.deletes[a.n] = deletes
	a.n++
	runtime.KeepAlive(a)
	return nil
}

// Handle returns the handle of the receive that the operation at index i has
// added, when the batch was posted the last time.
func (b *TagBatch) Handle(i int) (TagHandle, error) {
	if i < 0 || i >= b.Len() || i >= b.posted || b.arena.wrs[i].Opcode != libibverbs.IBV_WR_TAG_ADD {
		return TagHandle{}, cerr.Refuse("TagBatch.Handle", "", "operation %d of a batch of %d has added no receive", i, b.Len())
	}
	h := TagHandle{b.to, b.arena.wrs[i].Tm.Handle}
	runtime.KeepAlive(b.arena)
	return h, nil
}
