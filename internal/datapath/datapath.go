// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Posted is the result of a post. C writes it; its layout is that of
// datapath.h.
type Posted struct {
	Value int64 // C's result; 0 means success
	Errno int32
	None  int32          // nonzero if no request was posted, not even those before Bad
	Bad   unsafe.Pointer // the failed request; nil if C does not report it
}

// Polled is the result of polling.
type Polled struct {
	Value int64 // number of completions, or C's failure
	Errno int32
	Step  Step  // the step that failed
	Now   int64 // C's last reading of the clock in nanoseconds; 0 means none

	// Events counts the events of this queue that were taken off the channel.
	// Other is the queue of an event for another queue, or nil. All are
	// acknowledged.
	Events int64
	Other  unsafe.Pointer
}

// Step is a part of polling.
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
	SleepingSolicited // until a solicited event
)

// Exchanged is the result of Exchange: what was posted, and what was polled.
type Exchanged struct {
	Received, Sent Posted
	Polled         Polled
}

// Queue is a completion queue to poll.
type Queue struct {
	CQ     unsafe.Pointer
	Fields uint64 // fields of completions; 0 means that ibv_poll_cq is used
}

const (
	extended = 1 << 63 // these are from datapath.h
	oneByOne = 1 << 62
	opcode   = 1 << 61
	wcFlags  = 1 << 60
)

// NewQueue returns a queue that is polled with ibv_poll_cq.
func NewQueue(cq *libibverbs.Cq) Queue { return Queue{CQ: unsafe.Pointer(cq)} }

// NewQueueEx returns a queue that is polled with ibv_start_poll.
func NewQueueEx(cq *libibverbs.CqEx, fields libibverbs.CreateCqWcFlags) Queue {
	q := Queue{unsafe.Pointer(cq), extended | readable(cq, uint64(fields)|opcode|wcFlags)}
	// Before rdma-core 59, Soft-RoCE's ibv_next_poll ends the polling when the
	// queue is empty, and ibv_end_poll, which must follow, skips completions.
	if isRXE(cq.StartPoll) {
		q.Fields |= oneByOne
	}
	return q
}

// readable returns the fields for which the provider has a reader, so that C
// need not check for each completion. An older library's struct may end before
// the reader of a field that the queue was not made with.
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

// Op returns the name of the function that C polls the queue with.
func (q Queue) Op() string {
	if q.Fields&extended != 0 {
		return "ibv_start_poll"
	}
	return "ibv_poll_cq"
}

// WC is a completion. A field that the queue was not made with is 0. C writes
// it; its layout is that of poll.c.
type WC struct {
	libibverbs.Wc
	Timestamp uint64 // ticks of the device's clock
	Wallclock uint64 // nanoseconds since 1970
	Tag       uint64 // tag of a message
	TagData   uint32
	FlowTag   uint32
	CVLAN     uint16
	_         [2]byte
	SLID      uint32 // the whole SLID from an extended queue, otherwise 0; Wc has the low half
}
