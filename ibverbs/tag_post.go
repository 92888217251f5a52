package ibverbs

import (
	"runtime"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
