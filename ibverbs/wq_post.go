package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError. It
// does what QP.PostRecv does for a queue pair's own receives. The batch can be
// used again at once. The memory regions must stay open until their receives
// have completed.
func (wq *WQ) PostRecv(b *RecvBatch) (int, error) {
	return b.post(wq.self(), func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error) {
		err = libibverbs.PostWqRecv(wq.raw, first, &bad)
		return bad, err
	})
}
