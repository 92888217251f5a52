package ibverbs

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RecvBatch is a list of receives that is posted in one call, made once and
// used again as a SendBatch is. It must not be used concurrently.
type RecvBatch struct{ arena *arena[libibverbs.RecvWr] }

// NewRecvBatch makes a batch for so many receives with up to so many segments
// each. Its memory goes away with the last reference to it.
func NewRecvBatch(requests, segments int) (*RecvBatch, error) {
	a, err := newArena[libibverbs.RecvWr](requests, segments)
	if err != nil {
		return nil, err
	}
	return &RecvBatch{a}, nil
}

// Len returns how many receives the batch has.
func (b *RecvBatch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.arena.used())
}

// Reset empties the batch.
func (b *RecvBatch) Reset() {
	if b.Len() > 0 {
		b.arena.n = 0
	}
}

// Recv adds a receive: the next message that no earlier receive takes is
// written to the segments, in order. The ID comes back with the completion.
func (b *RecvBatch) Recv(id uint64, segments ...Segment) error {
	if b == nil {
		return errNoBatch
	}
	a := b.arena
	place, sges, err := a.next(segments, false)
	if err != nil {
		return err
	}
	*place = libibverbs.RecvWr{WrId: id, SgList: sges, NumSge: int32(len(segments))}
	if a.n > 0 {
		a.wrs[a.n-1].Next = place
	}
	a.n++
	runtime.KeepAlive(a)
	return nil
}

// Request returns the receive at index i, to be changed in place. It may have
// been posted: what C was given does not change any more.
func (b *RecvBatch) Request(i int) RecvRequest { return RecvRequest{b, i} }

// RecvRequest is a receive of a batch. It is valid until Reset. Setting
// something of a receive that the batch does not have gives an error, and so
// does what Recv would refuse; the receive is then as it was.
type RecvRequest struct {
	batch *RecvBatch
	i     int
}

func (r RecvRequest) wr() (*libibverbs.RecvWr, error) {
	if r.i < 0 || r.i >= r.batch.Len() {
		return nil, fmt.Errorf("receive %d of a batch of %d: %w", r.i, r.batch.Len(), syscall.EINVAL)
	}
	return &r.batch.arena.wrs[r.i], nil
}

// SetID changes the ID.
func (r RecvRequest) SetID(id uint64) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	wr.WrId = id
	runtime.KeepAlive(r.batch)
	return nil
}

// SetSegments changes where the message goes.
func (r RecvRequest) SetSegments(segments ...Segment) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	sges, err := r.batch.arena.write(r.i, segments, false)
	if err != nil {
		return err
	}
	wr.SgList, wr.NumSge = sges, int32(len(segments))
	runtime.KeepAlive(r.batch)
	return nil
}
