package ibverbs

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error. The batch can be
// used again at once. The memory regions must stay open until their receives
// have completed.
func (wq *WQ) PostRecv(b *RecvBatch) (int, error) {
	if err := wq.self().Use(); err != nil {
		return 0, err
	}
	defer wq.object.Done()
	if b == nil || b.arena == nil {
		return 0, fmt.Errorf("post to %s: %w", wq.object.Name(), errNoBatch)
	}
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	wrs := b.arena.used()
	var bad *libibverbs.RecvWr
	if err := libibverbs.PostWqRecv(wq.raw, &wrs[0], &bad); err != nil {
		i := position(wrs, bad)
		return i, &PostError{Index: i, ID: wrs[i].WrId, Err: cerr.Wrap(wq.object.Name(), err)}
	}
	return len(wrs), nil
}
