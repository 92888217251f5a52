package ibverbs

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
)

// PostSend posts the batch's requests in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError. The
// batch can be used or changed again at once. The memory regions must stay open
// until their requests have completed, or with SendInline until they are
// posted.
//
// A queue pair that was made with QPConfig.SendOps posts all requests or none;
// see ibv_wr_post(3). Any other posts those before the one that fails; see
// ibv_post_send(3).
func (qp *QP) PostSend(b *SendBatch) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	n, err := qp.postSend(b)
	qp.object.Done() // not deferred, because that takes instructions in every call
	return n, err
}

func (qp *QP) postSend(b *SendBatch) (int, error) {
	wrs, err := qp.sendList(b)
	if len(wrs) == 0 {
		return 0, err
	}
	var p datapath.Posted
	datapath.PostSend(qp.forSending(), qp.sendOps, &wrs[0], &p)
	b.finish()
	n := len(wrs)
	if p.Value != 0 {
		n, err = qp.notSent(wrs, &p)
	}
	runtime.KeepAlive(b) // whose cleanup would unmap the requests
	return n, err
}

const (
	opPostSend = "ibv_post_send"
	opPostRecv = "ibv_post_recv"
)

// sendList returns what C posts, with the batch ready for it: nothing if there
// is an error or nothing to post.
func (qp *QP) sendList(b *SendBatch) ([]libibverbs.SendWr, error) {
	if b == nil || b.arena == nil {
		return nil, noBatch(opPostSend, qp.object.Name())
	}
	wrs := b.arena.used()
	if len(wrs) == 0 {
		return nil, nil
	}
	if b.extended != 0 || qp.raw.QpType == QPTypeUD {
		if err := qp.takes(b); err != nil {
			return nil, err
		}
	}
	if err := b.begin(wrs); err != nil {
		return nil, err
	}
	return wrs, nil
}

// forSending is what C gets for the queue pair.
func (qp *QP) forSending() unsafe.Pointer {
	if qp.sendOps != 0 {
		return unsafe.Pointer(qp.ex)
	}
	return unsafe.Pointer(qp.raw)
}

// takes refuses what C would misunderstand.
func (qp *QP) takes(b *SendBatch) error {
	refused, unsupported := -1, true
	if qp.sendOps == 0 {
		refused = b.extended - 1
	}
	if qp.raw.QpType == QPTypeUD && refused < 0 {
		refused, unsupported = b.notDatagram(), false
	}
	if refused < 0 {
		return nil
	}
	why := cerr.Invalid("a queue pair of type %s takes only datagrams, such as those of SendTo", QPTypeUD)
	if unsupported {
		why = cerr.InvalidAs(syscall.EOPNOTSUPP, "the queue pair was made without QPConfig.SendOps")
	}
	wr := &b.arena.wrs[refused]
	err := cerr.Argument(opPostSend, fmt.Sprintf("%v on %s", wr.Opcode, qp.object.Name()), why)
	return &PostError{Index: refused, ID: wr.WrId, None: true, Err: err}
}

// notSent makes an error of what C failed with, and says how many were posted.
func (qp *QP) notSent(wrs []libibverbs.SendWr, p *datapath.Posted) (int, error) {
	op := opPostSend
	if p.None != 0 {
		op = "ibv_wr_complete"
	}
	e := &PostError{Index: position(wrs, (*libibverbs.SendWr)(p.Bad)), Err: wrap(qp.object.Name(), cerr.Code(op, p.Value, p.Errno))}
	e.ID = wrs[e.Index].WrId
	if e.None = p.None != 0; !e.None {
		return e.Index, e
	}
	if p.Bad == nil && len(wrs) > 1 {
		e.Index, e.ID = -1, 0
	}
	return 0, e
}

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError; see
// ibv_post_recv(3). The batch can be used or changed again at once. The memory
// regions must stay open until their receives have completed.
func (qp *QP) PostRecv(b *RecvBatch) (int, error) {
	return b.post(qp.self(), func(first *libibverbs.RecvWr) (*libibverbs.RecvWr, error) {
		var p datapath.Posted
		datapath.PostRecv(qp.raw, first, &p)
		return recvPosted(&p)
	})
}

// recvPosted makes an error of what C said, and says which receive it is.
func recvPosted(p *datapath.Posted) (bad *libibverbs.RecvWr, err error) {
	return (*libibverbs.RecvWr)(p.Bad), cerr.Code(opPostRecv, p.Value, p.Errno)
}

// post posts the batch to an object with a function that calls C once, with
// the first request of the list, and returns the one that C could not post.
func (b *RecvBatch) post(to *object.Object, post func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error)) (int, error) {
	if err := to.Use(); err != nil {
		return 0, err
	}
	defer to.Done()
	if b == nil || b.arena == nil {
		return 0, noBatch(opPostRecv, to.Name())
	}
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	if bad, err := post(&b.arena.wrs[0]); err != nil {
		return b.failed(to, bad, err)
	}
	return b.arena.n, nil
}

// failed says which receive could not be posted.
func (b *RecvBatch) failed(to *object.Object, bad *libibverbs.RecvWr, err error) (int, error) {
	wrs := b.arena.used()
	i := position(wrs, bad)
	return i, &PostError{Index: i, ID: wrs[i].WrId, Err: wrap(to.Name(), err)}
}

// position returns the index of the request that C could not post, 0 if C did
// not say.
func position[T any](wrs []T, bad *T) int {
	offset := uintptr(unsafe.Pointer(bad)) - uintptr(unsafe.Pointer(&wrs[0]))
	if i := offset / unsafe.Sizeof(wrs[0]); bad != nil && i < uintptr(len(wrs)) {
		return int(i)
	}
	return 0
}

// PostError says which request of a batch could not be posted. Those before it
// were posted, unless None is set; it and those after it were not.
type PostError struct {
	Index int    // of the request in the batch; -1 if C does not say which it is
	ID    uint64 // of the request
	None  bool   // nothing was posted, as with ibv_wr_*
	Err   error
}

// Error says which request it was, what became of the others, and what C said.
func (e *PostError) Error() string {
	s := "the batch"
	if e.Index >= 0 {
		s = fmt.Sprintf("request %d of the batch (ID %d)", e.Index, e.ID)
	}
	switch {
	case e.None:
		s += ", none was posted"
	case e.Index > 0:
		s += ", the ones before it were posted"
	}
	s += ": " + e.Err.Error()
	if errors.Is(e.Err, syscall.ENOMEM) {
		s += ": the queue is full until completions have been polled"
	}
	return s
}

// Unwrap returns the C library's error: ENOMEM for a full queue (Soft-RoCE's
// ibv_wr_* give ENOSPC), EINVAL for a request that cannot be right or a queue
// pair in the wrong state, and one that is errors.ErrUnsupported for a request
// that the queue pair was not made for.
func (e *PostError) Unwrap() error { return e.Err }
