package ibverbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"syscall"

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

// PostTagOps posts the batch's operations in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError; see
// ibv_post_srq_ops(3). The batch can be used or changed again at once. The
// operations complete, if they are signaled, on the queue of SRQConfig.CQ; so
// do messages, with the tag in WC.TMInfo.
//
// A queue that is not of the type SRQTypeTagMatching gives an error that is
// errors.ErrUnsupported.
func (srq *SRQ) PostTagOps(b *TagBatch) (int, error) {
	if err := srq.self().Use(); err != nil {
		return 0, err
	}
	defer srq.object.Done()
	if b == nil || b.arena == nil {
		return 0, noBatch(opPostTags, srq.object.Name())
	}
	if b.Len() == 0 {
		return 0, nil
	}
	if err := srq.takes(b); err != nil {
		return 0, err
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the operations
	wrs := b.arena.used()
	b.posted, b.to = len(wrs), srq
	*b.bad = nil
	if err := libibverbs.PostSrqOps(srq.raw, &wrs[0], b.bad); err != nil {
		b.posted = position(wrs, *b.bad)
		return b.posted, &PostError{Index: b.posted, ID: wrs[b.posted].WrId, Err: wrap(srq.object.Name(), err)}
	}
	return len(wrs), nil
}

const opPostTags = "ibv_post_srq_ops"

// takes refuses what C would misunderstand: it trusts every handle.
func (srq *SRQ) takes(b *TagBatch) error {
	wrs := b.arena.used()
	for i := range wrs {
		var why error
		switch from := b.deletes[i]; {
		case srq.srqType != SRQTypeTagMatching:
			why = cerr.InvalidAs(syscall.EOPNOTSUPP, "%v needs a queue of type %s", wrs[i].Opcode, SRQTypeTagMatching)
		case from != nil && from != srq:
			why = cerr.Invalid("the handle is of %s", from.object.Name())
		default:
			continue
		}
		return &PostError{Index: i, ID: wrs[i].WrId, None: true, Err: cerr.Argument(opPostTags, srq.object.Name(), why)}
	}
	return nil
}

// TagMessage says what a message to a queue with a tag list is.
type TagMessage = libibverbs.TmhOp

// The kinds of messages to a queue with a tag list.
const (
	TagMessageNoTag      TagMessage = libibverbs.IBV_TMH_NO_TAG // takes a receive of SRQ.PostRecv
	TagMessageRendezvous TagMessage = libibverbs.IBV_TMH_RNDV   // a RendezvousHeader says where the data is, to be read from there
	TagMessageFin        TagMessage = libibverbs.IBV_TMH_FIN    // the data of a rendezvous has been read
	TagMessageEager      TagMessage = libibverbs.IBV_TMH_EAGER  // has the data itself
)

// The lengths of the headers in bytes.
const (
	TagHeaderLen        = 16
	RendezvousHeaderLen = 16
)

// TagHeader is what the program puts in front of each message to a queue with
// a tag list. The device leaves it out of what a receive of the list gets; one
// of SRQ.PostRecv has it.
type TagHeader struct {
	Message TagMessage
	Context uint32 // anything; WC.TMInfo has it at the other side
	Tag     uint64
}

// AppendBinary appends the header as it is sent, TagHeaderLen bytes. It is an
// encoding.BinaryAppender.
func (h TagHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Message > math.MaxUint8 {
		return b, cerr.Refuse("TagHeader.AppendBinary", "", "tag header of message type %d", uint32(h.Message))
	}
	b = append(b, byte(h.Message), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Context)
	return binary.BigEndian.AppendUint64(b, h.Tag), nil
}

// ParseTagHeader reads the header of a message and returns what follows it. If
// the message is shorter than a header, the error is io.ErrUnexpectedEOF.
func ParseTagHeader(message []byte) (h TagHeader, rest []byte, err error) {
	if len(message) < TagHeaderLen {
		return TagHeader{}, nil, fmt.Errorf("tag header in a message of %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return TagHeader{
		Message: TagMessage(message[0]),
		Context: binary.BigEndian.Uint32(message[4:]),
		Tag:     binary.BigEndian.Uint64(message[8:]),
	}, message[TagHeaderLen:], nil
}

// RendezvousHeader follows the TagHeader of a message that is
// TagMessageRendezvous: the sender's memory that the data is to be read from.
type RendezvousHeader RemoteBuffer

// AppendBinary appends the header as it is sent, RendezvousHeaderLen bytes. It
// is an encoding.BinaryAppender.
func (h RendezvousHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Len > math.MaxUint32 {
		return b, cerr.Refuse("RendezvousHeader.AppendBinary", "", "rendezvous for %d bytes, of 4 GiB or more", h.Len)
	}
	b = binary.BigEndian.AppendUint64(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(h.Len)), nil
}

// ParseRendezvousHeader reads the header from what ParseTagHeader left of a
// message, and returns what follows it. If that is shorter than a header, the
// error is io.ErrUnexpectedEOF.
func ParseRendezvousHeader(message []byte) (h RendezvousHeader, rest []byte, err error) {
	if len(message) < RendezvousHeaderLen {
		return RendezvousHeader{}, nil, fmt.Errorf("rendezvous header in %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return RendezvousHeader{
		Addr: binary.BigEndian.Uint64(message),
		RKey: binary.BigEndian.Uint32(message[8:]),
		Len:  uint64(binary.BigEndian.Uint32(message[12:])),
	}, message[RendezvousHeaderLen:], nil
}
