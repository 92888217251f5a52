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

// TagOpFlags are options of an operation on a tag list; combine them with |.
type TagOpFlags = libibverbs.OpsFlags

// The options of an operation on a tag list.
const (
	TagOpSignaled TagOpFlags = libibverbs.IBV_OPS_SIGNALED // request a completion
	TagOpSync     TagOpFlags = libibverbs.IBV_OPS_TM_SYNC  // TagOp.Unexpected is valid
)

// TagOp holds the fields common to all operations on a tag list.
//
// A message that matches no receive in the list is unexpected, and takes a
// receive of SRQ.PostRecv. The device uses receives added afterwards only once
// the program has reported handling as many unexpected messages as the device
// has met, which keeps later messages from overtaking unexpected ones.
type TagOp struct {
	ID         uint64 // ID of the completion of the operation itself
	Flags      TagOpFlags
	Unexpected uint32 // with TagOpSync: unexpected messages that the program has handled so far
}

// TagRecv matches messages whose tag equals Tag in the bits that Mask has. Both
// are in the host's byte order.
type TagRecv struct {
	Tag, Mask uint64
	ID        uint64 // ID of the completion of the message
}

// TagHandle identifies a receive in the tag list of a shared receive queue,
// from when it is added until its message completes or it is deleted.
type TagHandle struct {
	srq    *SRQ
	handle uint32
}

// TagBatch is a list of operations on the tag list of a shared receive queue,
// which is posted in one call. Make it once and use it again, like a SendBatch.
// It must not be used concurrently.
type TagBatch struct {
	arena   *arena[libibverbs.OpsWr]
	deletes []*SRQ             // for each operation that deletes: the queue of its handle
	posted  int                // operations that the last call posted
	to      *SRQ               // queue that the last call posted to
	bad     **libibverbs.OpsWr // written by C; a local variable would be allocated for each call
}

// NewTagBatch makes a batch with room for the given number of operations, with
// at most the given number of segments for each receive that it adds. Its
// memory is released with the last reference to it.
func NewTagBatch(operations, segments int) (*TagBatch, error) {
	a, err := newArena[libibverbs.OpsWr](operations, segments)
	if err != nil {
		return nil, err
	}
	return &TagBatch{arena: a, deletes: make([]*SRQ, operations), bad: new(*libibverbs.OpsWr)}, nil
}

// Len returns the number of operations in the batch.
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

// Add adds a receive to the tag list: the device writes the next message that
// matches it, and no earlier receive, to the segments, in order. Memory regions
// must stay open until the message has completed or the receive is deleted.
// After the batch is posted, Handle returns the receive's handle.
//
// Add fails with syscall.EINVAL if the tag has bits that the mask lacks,
// because it would match nothing.
func (b *TagBatch) Add(op TagOp, recv TagRecv, segments ...Segment) error {
	if recv.Tag&^recv.Mask != 0 {
		return cerr.Refuse(opPostTags, "", "tag %#x has bits that its mask %#x lacks", recv.Tag, recv.Mask)
	}
	return b.add(op, libibverbs.IBV_WR_TAG_ADD, segments, nil, libibverbs.OpsWrTm{
		Add: libibverbs.OpsWrTmAdd{RecvWrId: recv.ID, Tag: recv.Tag, Mask: recv.Mask},
	})
}

// Delete removes a receive from the tag list. The handle must belong to the
// queue that the batch is posted to, and the program must not have seen the
// message's completion yet. If a message takes the receive first, the operation
// completes with the status WCTagMatching, and the message completes as well.
func (b *TagBatch) Delete(op TagOp, handle TagHandle) error {
	if handle.srq == nil {
		return cerr.Refuse(opPostTags, "", "the handle is zero; TagBatch.Handle returns one")
	}
	return b.add(op, libibverbs.IBV_WR_TAG_DEL, nil, handle.srq, libibverbs.OpsWrTm{Handle: handle.handle})
}

// Sync only reports op.Unexpected to the device, with or without TagOpSync in
// op.Flags. Completions with WCFlagTagSync ask for it.
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

// Handle returns the handle of the receive that the operation at index i added
// when the batch was last posted.
func (b *TagBatch) Handle(i int) (TagHandle, error) {
	if i < 0 || i >= b.Len() || i >= b.posted || b.arena.wrs[i].Opcode != libibverbs.IBV_WR_TAG_ADD {
		return TagHandle{}, cerr.Refuse("TagBatch.Handle", "", "operation %d of a batch of %d has added no receive", i, b.Len())
	}
	h := TagHandle{b.to, b.arena.wrs[i].Tm.Handle}
	runtime.KeepAlive(b.arena)
	return h, nil
}

// PostTagOps posts the batch's operations in one call of C and returns how many
// it posted, which is all of them unless it fails; see ibv_post_srq_ops(3). If
// an operation cannot be posted, the error is a *PostError. The batch can be
// changed or posted again at once. Signaled operations complete on the queue of
// SRQConfig.CQ, and so do messages, whose tag is in WC.TMInfo.
//
// PostTagOps fails with errors.ErrUnsupported if the queue is not of type
// SRQTypeTagMatching.
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
	defer runtime.KeepAlive(b.arena) // its cleanup would unmap the operations
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

// takes refuses operations that C would misunderstand: C trusts every handle.
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

// TagMessage is the kind of a message to a queue with a tag list.
type TagMessage = libibverbs.TmhOp

// The kinds of messages to a queue with a tag list.
const (
	TagMessageNoTag      TagMessage = libibverbs.IBV_TMH_NO_TAG // takes a receive of SRQ.PostRecv
	TagMessageRendezvous TagMessage = libibverbs.IBV_TMH_RNDV   // has a RendezvousHeader, which says where to read the data
	TagMessageFin        TagMessage = libibverbs.IBV_TMH_FIN    // reports that the data of a rendezvous has been read
	TagMessageEager      TagMessage = libibverbs.IBV_TMH_EAGER  // contains the data
)

// The lengths of the headers in bytes.
const (
	TagHeaderLen        = 16
	RendezvousHeaderLen = 16
)

// TagHeader is the header that the program puts before each message to a queue
// with a tag list. A message that matches a receive of the tag list arrives
// without it; one that takes a receive of SRQ.PostRecv arrives with it.
type TagHeader struct {
	Message TagMessage
	Context uint32 // any value; the receiver finds it in WC.TMInfo
	Tag     uint64
}

// AppendBinary appends the header as it is sent, TagHeaderLen bytes. It
// implements encoding.BinaryAppender.
func (h TagHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Message > math.MaxUint8 {
		return b, cerr.Refuse("TagHeader.AppendBinary", "", "tag header of message type %d", uint32(h.Message))
	}
	b = append(b, byte(h.Message), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Context)
	return binary.BigEndian.AppendUint64(b, h.Tag), nil
}

// ParseTagHeader parses the header of a message and returns the bytes after it.
// It fails with io.ErrUnexpectedEOF if the message is shorter than a header.
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

// RendezvousHeader follows the TagHeader of a message of kind
// TagMessageRendezvous. It describes the sender's memory from which to read the
// data.
type RendezvousHeader RemoteBuffer

// AppendBinary appends the header as it is sent, RendezvousHeaderLen bytes. It
// implements encoding.BinaryAppender.
func (h RendezvousHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Len > math.MaxUint32 {
		return b, cerr.Refuse("RendezvousHeader.AppendBinary", "", "rendezvous for %d bytes, of 4 GiB or more", h.Len)
	}
	b = binary.BigEndian.AppendUint64(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(h.Len)), nil
}

// ParseRendezvousHeader parses the header from the bytes that ParseTagHeader
// left of a message, and returns the bytes after it. It fails with
// io.ErrUnexpectedEOF if there are fewer bytes than a header has.
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
