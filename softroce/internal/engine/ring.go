// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// The structs in this file are shared with C, which posts and polls:
// softroce/internal/capi/ring.h has the same ones. Fields that both sides use
// at the same time are read and written atomically.

// WorkQueue is the header of a send queue, receive queue or shared receive
// queue. Counts are of all work requests since the queue was reset, and wrap
// around. The request with count n is in place n % Size.
//
// A poster fills places first and then advances Posted, under a lock that the
// engine does not know. The engine takes requests up to Posted. A place becomes
// free when the completion of its request, or of a later one, has been polled:
// each completion has the queue, and the count that the poller stores in Freed.
// The poster keeps Posted - Freed at most Max.
type WorkQueue struct {
	Posted uint32 // written by the poster
	Freed  uint32 // written by the poller; for a shared receive queue, by the engine
	State  uint32 // libibverbs.QpState of the queue pair; written by the engine
	Size   uint32 // number of places, a power of two
	Max    uint32 // limit of posted work requests, at most Size
	Stride uint32 // bytes from one place to the next, a multiple of 8
	MaxSGE uint32
	Inline uint32 // limit of inline bytes
	Slots  unsafe.Pointer

	// Owner names the queue pair or shared receive queue to the doorbell.
	Owner uint64
	// Next links the queues whose doorbell was rung and not heard yet.
	Next uintptr
	Rung uint32
	_    uint32
}

// SendSlot starts a place of a send queue. It is followed by NumSGE segments as
// struct ibv_sge, or by InlineLen bytes if the flag IBV_SEND_INLINE is set.
type SendSlot struct {
	ID         uint64
	Opcode     libibverbs.WrOpcode
	Flags      uint32 // libibverbs.SendFlags
	Imm        uint32 // as in memory; or the key to invalidate
	NumSGE     uint32
	RemoteAddr uint64 // for a bind, the window's address
	RKey       uint32 // for a bind, the window's new key
	InlineLen  uint32
	CompareAdd uint64 // for a bind, the window's length
	Swap       uint64 // for a bind, the window's MW.Handle
	AH         uint64 // AH.Handle
	RemoteQPN  uint32
	RemoteQKey uint32
	BindLKey   uint32 // for a bind, the region's key
	BindAccess uint32
	_          uint64
}

// RecvSlot starts a place of a receive queue. It is followed by NumSGE
// segments.
type RecvSlot struct {
	ID     uint64
	NumSGE uint32
	_      uint32
}

// Sizes of the starts of places.
const (
	SendSlotSize = unsafe.Sizeof(SendSlot{})
	RecvSlotSize = unsafe.Sizeof(RecvSlot{})
)

func (q *WorkQueue) posted() uint32 { return atomic.LoadUint32(&q.Posted) }

// waiting returns the number of posted requests from next on. oldest is the
// count of the oldest request without a completion. If the program has
// overwritten Posted with an impossible value, waiting returns 0.
func (q *WorkQueue) waiting(oldest, next uint32) uint32 {
	posted := q.posted()
	if posted-oldest > q.Size || posted-oldest < next-oldest {
		return 0
	}
	return posted - next
}

func (q *WorkQueue) slot(n uint32) unsafe.Pointer {
	return unsafe.Add(q.Slots, uintptr(n&(q.Size-1))*uintptr(q.Stride))
}

func (q *WorkQueue) send(n uint32) *SendSlot { return (*SendSlot)(q.slot(n)) }
func (q *WorkQueue) recv(n uint32) *RecvSlot { return (*RecvSlot)(q.slot(n)) }

// segments returns the segments of a request.
func (s *SendSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.NumSGE)
}

func (s *SendSlot) inline() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.InlineLen)
}

func (s *RecvSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), RecvSlotSize)), s.NumSGE)
}

// sendSegments returns the segments of a queued request. It returns false if
// there are more than the queue permits.
func (q *WorkQueue) sendSegments(s *SendSlot) ([]libibverbs.Sge, bool) {
	n := s.NumSGE
	if n > q.MaxSGE {
		return nil, false
	}
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), n), true
}

// recvSegments is sendSegments for a receive.
func (q *WorkQueue) recvSegments(s *RecvSlot) ([]libibverbs.Sge, bool) {
	n := s.NumSGE
	if n > q.MaxSGE {
		return nil, false
	}
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), RecvSlotSize)), n), true
}

// inlineBytes returns the first n inline bytes of a request.
func (s *SendSlot) inlineBytes(n uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), n)
}

// CompletionQueue is the header of a ring of completions. Only the engine adds
// completions. Pollers hold a lock that the engine does not know; Polled only
// grows.
type CompletionQueue struct {
	Added   uint32 // written by the engine
	Polled  uint32 // written by the poller
	Size    uint32 // number of entries, a power of two
	Max     uint32 // limit of entries in use, at most Size
	Armed   uint32 // NotArmed, ArmedNext or ArmedSolicited
	Overrun uint32 // not 0 once a completion found no room; no more are added then
	Entries unsafe.Pointer
}

// The values of CompletionQueue.Armed. ibv_req_notify_cq sets it; the engine
// resets it when it fires the event.
const (
	NotArmed       = 0
	ArmedNext      = 1
	ArmedSolicited = 2
)

// Completion is an entry of a completion queue. It starts with struct ibv_wc.
type Completion struct {
	libibverbs.Wc
	Timestamp uint64     // nanoseconds since the device's time was 0
	Wallclock uint64     // nanoseconds since 1970
	Queue     *WorkQueue // the queue whose places become free with the poll, or nil
	Count     uint32     // the value that the poller stores in Queue.Freed
	_         uint32
}

// CompletionSize is the distance from one entry to the next.
const CompletionSize = unsafe.Sizeof(Completion{})

func (q *CompletionQueue) entry(n uint32) *Completion {
	return (*Completion)(unsafe.Add(q.Entries, uintptr(n&(q.Size-1))*CompletionSize))
}
