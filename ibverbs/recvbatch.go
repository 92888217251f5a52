// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// RecvBatch is a list of receives that is posted in one call. Make it once and
// use it again, like a SendBatch. It must not be used concurrently. See
// ibv_post_recv(3).
type RecvBatch struct{ arena *arena[libibverbs.RecvWr] }

// NewRecvBatch makes a batch with room for the given number of receives, each
// with at most the given number of segments. Its memory is released with the
// last reference to it.
func NewRecvBatch(requests, segments int) (*RecvBatch, error) {
	a, err := newArena[libibverbs.RecvWr](requests, segments)
	if err != nil {
		return nil, err
	}
	for i := range a.wrs {
		a.wrs[i].SgList = unsafe.SliceData(a.place(i))
	}
	return &RecvBatch{a}, nil
}

// Len returns the number of receives in the batch.
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

// Recv adds a receive: the device writes the next message, unless an earlier
// receive takes it, into the segments in order. The completion has the ID. Recv
// fails with an error matching ErrBatchFull, or syscall.EINVAL if a segment is
// invalid; see ibv_post_recv(3).
func (b *RecvBatch) Recv(id uint64, segments ...Segment) error {
	if b == nil || b.arena == nil {
		return noBatch(opPostRecv, "")
	}
	a := b.arena
	i := a.n
	if i >= len(a.wrs) {
		return ErrBatchFull
	}
	if len(segments) > a.segments {
		return refusedRecv(i, a.refused(segments, false))
	}
	first := i * a.segments
	for k := range segments {
		if !segments[k].isValid() {
			return refusedRecv(i, a.refused(segments, false))
		}
		if segments[k].mr.readOnly {
			if err := written(segments[:k+1]); err != nil {
				return refusedRecv(i, err)
			}
		}
		a.sges[first+k] = segments[k].sge()
	}
	wr := &a.wrs[i]
	wr.WrId, wr.Next, wr.NumSge = id, nil, int32(len(segments))
	if i > 0 {
		a.wrs[i-1].Next = wr
	}
	a.n = i + 1
	runtime.KeepAlive(b)
	return nil
}

// WR returns the receive at index i, to change it in place. Changing a receive
// that has been posted does not affect what C was given.
func (b *RecvBatch) WR(i int) RecvWR { return RecvWR{b, i} }

// RecvWR is a receive of a batch. It is valid until Reset. Its methods fail if
// the batch does not have the receive, or if Recv would refuse the new value. A
// method that fails leaves the receive unchanged.
type RecvWR struct {
	batch *RecvBatch
	i     int
}

func (r RecvWR) wr() (*libibverbs.RecvWr, error) {
	if r.i < 0 || r.i >= r.batch.Len() {
		return nil, cerr.Refuse(opPostRecv, fmt.Sprintf("receive %d", r.i), "the batch has %d receives", r.batch.Len())
	}
	return &r.batch.arena.wrs[r.i], nil
}

// SetID changes the ID.
func (r RecvWR) SetID(id uint64) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	wr.WrId = id
	runtime.KeepAlive(r.batch)
	return nil
}

// SetSegments changes the segments that the message is written to.
func (r RecvWR) SetSegments(segments ...Segment) error {
	wr, err := r.wr()
	if err != nil {
		return err
	}
	if err := r.batch.arena.check(segments, false); err != nil {
		return refusedRecv(r.i, err)
	}
	if err := written(segments); err != nil {
		return refusedRecv(r.i, err)
	}
	wr.NumSge = int32(len(segments))
	sges := r.batch.arena.place(r.i)
	for k := range segments {
		sges[k] = segments[k].sge()
	}
	runtime.KeepAlive(r.batch)
	return nil
}

// refusedRecv returns the error for a receive at index i that the batch refuses
// because of err.
func refusedRecv(i int, err error) error {
	return cerr.Argument(opPostRecv, fmt.Sprintf("receive %d of the batch", i), err)
}
