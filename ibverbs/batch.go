package ibverbs

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/mem"
)

// ErrBatchFull says that a batch has no room for another request.
var ErrBatchFull = errors.New("batch is full")

// errNoBatch is a batch that is nil, or that was not made by NewSendBatch or
// NewRecvBatch.
var errNoBatch = fmt.Errorf("no batch: %w", syscall.EINVAL)

// arena is memory outside of Go's heap for a batch's requests, which point at
// each other and at their segments, and which C reads as they are. A nil one
// has no room.
type arena[T any] struct {
	wrs      []T
	sges     []libibverbs.Sge
	segments int // of each request
	n        int // requests in use
}

func newArena[T any](requests, segments int) (*arena[T], error) {
	if requests < 1 || segments < 0 || requests > 1<<20 || segments > 1<<10 {
		return nil, fmt.Errorf("batch of %d requests with %d segments each: %w", requests, segments, syscall.EINVAL)
	}
	var wr T
	bytes := int(unsafe.Sizeof(wr)) * requests
	memory, err := mem.Alloc(bytes + int(unsafe.Sizeof(libibverbs.Sge{}))*requests*segments)
	if err != nil {
		return nil, fmt.Errorf("batch of %d requests with %d segments each: %w", requests, segments, err)
	}
	a := &arena[T]{wrs: unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), requests), segments: segments}
	if segments > 0 {
		a.sges = unsafe.Slice((*libibverbs.Sge)(unsafe.Pointer(&memory[bytes])), requests*segments)
	}
	// Memory alone needs no order in which it goes away, so this may be left
	// to the collector. Whoever touches it has to keep the arena alive.
	runtime.AddCleanup(a, func(m []byte) { _ = mem.Free(m) }, memory)
	return a, nil
}

// next returns the place of the next request, with its segments written. It
// belongs to the batch only when n is counted up.
func (a *arena[T]) next(segments []Segment, inline bool) (*T, *libibverbs.Sge, error) {
	if a == nil {
		return nil, nil, errNoBatch
	}
	if a.n == len(a.wrs) {
		return nil, nil, ErrBatchFull
	}
	sges, err := a.write(a.n, segments, inline)
	if err != nil {
		return nil, nil, err
	}
	return &a.wrs[a.n], sges, nil
}

// write writes the segments of request i, all of them or, with an error, none.
// C itself reads those of an inline request, at this process's addresses.
func (a *arena[T]) write(i int, segments []Segment, inline bool) (*libibverbs.Sge, error) {
	if len(segments) > a.segments {
		return nil, fmt.Errorf("%d segments in a batch made for %d: %w", len(segments), a.segments, syscall.EINVAL)
	}
	for k := range segments {
		if err := segments[k].check(); err != nil {
			return nil, fmt.Errorf("segment %d: %w", k, err)
		}
		if inline && segments[k].mr.bytes == nil {
			return nil, fmt.Errorf("segment %d: %w", k, segments[k].mr.notInline())
		}
	}
	if len(segments) == 0 {
		return nil, nil
	}
	sges := a.sges[i*a.segments:][:len(segments)]
	for k := range segments {
		sges[k] = segments[k].sge()
		if inline {
			sges[k].Addr = segments[k].hostAddr()
		}
	}
	return &sges[0], nil
}

// used returns the requests that the batch has.
func (a *arena[T]) used() []T {
	if a == nil {
		return nil
	}
	return a.wrs[:a.n]
}
