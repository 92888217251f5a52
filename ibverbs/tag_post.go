package ibverbs

import (
	"fmt"
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
		return 0, fmt.Errorf("post to %s: %w", srq.object.Name(), errNoBatch)
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
		return b.posted, &PostError{Index: b.posted, ID: wrs[b.posted].WrId, Err: cerr.Wrap(srq.object.Name(), err)}
	}
	return len(wrs), nil
}

// takes refuses what C would misunderstand: it trusts every handle.
func (srq *SRQ) takes(b *TagBatch) error {
	wrs := b.arena.used()
	for i := range wrs {
		what, errno := "", syscall.EINVAL
		switch from := b.deletes[i]; {
		case srq.srqType != SRQTypeTagMatching:
			what, errno = fmt.Sprintf("%v on %s", wrs[i].Opcode, srq.object.Name()), syscall.EOPNOTSUPP
		case from != nil && from != srq:
			what = fmt.Sprintf("%s, with a handle of %s", srq.object.Name(), from.object.Name())
		default:
			continue
		}
		err := &cerr.Error{Op: "ibv_post_srq_ops", Object: what, Errno: errno}
		return &PostError{Index: i, ID: wrs[i].WrId, None: true, Err: err}
	}
	return nil
}
