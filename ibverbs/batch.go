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

// arena is memory outside of Go's heap for a batch's requests, which point at
// each other and at their segments, and which C reads as they are.
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
		return nil, fmt.Errorf("batch of %d requests: %w", requests, err)
	}
	a := &arena[T]{wrs: unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), requests), segments: segments}
	if segments > 0 {
		a.sges = unsafe.Slice((*libibverbs.Sge)(unsafe.Pointer(&memory[bytes])), requests*segments)
	}
	// Memory alone needs no order in which it goes away, so this may be left
	// to the collector.
	runtime.AddCleanup(a, func(m []byte) { _ = mem.Unmap(m) }, memory)
	return a, nil
}

// fill writes the segments of the next request.
func (a *arena[T]) fill(segments []Segment) (*libibverbs.Sge, error) {
	if a.n == len(a.wrs) {
		return nil, ErrBatchFull
	}
	if len(segments) > a.segments {
		return nil, fmt.Errorf("%d segments in a batch made for %d: %w", len(segments), a.segments, syscall.EINVAL)
	}
	for i, s := range segments {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("segment %d: %w", i, err)
		}
		a.sges[a.n*a.segments+i] = s.sge()
	}
	if len(segments) == 0 {
		return nil, nil
	}
	return &a.sges[a.n*a.segments], nil
}

// Len returns how many requests the batch has.
func (a *arena[T]) Len() int { return a.n }

// Reset empties the batch.
func (a *arena[T]) Reset() { a.n = 0 }

// SendBatch is a list of send requests that is posted in one call. It is made
// once and used again: filling and posting it allocates nothing. It must not
// be used concurrently.
type SendBatch struct{ *arena[libibverbs.SendWr] }

// NewSendBatch makes a batch for so many requests with up to so many segments
// each. Its memory goes away with the last reference to it.
func NewSendBatch(requests, segments int) (*SendBatch, error) {
	a, err := newArena[libibverbs.SendWr](requests, segments)
	if err != nil {
		return nil, err
	}
	return &SendBatch{a}, nil
}

func (b *SendBatch) add(op libibverbs.WrOpcode, id uint64, flags SendFlags, segments []Segment) (*libibverbs.SendWr, error) {
	sges, err := b.fill(segments)
	if err != nil {
		return nil, err
	}
	wr := &b.wrs[b.n]
	*wr = libibverbs.SendWr{
		WrId: id, Opcode: op, SendFlags: uint32(flags), SgList: sges, NumSge: int32(len(segments)),
	}
	if b.n > 0 {
		b.wrs[b.n-1].Next = wr
	}
	b.n++
	return wr, nil
}

// Send adds a message that the peer receives into what it has posted. The ID
// comes back with the completion.
func (b *SendBatch) Send(id uint64, flags SendFlags, segments ...Segment) error {
	_, err := b.add(libibverbs.IBV_WR_SEND, id, flags, segments)
	return err
}

// SendImm adds a message with 32 bits of immediate data, given in this host's
// byte order.
func (b *SendBatch) SendImm(id uint64, imm uint32, flags SendFlags, segments ...Segment) error {
	wr, err := b.add(libibverbs.IBV_WR_SEND_WITH_IMM, id, flags, segments)
	if err == nil {
		*wr.ImmData() = libibverbs.NewBe32(imm)
	}
	return err
}

// Write adds an RDMA write of the segments to a peer's memory.
func (b *SendBatch) Write(id uint64, to RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.rdma(libibverbs.IBV_WR_RDMA_WRITE, id, to, flags, segments)
}

// WriteImm adds an RDMA write that also takes a receive of the peer's, which
// completes with 32 bits of immediate data.
func (b *SendBatch) WriteImm(id uint64, to RemoteBuffer, imm uint32, flags SendFlags, segments ...Segment) error {
	err := b.rdma(libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, id, to, flags, segments)
	if err == nil {
		*b.wrs[b.n-1].ImmData() = libibverbs.NewBe32(imm)
	}
	return err
}

// Read adds an RDMA read of a peer's memory into the segments.
func (b *SendBatch) Read(id uint64, from RemoteBuffer, flags SendFlags, segments ...Segment) error {
	return b.rdma(libibverbs.IBV_WR_RDMA_READ, id, from, flags, segments)
}

func (b *SendBatch) rdma(op libibverbs.WrOpcode, id uint64, remote RemoteBuffer, flags SendFlags, segments []Segment) error {
	var n uint64
	for _, s := range segments {
		n += uint64(max(s.n, 0))
	}
	if n > remote.Len {
		return fmt.Errorf("%d bytes for a remote buffer of %d: %w", n, remote.Len, syscall.EINVAL)
	}
	wr, err := b.add(op, id, flags, segments)
	if err == nil {
		*wr.Wr.Rdma() = libibverbs.SendWrWrRdma{RemoteAddr: remote.Addr, Rkey: remote.RKey}
	}
	return err
}

// RecvBatch is a list of receives that is posted in one call, made once and
// used again as a SendBatch is. It must not be used concurrently.
type RecvBatch struct{ *arena[libibverbs.RecvWr] }

// NewRecvBatch makes a batch for so many receives with up to so many segments
// each. Its memory goes away with the last reference to it.
func NewRecvBatch(requests, segments int) (*RecvBatch, error) {
	a, err := newArena[libibverbs.RecvWr](requests, segments)
	if err != nil {
		return nil, err
	}
	return &RecvBatch{a}, nil
}

// Recv adds a receive: the next message that no earlier receive takes is
// written to the segments, in order. The ID comes back with the completion.
func (b *RecvBatch) Recv(id uint64, segments ...Segment) error {
	sges, err := b.fill(segments)
	if err != nil {
		return err
	}
	wr := &b.wrs[b.n]
	*wr = libibverbs.RecvWr{WrId: id, SgList: sges, NumSge: int32(len(segments))}
	if b.n > 0 {
		b.wrs[b.n-1].Next = wr
	}
	b.n++
	return nil
}
