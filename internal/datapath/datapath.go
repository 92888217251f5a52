package datapath

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Posted says how a post ended.
type Posted struct {
	Value int64 // C's result, 0 for success
	Errno int32
	None  bool           // not even the requests before Bad were posted
	Bad   unsafe.Pointer // the request that failed, nil if C does not say
}

// Polled says how polling ended.
type Polled struct {
	Value  int64 // completions, or what C failed with
	Errno  int32
	Arming bool // ibv_req_notify_cq gave Value, not 0
}

// Queue is a completion queue to poll.
type Queue struct {
	CQ     unsafe.Pointer
	Fields uint64 // 0 to poll with ibv_poll_cq
}

const (
	extended = 1 << 63 // these two are datapath.h's
	oneByOne = 1 << 62
)

// NewQueue returns a queue that is polled with ibv_poll_cq, into
// libibverbs.Wc.
func NewQueue(cq *libibverbs.Cq) Queue { return Queue{CQ: unsafe.Pointer(cq)} }

// NewQueueEx returns a queue that is polled with ibv_start_poll, into WC.
func NewQueueEx(cq *libibverbs.CqEx, fields libibverbs.CreateCqWcFlags) Queue {
	q := Queue{unsafe.Pointer(cq), extended | uint64(fields)}
	// Before rdma-core 59, Soft-RoCE's ibv_next_poll ends the polling when the
	// queue is empty, and ibv_end_poll, which must follow, skips completions.
	if isRXE(cq.StartPoll) {
		q.Fields |= oneByOne
	}
	return q
}

// WC is a completion of an extended queue. What the queue was not made with is
// 0.
type WC struct {
	libibverbs.Wc
	Timestamp uint64 // of the device's clock
	Wallclock uint64 // in nanoseconds since 1970
	Tag       uint64 // of tag matching
	TagData   uint32
	FlowTag   uint32
	CVLAN     uint16
	_         [2]byte
	SLID      uint32 // Wc has its low half
}
