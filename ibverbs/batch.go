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
	memory, err := mem.Map(bytes + int(unsafe.Sizeof(libibverbs.Sge{}))*requests*segments)
	if err != nil {
		return nil, fmt.Errorf("batch of %d requests with %d segments each: %w", requests, segments, err)
	}
	a := &arena[T]{wrs: unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), requests), segments: segments}
	if segments > 0 {
		a.sges = unsafe.Slice((*libibverbs.Sge)(unsafe.Pointer(&memory[bytes])), requests*segments)
	}
	// Memory alone needs no order in which it goes away, so this may be left
	// to the collector. Whoever touches it has to keep the arena alive.
	runtime.AddCleanup(a, func(m []byte) { _ = mem.Unmap(m) }, memory)
	return a, nil
}

// next returns the place of the next request, with its segments written. It
// belongs to the batch only when n is counted up.
func (a *arena[T]) next(segments []Segment) (*T, *libibverbs.Sge, error) {
	if a == nil {
		return nil, nil, errNoBatch
	}
	if a.n == len(a.wrs) {
		return nil, nil, ErrBatchFull
	}
	if len(segments) > a.segments {
		return nil, nil, fmt.Errorf("%d segments in a batch made for %d: %w", len(segments), a.segments, syscall.EINVAL)
	}
	sges := a.sges[a.n*a.segments:][:len(segments)]
	for i, s := range segments {
		if err := s.check(); err != nil {
			return nil, nil, fmt.Errorf("segment %d: %w", i, err)
		}
		sges[i] = s.sge()
	}
	if len(segments) == 0 {
		return &a.wrs[a.n], nil, nil
	}
	return &a.wrs[a.n], &sges[0], nil
}

// used returns the requests that the batch has.
func (a *arena[T]) used() []T {
	if a == nil {
		return nil
	}
	return a.wrs[:a.n]
}

// SendBatch is a list of send requests that is posted in one call. It is made
// once and used again: filling and posting it allocates nothing. It must not
// be used concurrently.
type SendBatch struct {
	arena *arena[libibverbs.SendWr]

	// C reads the memory of inline requests while they are posted, so it must
	// be there then.
	inline []*MR
}

// NewSendBatch makes a batch for so many requests with up to so many segments
// each. Its memory goes away with the last reference to it.
func NewSendBatch(requests, segments int) (*SendBatch, error) {
	a, err := newArena[libibverbs.SendWr](requests, segments)
	if err != nil {
		return nil, err
	}
	return &SendBatch{arena: a}, nil
}

// Len returns how many requests the batch has.
func (b *SendBatch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.arena.used())
}

// Reset empties the batch.
func (b *SendBatch) Reset() {
	if b.Len() > 0 {
		b.arena.n = 0
		clear(b.inline)
		b.inline = b.inline[:0]
	}
}

// add puts wr, whose own fields the caller has set, at the end of the list.
func (b *SendBatch) add(wr *libibverbs.SendWr, id uint64, flags SendFlags, segments []Segment) error {
	if b == nil {
		return errNoBatch
	}
	a := b.arena
	place, sges, err := a.next(segments)
	if err != nil {
		return err
	}
	if flags&SendInline != 0 {
		if err := inlineSges(sges, segments); err != nil {
			return err
		}
	}
	wr.WrId, wr.SendFlags, wr.SgList, wr.NumSge = id, uint32(flags), sges, int32(len(segments))
	*place = *wr
	if a.n > 0 {
		a.wrs[a.n-1].Next = place
	}
	a.n++
	if flags&SendInline != 0 {
		for _, s := range segments {
			b.inline = append(b.inline, s.mr)
		}
	}
	runtime.KeepAlive(a)
	return nil
}

// Send adds a message that the peer receives into what it has posted. The ID
// comes back with the completion.
func (b *SendBatch) Send(id uint64, flags SendFlags, segments ...Segment) error {
	return b.add(&libibverbs.SendWr{Opcode: libibverbs.IBV_WR_SEND}, id, flags, segments)
}

// SendImm adds a message with 32 bits of immediate data, given in this host's
// byte order.
func (b *SendBatch) SendImm(id uint64, imm uint32, flags SendFlags, segments ...Segment) error {
	wr := libibverbs.SendWr{Opcode: libibverbs.IBV_WR_SEND_WITH_IMM}
	*wr.ImmData() = libibverbs.NewBe32(imm)
	return b.add(&wr, id, flags, segments)
}

// Write adds an RDMA write of the segments to a peer's memory.
func (b *SendBatch) Write(id uint64, to RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.rdma(&libibverbs.SendWr{Opcode: libibverbs.IBV_WR_RDMA_WRITE}, id, to, flags, segments)
}

// WriteImm adds an RDMA write that also takes a receive of the peer's, which
// completes with 32 bits of immediate data.
func (b *SendBatch) WriteImm(id uint64, to RemoteBuffer, imm uint32, flags SendFlags, segments ...Segment) error {
	wr := libibverbs.SendWr{Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}
	*wr.ImmData() = libibverbs.NewBe32(imm)
	return b.rdma(&wr, id, to, flags, segments)
}

// Read adds an RDMA read of a peer's memory into the segments.
func (b *SendBatch) Read(id uint64, from RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.rdma(&libibverbs.SendWr{Opcode: libibverbs.IBV_WR_RDMA_READ}, id, from, flags, segments)
}

func (b *SendBatch) rdma(wr *libibverbs.SendWr, id uint64, remote RemoteBuffer, flags SendFlags, segments []Segment) error {
	var n uint64
	for _, s := range segments {
		n += uint64(max(s.n, 0))
	}
	if n > remote.Len {
		return fmt.Errorf("%d bytes for a remote buffer of %d: %w", n, remote.Len, syscall.EINVAL)
	}
	*wr.Wr.Rdma() = libibverbs.SendWrWrRdma{RemoteAddr: remote.Addr, Rkey: remote.RKey}
	return b.add(wr, id, flags, segments)
}

// useInline keeps the memory of the inline requests until doneInline.
func (b *SendBatch) useInline() error {
	for i, mr := range b.inline {
		if err := mr.object.Use(); err != nil {
			doneInline(b.inline[:i])
			return fmt.Errorf("inline data: %w", err)
		}
	}
	return nil
}

func doneInline(mrs []*MR) {
	for _, mr := range mrs {
		mr.object.Done()
	}
}

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
	place, sges, err := a.next(segments)
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
