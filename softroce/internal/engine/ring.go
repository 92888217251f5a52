// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// The structs in this file are shared with C, which posts and polls:
// softroce/internal/face/ring.h has the same ones. Fields that both sides use at the
// same time are read and written atomically.

// WorkQueue is the header of a send queue, a receive queue or a shared receive
// queue. Counts are of all work requests since the queue was reset, and wrap
// around. The request with count n is in place n % Size.
//
// Whoever posts fills places first and then advances Posted, under a lock that the engine
// does not know. The engine takes requests up to Posted. A place is free again
// when the completion of its request, or of a later one, has been polled: each completion
// carries the queue and the count that polling it stores in Freed. Whoever posts keeps Posted - Freed at
// most at Max.
type WorkQueue struct {
	Posted uint32 // written by whoever posts
	Freed  uint32 // written by whoever polls; by the engine for a shared receive queue
	State  uint32 // libibverbs.QpState of the queue pair; written by the engine
	Size   uint32 // places, a power of two
	Max    uint32 // work requests that may be posted, at most Size
	Stride uint32 // bytes from one place to the next, a multiple of 8
	MaxSGE uint32
	Inline uint32 // bytes that may be posted inline
	Slots  unsafe.Pointer

	// Owner names the queue pair or shared receive queue for the doorbell.
	Owner uint64
	// Next links the queues whose doorbell was rung and not yet heard.
	Next uintptr
	Rung uint32
	_    uint32
}

// SendSlot begins a place of a send queue. Behind it are NumSGE segments as struct
// ibv_sge, or InlineLen bytes if the flag IBV_SEND_INLINE is set.
type SendSlot struct {
	ID         uint64
	Opcode     libibverbs.WrOpcode
	Flags      uint32 // libibverbs.SendFlags
	Imm        uint32 // as it lay in memory; the key to invalidate
	NumSGE     uint32
	RemoteAddr uint64 // of the window that is bound, its address
	RKey       uint32 // of the window that is bound, its new key
	InlineLen  uint32
	CompareAdd uint64 // of the window that is bound, its length
	Swap       uint64 // of the window that is bound, the window: MW.Handle
	AH         uint64 // AH.Handle
	RemoteQPN  uint32
	RemoteQKey uint32
	BindLKey   uint32 // key of the region that a window is bound to
	BindAccess uint32
	_          uint64
}

// RecvSlot begins a place of a receive queue. NumSGE segments are behind it.
type RecvSlot struct {
	ID     uint64
	NumSGE uint32
	_      uint32
}

// Sizes of what begins a place.
const (
	SendSlotSize = unsafe.Sizeof(SendSlot{})
	RecvSlotSize = unsafe.Sizeof(RecvSlot{})
)

func (q *WorkQueue) posted() uint32 { return atomic.LoadUint32(&q.Posted) }

// waiting returns how many requests from next on are posted. Oldest is the count of
// the oldest whose completion was not made. Posted may be anything if the program writes over it:
// then none are.
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

// segments returns the segments of a request, which whoever posted may not change any more.
func (s *SendSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.NumSGE)
}

func (s *SendSlot) inline() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.InlineLen)
}

func (s *RecvSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), RecvSlotSize)), s.NumSGE)
}

// sendSegments returns the segments of a request in the queue, unless there are more than there can
// be.
func (q *WorkQueue) sendSegments(s *SendSlot) ([]libibverbs.Sge, bool) {
	n := s.NumSGE
	if n > q.MaxSGE {
		return nil, false
	}
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), n), true
}

// recvSegments is like sendSegments.
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

// CompletionQueue is the header of a ring of completions. The engine alone adds
// them. Whoever polls holds a lock that the engine does not know; Polled only grows.
type CompletionQueue struct {
	Added   uint32 // written by the engine
	Polled  uint32 // written by whoever polls
	Size    uint32 // entries, a power of two
	Max     uint32 // entries that may be used, at most Size
	Armed   uint32 // NotArmed, ArmedNext or ArmedSolicited
	Overrun uint32 // not 0 once a completion had no room: no more are added
	Entries unsafe.Pointer
}

// What CompletionQueue.Armed may be. ibv_req_notify_cq sets it; the engine sets it back when
// it makes the event.
const (
	NotArmed       = 0
	ArmedNext      = 1
	ArmedSolicited = 2
)

// Completion is an entry of a completion queue. It begins with struct ibv_wc.
type Completion struct {
	libibverbs.Wc
	Timestamp uint64     // nanoseconds since the device began
	Wallclock uint64     // nanoseconds since 1970
	Queue     *WorkQueue // whose places are free when this has been polled, or nil
	Count     uint32     // what polling stores in Queue.Freed
	_         uint32
}

// CompletionSize is the distance from one entry to the next.
const CompletionSize = unsafe.Sizeof(Completion{})

func (q *CompletionQueue) entry(n uint32) *Completion {
	return (*Completion)(unsafe.Add(q.Entries, uintptr(n&(q.Size-1))*CompletionSize))
}
