package ibverbs

import (
	"fmt"
	"runtime"
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
	return fmt.Sprintf("request %d of the batch (ID %d), the ones before it were posted: %v", e.Index, e.ID, e.Err)
}

// Unwrap returns the C library's error: ENOMEM for a full queue, EINVAL for a
// request that cannot be right or a queue pair in the wrong state.
func (e *PostError) Unwrap() error { return e.Err }

// PostSend posts the batch's requests in one call of C and returns how many
// were posted, which is all of them unless there is an error; see
// ibv_post_send(3). The batch can be used again at once.
func (qp *QP) PostSend(b *SendBatch) (int, error) {
	if err := qp.object.Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	var bad *libibverbs.SendWr
	if err := libibverbs.PostSend(qp.raw, &b.wrs[0], &bad); err != nil {
		i := position(b.wrs[:b.n], bad)
		return i, &PostError{Index: i, ID: b.wrs[i].WrId, Err: cerr.Wrap(qp.object.Name(), err)}
	}
	return b.n, nil
}

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error; see
// ibv_post_recv(3). The batch can be used again at once.
func (qp *QP) PostRecv(b *RecvBatch) (int, error) {
	if err := qp.object.Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	var bad *libibverbs.RecvWr
	if err := libibverbs.PostRecv(qp.raw, &b.wrs[0], &bad); err != nil {
		i := position(b.wrs[:b.n], bad)
		return i, &PostError{Index: i, ID: b.wrs[i].WrId, Err: cerr.Wrap(qp.object.Name(), err)}
	}
	return b.n, nil
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
