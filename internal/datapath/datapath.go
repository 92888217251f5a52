// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Posted is the result of posting a list of requests. C writes it, so its
// layout must be that in datapath.h.
type Posted struct {
	Value int64 // result of the C function; 0 means success
	Errno int32
	None  int32          // not 0 if no request was posted, not even those before Bad
	Bad   unsafe.Pointer // request that failed; nil if C does not report it
}

// Polled is the result of polling a completion queue.
type Polled struct {
	Value int64 // number of completions, or the negative result of the C function that failed
	Errno int32
	Step  Step  // step that failed
	Now   int64 // time at which C last read the clock, in nanoseconds; 0: it did not

	// Events is the number of events of this queue that were taken from the
	// channel. Other is the queue of an event that was for another queue, or
	// nil. All are acknowledged.
	Events int64
	Other  unsafe.Pointer
}

// Step is a step of polling with events.
type Step int32

// The steps of polling.
const (
	Polling Step = iota
	Arming       // ibv_req_notify_cq
	Reading      // ibv_get_cq_event
)

// How is the way in which Exchange waits for completions.
type How int32

// The ways of waiting.
const (
	Spinning How = iota
	Sleeping
	SleepingSolicited // sleeping until an event of a solicited completion
)

// Exchanged is the result of Exchange: of posting receives, of posting
// requests, and of polling.
type Exchanged struct {
	Received, Sent Posted
	Polled         Polled
}

// Queue is a completion queue, with the way to poll it.
type Queue struct {
	CQ     unsafe.Pointer
	Fields uint64 // fields of completions that are read; 0: the queue is polled by ibv_poll_cq
}

const (
	extended = 1 << 63 // flags in Queue.Fields, as in datapath.h
	oneByOne = 1 << 62
	opcode   = 1 << 61
	wcFlags  = 1 << 60
)

// NewQueue returns a queue that is polled by ibv_poll_cq.
func NewQueue(cq *libibverbs.Cq) Queue { return Queue{CQ: unsafe.Pointer(cq)} }

// NewQueueEx returns a queue that is polled by ibv_start_poll. fields are those
// with which it was created.
func NewQueueEx(cq *libibverbs.CqEx, fields libibverbs.CreateCqWcFlags) Queue {
	q := Queue{unsafe.Pointer(cq), extended | readable(cq, uint64(fields)|opcode|wcFlags)}
	// Before rdma-core 59, Soft-RoCE's ibv_next_poll ends the polling when the
	// queue is empty, and ibv_end_poll, which must follow, skips completions.
	if isRXE(cq.StartPoll) {
		q.Fields |= oneByOne
	}
	return q
}

// readable returns the fields for which the provider has a function to read
// them, so that C need not check for each completion. It only checks functions
// of the given fields, since the struct of an older library may end before the
// others.
func readable(cq *libibverbs.CqEx, fields uint64) uint64 {
	for _, f := range []struct {
		field  uint64
		reader *unsafe.Pointer
	}{
		{opcode, &cq.ReadOpcode},
		{wcFlags, &cq.ReadWcFlags},
		{uint64(libibverbs.IBV_WC_EX_WITH_BYTE_LEN), &cq.ReadByteLen},
		{uint64(libibverbs.IBV_WC_EX_WITH_IMM), &cq.ReadImmData},
		{uint64(libibverbs.IBV_WC_EX_WITH_QP_NUM), &cq.ReadQpNum},
		{uint64(libibverbs.IBV_WC_EX_WITH_SRC_QP), &cq.ReadSrcQp},
		{uint64(libibverbs.IBV_WC_EX_WITH_SLID), &cq.ReadSlid},
		{uint64(libibverbs.IBV_WC_EX_WITH_SL), &cq.ReadSl},
		{uint64(libibverbs.IBV_WC_EX_WITH_DLID_PATH_BITS), &cq.ReadDlidPathBits},
		{uint64(libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP), &cq.ReadCompletionTs},
		{uint64(libibverbs.IBV_WC_EX_WITH_CVLAN), &cq.ReadCvlan},
		{uint64(libibverbs.IBV_WC_EX_WITH_FLOW_TAG), &cq.ReadFlowTag},
		{uint64(libibverbs.IBV_WC_EX_WITH_TM_INFO), &cq.ReadTmInfo},
		{uint64(libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK), &cq.ReadCompletionWallclockNs},
	} {
		if fields&f.field != 0 && *f.reader == nil {
			fields &^= f.field
		}
	}
	return fields
}

// Op returns the name of the C function that polls the queue.
func (q Queue) Op() string {
	if q.Fields&extended != 0 {
		return "ibv_start_poll"
	}
	return "ibv_poll_cq"
}

// WC is a completion. Fields with which the queue was not created are 0. C
// writes it, so its layout must be that in poll.c.
type WC struct {
	libibverbs.Wc
	Timestamp uint64 // time in ticks of the device's clock
	Wallclock uint64 // Unix time in nanoseconds
	Tag       uint64 // tag of a message
	TagData   uint32
	FlowTag   uint32
	CVLAN     uint16
	_         [2]byte
	SLID      uint32 // all 32 bits of the SLID if the queue is extended, otherwise 0; Wc has the low 16 bits
}

// Device is a device in this process, whose work is done by a thread of this
// process, its worker, or by threads of the program. The functions run in the
// thread of a call, while C holds no lock.
type Device struct {
	// Idle is called by Poll, Spin and an Exchange that spins for some time,
	// whenever they find a queue empty. The device can use the time for its
	// work.
	Idle func(cq unsafe.Pointer)
	// Relieve is called by BeginSend, and by an Exchange that spins before it
	// posts requests. If it returns true, posting does not wake the worker,
	// and EndSend or Exchange calls Resume afterwards.
	Relieve func() bool
	// Resume does the work that Relieve and Silence have kept from the worker,
	// and from a goroutine in Attend.
	Resume func()
	// Silence keeps what other processes send from waking a thread. The caller
	// does the device's work while it spins, and then calls Resume.
	Silence func()
	// Received returns the number of packets that the device has received
	// from other processes.
	Received func() uint32
	// WokeOthers reports whether Resume has woken goroutines since the last
	// call.
	WokeOthers func() bool
	// SetWake makes the device call wake for a completion in a queue that
	// PollOrArm has armed for that, in place of an event. The device can so
	// wake goroutines without a system call. It returns false if it does not
	// know the queue.
	SetWake func(cq *libibverbs.Cq, wake func() (parked bool)) bool
	// NewChannel creates a completion channel without a descriptor, which is
	// -1 until OpenChannel makes it. It returns nil if that fails.
	NewChannel func(context *libibverbs.Context) *libibverbs.CompChannel
	// OpenChannel makes the descriptor of a channel from NewChannel.
	OpenChannel func(channel *libibverbs.CompChannel) syscall.Errno
	// Attend lets a goroutine that waits for a completion do the device's
	// work, so that a message of another process wakes only that goroutine.
	// It returns true some time after over does, or false, perhaps earlier, if
	// the device's worker has to do the work. A thread that makes over return
	// true calls Interrupt afterwards.
	Attend func(over func() bool, spin time.Duration) bool
	// MayAttend reports whether Attend would do something now.
	MayAttend func() bool
	// Interrupt makes Attend call its function again.
	Interrupt func()
	// Park tells the device that the caller waits for a completion in a queue
	// of SetWake, and does none of its work.
	Park func()
	// Supersede makes a goroutine for which Attend has worked for long park.
	Supersede func()
}
