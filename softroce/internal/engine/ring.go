// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// The structs in this file are shared with the C code that posts and polls.
// softroce/internal/capi/ring.h declares the same structs. Fields that both
// sides use at the same time are accessed atomically.

// WorkQueue is the header of a send queue, receive queue or shared receive
// queue. Work requests are numbered from the last reset of the queue on, and
// the numbers wrap around. Request n is in the slot n % Size.
//
// A posting thread fills slots and then advances Posted, under a lock that the
// engine does not use. The engine takes requests up to Posted. A slot becomes
// free when the completion of its request, or of a later one, is polled: each
// completion names the queue and the number that the polling thread stores in
// Freed. The posting thread keeps Posted - Freed at most Max.
type WorkQueue struct {
	Posted uint32 // number of requests that were posted; written by the posting thread
	Freed  uint32 // number of requests whose slots are free; written by the polling thread, or by the engine for a shared receive queue
	State  uint32 // libibverbs.QpState of the queue pair, written by the engine
	Size   uint32 // number of slots, a power of two
	Max    uint32 // limit of posted requests, at most Size
	Stride uint32 // distance of slots in bytes, a multiple of 8
	MaxSGE uint32 // limit of segments of a request
	Inline uint32 // limit of inline bytes of a request
	Slots  unsafe.Pointer

	// Owner is the number of the queue pair to which the queue belongs.
	// Device.Ring needs it.
	Owner uint64
	// Next links the queues that have new requests of which the device does
	// not know yet.
	Next uintptr
	Rung uint32 // 1 if the queue is in the list that Next links, otherwise 0

	Check uint32 // number of the queue for capi's check.c; 0: its requests are not checked
}

// SendSlot is the beginning of a slot of a send queue. NumSGE segments follow,
// as struct ibv_sge, or InlineLen bytes if Flags has IBV_SEND_INLINE.
type SendSlot struct {
	ID         uint64
	Opcode     libibverbs.WrOpcode
	Flags      uint32 // libibverbs.SendFlags
	Imm        uint32 // immediate data in network byte order, or the key to invalidate
	NumSGE     uint32
	RemoteAddr uint64 // remote address; for a bind, the window's address
	RKey       uint32 // remote key; for a bind, the window's new key
	InlineLen  uint32
	CompareAdd uint64 // compare or add operand; for a bind, the window's length; for a flush, the number of bytes; for an atomic write, the data
	Swap       uint64 // swap operand; for a bind, the window's MW.Handle; for a flush, the type, and the level in the next 8 bits
	AH         uint64 // AH.Handle, for datagrams
	RemoteQPN  uint32 // for datagrams, the queue pair number; for XRC, the number of the shared receive queue
	RemoteQKey uint32
	BindLKey   uint32 // for a bind, the key of the region
	BindAccess uint32 // for a bind, libibverbs.AccessFlags
	Ticket     uint32 // number of the request for package detector, or for capi's check.c; 0: none
	_          uint32
}

// RecvSlot is the beginning of a slot of a receive queue. NumSGE segments
// follow.
type RecvSlot struct {
	ID     uint64
	NumSGE uint32
	Ticket uint32 // as in SendSlot
}

// Sizes of the beginnings of slots, in bytes.
const (
	SendSlotSize = unsafe.Sizeof(SendSlot{})
	RecvSlotSize = unsafe.Sizeof(RecvSlot{})
)

// posted returns the number of requests that were posted.
func (q *WorkQueue) posted() uint32 { return atomic.LoadUint32(&q.Posted) }

// waiting returns the number of posted requests from the number next on. oldest
// is the number of the oldest request without a completion. If the program has
// overwritten Posted with an impossible value, waiting returns 0.
func (q *WorkQueue) waiting(oldest, next uint32) uint32 {
	posted := q.posted()
	if posted-oldest > q.Size || posted-oldest < next-oldest {
		return 0
	}
	return posted - next
}

// slot returns the slot of request n.
func (q *WorkQueue) slot(n uint32) unsafe.Pointer {
	return unsafe.Add(q.Slots, uintptr(n&(q.Size-1))*uintptr(q.Stride))
}

func (q *WorkQueue) send(n uint32) *SendSlot { return (*SendSlot)(q.slot(n)) }
func (q *WorkQueue) recv(n uint32) *RecvSlot { return (*RecvSlot)(q.slot(n)) }

// segments returns the segments that follow the slot's beginning.
func (s *SendSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.NumSGE)
}

// inline returns the inline data that follows the slot's beginning.
func (s *SendSlot) inline() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), s.InlineLen)
}

// segments returns the segments that follow the slot's beginning.
func (s *RecvSlot) segments() []libibverbs.Sge {
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), RecvSlotSize)), s.NumSGE)
}

// sendSegments returns the segments of a request in the queue. It returns false
// if there are more than MaxSGE.
func (q *WorkQueue) sendSegments(s *SendSlot) ([]libibverbs.Sge, bool) {
	n := s.NumSGE
	if n > q.MaxSGE {
		return nil, false
	}
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), n), true
}

// word returns the 8 bytes that an atomic write has in CompareAdd.
func (s *SendSlot) word() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&s.CompareAdd)), 8) }

// recvSegments returns the segments of a receive in the queue. It returns false
// if there are more than MaxSGE.
func (q *WorkQueue) recvSegments(s *RecvSlot) ([]libibverbs.Sge, bool) {
	n := s.NumSGE
	if n > q.MaxSGE {
		return nil, false
	}
	return unsafe.Slice((*libibverbs.Sge)(unsafe.Add(unsafe.Pointer(s), RecvSlotSize)), n), true
}

// inlineBytes returns the first n bytes of a request's inline data.
func (s *SendSlot) inlineBytes(n uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), SendSlotSize)), n)
}

// CompletionQueue is the header of a ring of completions. Only the engine adds
// completions. Polling threads hold a lock that the engine does not use, and
// only increase Polled.
type CompletionQueue struct {
	Added   uint32 // number of completions that were added; written by the engine
	Polled  uint32 // number of completions that were polled; written by the polling thread
	Size    uint32 // number of entries, a power of two
	Max     uint32 // limit of entries in use, at most Size
	Armed   uint32 // NotArmed, or some of ArmedNext, ArmedSolicited, ArmedEvent and ArmedWake
	Overrun uint32 // 1 after a completion has found the ring full, after which no completion is added; otherwise 0
	Entries unsafe.Pointer
}

// Bits of CompletionQueue.Armed. ibv_req_notify_cq adds them, and the engine
// sets Armed back to NotArmed when it fires the event.
const (
	NotArmed       = 0
	ArmedNext      = 1 // for any completion
	ArmedSolicited = 2 // for a solicited or failed completion
	ArmedEvent     = 4 // the completion channel gets the event
	ArmedWake      = 8 // a goroutine that waits for the queue is woken
)

// Completion is an entry of a completion queue. It begins with a struct ibv_wc.
type Completion struct {
	libibverbs.Wc
	Timestamp uint64     // time in nanoseconds since the device's time 0
	Wallclock uint64     // Unix time in nanoseconds
	Queue     *WorkQueue // queue whose slots become free when the completion is polled, or nil
	Count     uint32     // number that the polling thread stores in Queue.Freed; without Queue, that of the shared receive queue for XRC, or 0
	Ticket    uint32     // ticket of the request

	// For a message that was matched by its tag, what its header has.
	TagContext uint32
	_          uint32
	Tag        uint64
}

// srq returns the number of the shared receive queue for XRC whose receive the
// completion is of. It returns 0 for other completions.
func (c *Completion) srq() uint32 {
	if c.Queue != nil {
		return 0
	}
	return c.Count
}

// CompletionSize is the size in bytes of an entry of a completion queue.
const CompletionSize = unsafe.Sizeof(Completion{})

// entry returns the entry of completion n.
func (q *CompletionQueue) entry(n uint32) *Completion {
	return (*Completion)(unsafe.Add(q.Entries, uintptr(n&(q.Size-1))*CompletionSize))
}
