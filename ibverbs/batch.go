// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"os"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/batchmem"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// ErrBatchFull is the error of adding a request to a batch that has no room for
// it.
var ErrBatchFull = errors.New("batch is full")

// noBatch returns the error for a batch that is nil, or that was not made by
// NewSendBatch or NewRecvBatch.
func noBatch(op, object string) error {
	return cerr.Refuse(op, object, "the batch is nil, or was not made by the package's functions")
}

// arena is memory outside Go's heap for a batch's requests and their segments,
// which C reads directly. Request i always points at its segments, which start
// at place(i). The collector frees the memory together with the arena, so code
// that uses the memory must keep the arena alive.
type arena[T any] struct {
	wrs      []T
	sges     []libibverbs.Sge
	segments int // maximum number of segments in a request
	n        int // number of requests in use
}

func newArena[T any](requests, segments int) (*arena[T], error) {
	a := &arena[T]{segments: segments}
	var err error
	a.wrs, a.sges, err = batchmem.Alloc[T](a, requests, segments)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// refused returns the reason why a request cannot have the segments, one of
// which is not valid. The caller gives copies the same value as for check.
func (a *arena[T]) refused(segments []Segment, copies bool) error {
	if err := a.check(segments, copies); err != nil {
		return err
	}
	return cerr.InvalidAs(os.ErrClosed, "the memory region of a segment was being closed")
}

// check returns an error if a request cannot have the segments. If copies is
// set, they may be from InlineBytes.
func (a *arena[T]) check(segments []Segment, copies bool) error {
	if len(segments) > a.segments {
		return cerr.Invalid("the request has %d segments, but the batch was made for %d", len(segments), a.segments)
	}
	for k := range segments {
		if segments[k].isValid() || copies && segments[k].inline != nil {
			continue
		}
		if err := segments[k].check(); err != nil {
			return inSegment(k, err)
		}
	}
	return nil
}

// place returns the segments of request i.
func (a *arena[T]) place(i int) []libibverbs.Sge {
	return a.sges[i*a.segments:][:a.segments]
}

// used returns the requests in the batch.
func (a *arena[T]) used() []T {
	if a == nil {
		return nil
	}
	return a.wrs[:a.n]
}

// held reports whether C reads objects of request i while it posts the request.
func (b *SendBatch) held(i int) bool {
	return b.arena.wrs[i].SendFlags&SendInline != 0 || b.more[i].used[0] != nil
}

// noteObjects records the objects that C reads while it posts request i, which
// was just added. second may be nil.
func (b *SendBatch) noteObjects(i int, first, second *object.Object) {
	if !b.held(i) {
		b.holds++
	}
	b.more[i].used = [2]*object.Object{first, second}
	b.stale = true
}

// listUses sets b.uses to the objects that C reads during a post. Consecutive
// requests with the same object have one entry.
func (b *SendBatch) listUses() {
	clear(b.uses)
	b.uses, b.stale = b.uses[:0], false
	var last *object.Object
	note := func(o *object.Object) {
		if o != nil && o != last {
			b.uses = append(b.uses, o)
			last = o
		}
	}
	for i := range b.arena.used() {
		if !b.held(i) {
			continue
		}
		for _, o := range b.more[i].used {
			note(o)
		}
		if b.arena.wrs[i].SendFlags&SendInline != 0 {
			for _, mr := range b.owners(i) {
				note(mr.self())
			}
		}
	}
}

// begin prepares the batch, whose requests are wrs, for C: it ends the list
// with the last request, and keeps the objects that C reads from being
// destroyed until finish.
func (b *SendBatch) begin(wrs []libibverbs.SendWr) error {
	if b.holds > 0 {
		if err := b.hold(); err != nil {
			return err
		}
	}
	wrs[len(wrs)-1].Next = nil
	return nil
}

// finish undoes what begin did. It links the last request to the free one that
// follows, so that adding a request need not link it: this way the link is set
// once for each post and not once for each request.
func (b *SendBatch) finish() {
	if n := b.arena.n; n < len(b.arena.wrs) {
		b.arena.wrs[n-1].Next = &b.arena.wrs[n]
	}
	if b.holds > 0 {
		b.release()
	}
}

func (b *SendBatch) hold() error {
	if b.stale {
		b.listUses()
	}
	for i, o := range b.uses {
		if err := o.Use(); err != nil {
			for _, used := range b.uses[:i] {
				used.Done()
			}
			return fmt.Errorf("a request uses an object that was closed: %w", err)
		}
	}
	return nil
}

func (b *SendBatch) release() {
	for _, o := range b.uses {
		o.Done()
	}
}
