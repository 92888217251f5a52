package ibverbs

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PostError says which request of a batch could not be posted. Those before it
// were posted; it and those after it were not.
type PostError struct {
	Index int    // of the request in the batch
	ID    uint64 // of the request
	Err   error
}

func (e *PostError) Error() string {
	s := fmt.Sprintf("request %d of the batch (ID %d)", e.Index, e.ID)
	if e.Index > 0 {
		s += ", the ones before it were posted"
	}
	s += ": " + e.Err.Error()
	if errors.Is(e.Err, syscall.ENOMEM) {
		s += ": the queue is full until completions have been polled"
	}
	return s
}

// Unwrap returns the C library's error: ENOMEM for a full queue, EINVAL for a
// request that cannot be right or a queue pair in the wrong state.
func (e *PostError) Unwrap() error { return e.Err }

// PostSend posts the batch's requests in one call of C and returns how many
// were posted, which is all of them unless there is an error; see
// ibv_post_send(3). The batch can be used again at once. The memory regions
// must stay open until their requests have completed, or with SendInline until
// they are posted.
func (qp *QP) PostSend(b *SendBatch) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	if b == nil || b.arena == nil {
		return 0, fmt.Errorf("post to %s: %w", qp.object.Name(), errNoBatch)
	}
	if b.Len() == 0 {
		return 0, nil
	}
	if err := b.useInline(); err != nil {
		return 0, err
	}
	defer doneInline(b.inline)
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	wrs := b.arena.used()
	var bad *libibverbs.SendWr
	if err := libibverbs.PostSend(qp.raw, &wrs[0], &bad); err != nil {
		i := position(wrs, bad)
		return i, &PostError{Index: i, ID: wrs[i].WrId, Err: cerr.Wrap(qp.object.Name(), err)}
	}
	return len(wrs), nil
}

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error; see
// ibv_post_recv(3). The batch can be used again at once. The memory regions
// must stay open until their receives have completed.
func (qp *QP) PostRecv(b *RecvBatch) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	if b == nil || b.arena == nil {
		return 0, fmt.Errorf("post to %s: %w", qp.object.Name(), errNoBatch)
	}
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	wrs := b.arena.used()
	var bad *libibverbs.RecvWr
	if err := libibverbs.PostRecv(qp.raw, &wrs[0], &bad); err != nil {
		i := position(wrs, bad)
		return i, &PostError{Index: i, ID: wrs[i].WrId, Err: cerr.Wrap(qp.object.Name(), err)}
	}
	return len(wrs), nil
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
