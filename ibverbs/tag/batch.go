// SPDX-License-Identifier: Apache-2.0

package tag

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/batchmem"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
)

// OpFlags are options of an operation on a tag list; combine them with |.
type OpFlags = libibverbs.OpsFlags

// The options of an operation on a tag list.
const (
	OpSignaled OpFlags = libibverbs.IBV_OPS_SIGNALED // request a completion
	OpSync     OpFlags = libibverbs.IBV_OPS_TM_SYNC  // Op.Unexpected is valid
)

// Op holds the fields common to all operations on a tag list.
//
// A message that matches no receive in the list is unexpected, and takes a
// receive of [ibverbs.SRQ.PostRecv]. After an unexpected message, the device
// uses newly added receives only once the program has reported that it has
// handled all unexpected messages so far. Otherwise, later messages could
// overtake the unexpected ones.
type Op struct {
	ID         uint64 // ID of the completion of the operation itself
	Flags      OpFlags
	Unexpected uint32 // number of unexpected messages that the program has handled so far, with OpSync
}

// Recv matches messages whose tag equals Tag in the bits that are set in Mask.
// A zero Mask matches every tag. Tag and Mask are in the host's byte order.
type Recv struct {
	Tag, Mask uint64
	ID        uint64 // ID of the completion of the message
}

// Handle identifies a receive in the tag list of a shared receive queue. It is
// valid from when the receive is added until its message completes or it is
// deleted.
type Handle struct {
	srq    *ibverbs.SRQ
	handle uint32
}

// Batch is a list of operations on the tag list of a shared receive queue,
// which is posted in one call. Make it once and use it again, like an
// [ibverbs.SendBatch]. It must not be used concurrently.
type Batch struct {
	ops      []libibverbs.OpsWr // operations, as many as there is room for
	n        int                // number of operations in use
	sges     []libibverbs.Sge   // segments of all operations
	segments int                // maximum number of segments in an operation
	deletes  []*ibverbs.SRQ     // queue of the deleted handle, for each operation that deletes
	posted   int                // number of operations that the last call posted
	to       *ibverbs.SRQ       // queue that the last call posted to
	bad      **libibverbs.OpsWr // written by C; a local variable would be allocated for each call
}

// NewBatch makes a batch with room for the given number of operations. Each
// receive that the batch adds may have at most the given number of segments.
// The memory of the batch is released with the last reference to it.
func NewBatch(operations, segments int) (*Batch, error) {
	b := &Batch{segments: segments, bad: new(*libibverbs.OpsWr)}
	var err error
	b.ops, b.sges, err = batchmem.Alloc[libibverbs.OpsWr](b, operations, segments)
	if err != nil {
		return nil, err
	}
	b.deletes = make([]*ibverbs.SRQ, operations)
	return b, nil
}

// noBatch returns the error for a batch that is nil, or that NewBatch did not
// make.
func noBatch(object string) error {
	return cerr.Refuse(opPost, object, "the batch is nil, or was not made by the package's functions")
}

// Len returns the number of operations in the batch.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	return b.n
}

// Reset empties the batch.
func (b *Batch) Reset() {
	if b.Len() > 0 {
		clear(b.deletes[:b.n])
		b.n, b.posted, b.to = 0, 0, nil
	}
}

// Add adds a receive to the tag list. The device writes the next message that
// matches the receive, and no earlier one, into the segments in order. Memory
// regions must stay open until the message has completed or the receive is
// deleted. After the batch is posted, Handle returns the receive's handle.
//
// Add fails with an error matching syscall.EINVAL if recv.Tag has bits that
// recv.Mask lacks, because the receive would match nothing.
func (b *Batch) Add(op Op, recv Recv, segments ...ibverbs.Segment) error {
	if recv.Tag&^recv.Mask != 0 {
		return cerr.Refuse(opPost, "", "tag %#x has bits that its mask %#x lacks", recv.Tag, recv.Mask)
	}
	return b.add(op, libibverbs.IBV_WR_TAG_ADD, segments, nil, libibverbs.OpsWrTm{
		Add: libibverbs.OpsWrTmAdd{RecvWrId: recv.ID, Tag: recv.Tag, Mask: recv.Mask},
	})
}

// Delete removes a receive from the tag list. The handle must belong to the
// queue that the batch is posted to, and the program must not have seen the
// message's completion yet. If a message takes the receive first, the operation
// completes with the status [ibverbs.WCTagMatching], and the message completes
// as well.
func (b *Batch) Delete(op Op, handle Handle) error {
	if handle.srq == nil {
		return cerr.Refuse(opPost, "", "the handle is the zero Handle; use one from Batch.Handle")
	}
	return b.add(op, libibverbs.IBV_WR_TAG_DEL, nil, handle.srq, libibverbs.OpsWrTm{Handle: handle.handle})
}

// Sync adds an operation that changes no receive: when the batch is posted, it
// reports op.Unexpected to the device, even without OpSync in op.Flags. With a
// completion that has [ibverbs.WCFlagTagSync], the device asks for such a
// report.
func (b *Batch) Sync(op Op) error {
	op.Flags |= OpSync
	return b.add(op, libibverbs.IBV_WR_TAG_SYNC, nil, nil, libibverbs.OpsWrTm{})
}

func (b *Batch) add(
	op Op, opcode libibverbs.OpsWrOpcode, segments []ibverbs.Segment, deletes *ibverbs.SRQ, tm libibverbs.OpsWrTm,
) error {
	if b == nil || b.ops == nil {
		return noBatch("")
	}
	i := b.n
	if i == len(b.ops) {
		return ibverbs.ErrBatchFull
	}
	sges, err := b.place(i, segments)
	if err != nil {
		return cerr.Argument(opPost, fmt.Sprintf("operation %d of the batch", i), err)
	}
	tm.UnexpectedCnt = op.Unexpected
	if len(sges) > 0 {
		tm.Add.SgList, tm.Add.NumSge = &sges[0], int32(len(sges))
	}
	b.ops[i] = libibverbs.OpsWr{WrId: op.ID, Opcode: opcode, Flags: op.Flags, Tm: tm}
	if i > 0 {
		b.ops[i-1].Next = &b.ops[i]
	}
	b.deletes[i] = deletes
	b.n++
	runtime.KeepAlive(b)
	return nil
}

// place stores the segments as the segments of operation i, and returns them in
// C's form. The device will write to them.
func (b *Batch) place(i int, segments []ibverbs.Segment) ([]libibverbs.Sge, error) {
	if len(segments) > b.segments {
		return nil, cerr.Invalid("the operation has %d segments, but the batch was made for %d", len(segments), b.segments)
	}
	return sibling.AppendSGEs(b.sges[i*b.segments:][:0], segments, true)
}

// Handle returns the handle of the receive that the operation at index i added
// when the batch was last posted.
func (b *Batch) Handle(i int) (Handle, error) {
	if i < 0 || i >= b.Len() || i >= b.posted || b.ops[i].Opcode != libibverbs.IBV_WR_TAG_ADD {
		return Handle{}, cerr.Refuse("tag.Batch.Handle", "", "operation %d of %d in the batch has not added a receive", i, b.Len())
	}
	h := Handle{b.to, b.ops[i].Tm.Handle}
	runtime.KeepAlive(b)
	return h, nil
}
