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
// receive of [ibverbs.SRQ.PostRecv]. The device uses receives added afterwards
// only once the program has reported handling as many unexpected messages as
// the device has met, which keeps later messages from overtaking unexpected
// ones.
type Op struct {
	ID         uint64 // ID of the completion of the operation itself
	Flags      OpFlags
	Unexpected uint32 // with OpSync: unexpected messages that the program has handled so far
}

// Recv matches messages whose tag equals Tag in the bits that Mask has. A zero
// Mask matches every tag. Both are in the host's byte order.
type Recv struct {
	Tag, Mask uint64
	ID        uint64 // ID of the completion of the message
}

// Handle identifies a receive in the tag list of a shared receive queue, from
// when it is added until its message completes or it is deleted.
type Handle struct {
	srq    *ibverbs.SRQ
	handle uint32
}

// Batch is a list of operations on the tag list of a shared receive queue,
// which is posted in one call. Make it once and use it again, like an
// [ibverbs.SendBatch]. It must not be used concurrently.
type Batch struct {
	ops      []libibverbs.OpsWr // all that there is room for
	n        int                // operations in use
	sges     []libibverbs.Sge   // of all operations
	segments int                // of an operation, at most
	deletes  []*ibverbs.SRQ     // for each operation that deletes: the queue of its handle
	posted   int                // operations that the last call posted
	to       *ibverbs.SRQ       // queue that the last call posted to
	bad      **libibverbs.OpsWr // written by C; a local variable would be allocated for each call
}

// NewBatch makes a batch with room for the given number of operations, with at
// most the given number of segments for each receive that it adds. Its memory
// is released with the last reference to it.
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

// Add adds a receive to the tag list: the device writes the next message that
// matches it, and no earlier receive, into the segments in order. Memory
// regions must stay open until the message has completed or the receive is
// deleted. After the batch is posted, Handle returns the receive's handle.
//
// Add fails with an error matching syscall.EINVAL if the tag has bits that the
// mask lacks, because it would match nothing.
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
		return cerr.Refuse(opPost, "", "the handle is zero; Batch.Handle returns one")
	}
	return b.add(op, libibverbs.IBV_WR_TAG_DEL, nil, handle.srq, libibverbs.OpsWrTm{Handle: handle.handle})
}

// Sync only reports op.Unexpected to the device, with or without OpSync in
// op.Flags. Completions with [ibverbs.WCFlagTagSync] ask for it.
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
	b.ops[i] = libibverbs.OpsWr{WrId: op.ID, Opcode: opcode, Flags: int32(op.Flags), Tm: tm}
	if i > 0 {
		b.ops[i-1].Next = &b.ops[i]
	}
	b.deletes[i] = deletes
	b.n++
	runtime.KeepAlive(b)
	return nil
}

// place makes the segments those of operation i, to which the device is to
// write, and returns them as C takes them.
func (b *Batch) place(i int, segments []ibverbs.Segment) ([]libibverbs.Sge, error) {
	if len(segments) > b.segments {
		return nil, cerr.Invalid("%d segments in a batch made for %d", len(segments), b.segments)
	}
	return sibling.AppendSGEs(b.sges[i*b.segments:][:0], segments, true)
}

// Handle returns the handle of the receive that the operation at index i added
// when the batch was last posted.
func (b *Batch) Handle(i int) (Handle, error) {
	if i < 0 || i >= b.Len() || i >= b.posted || b.ops[i].Opcode != libibverbs.IBV_WR_TAG_ADD {
		return Handle{}, cerr.Refuse("tag.Batch.Handle", "", "operation %d of a batch of %d has added no receive", i, b.Len())
	}
	h := Handle{b.to, b.ops[i].Tm.Handle}
	runtime.KeepAlive(b)
	return h, nil
}
