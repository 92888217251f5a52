// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/bits"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
)

// CompletionCounter counts completions of the queue pairs that it is attached
// to.
type CompletionCounter struct {
	device       *Device
	bytes        bool   // whether the counter counts bytes instead of requests
	done, failed uint64 // successful requests or their bytes, and failed requests
	attached     int    // number of operations of queue pairs that the counter counts

	told detector.Account // for the race detector, what has been counted
}

// counterOps are the operations that can be counted.
const counterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND | libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV |
	libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ | libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ |
	libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE | libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE

// counters has the counter of each operation in counterOps, at the index of the
// operation's bit, or nil.
type counters [6]*CompletionCounter

// maxStagedCounts is the number of staged counts from which on counts of the
// same kind are added up.
const maxStagedCounts = 256

// stagedCount is the staged increase of a counter.
type stagedCount struct {
	dependency
	counter *CompletionCounter
	failed  bool
	n       uint64
	told    detector.Account // for the race detector
}

// CompletionCounterCaps returns what the device's counters can do. It fails
// with EOPNOTSUPP if the device has no counters.
func (d *Device) CompletionCounterCaps() (libibverbs.CompCntrCaps, error) {
	if err := d.check(); err != nil {
		return libibverbs.CompCntrCaps{}, err
	}
	if d.limits.Counters == 0 {
		return libibverbs.CompCntrCaps{}, syscall.EOPNOTSUPP
	}
	return libibverbs.CompCntrCaps{MaxValue: math.MaxUint64, MaxCounters: d.limits.Counters, SupportedQpAttachOps: counterOps}, nil
}

// CreateCompletionCounter creates a counter. It fails with EINVAL for unknown
// attributes, with EOPNOTSUPP if the device has no counters, and with ENOMEM if
// there are too many.
func (d *Device) CreateCompletionCounter(a *libibverbs.CompCntrInitAttr) (*CompletionCounter, error) {
	if _, err := d.CompletionCounterCaps(); err != nil {
		return nil, err
	}
	if a.CompMask != 0 || a.Flags != 0 || a.Type > libibverbs.IBV_COMP_CNTR_TYPE_BYTES {
		return nil, syscall.EINVAL
	}
	if d.compCounters == d.limits.Counters {
		return nil, syscall.ENOMEM
	}
	d.compCounters++
	return &CompletionCounter{device: d, bytes: a.Type == libibverbs.IBV_COMP_CNTR_TYPE_BYTES}, nil
}

// Destroy removes the counter. It fails with EBUSY while the counter is
// attached to a queue pair.
func (c *CompletionCounter) Destroy() error {
	if c.attached > 0 {
		return syscall.EBUSY
	}
	c.device.compCounters--
	return nil
}

// Values returns pointers to the two values of the counter: of successes and of
// failures. It fails once the device has been removed.
func (c *CompletionCounter) Values() (done, failed *uint64, err error) {
	if err := c.device.check(); err != nil {
		return nil, nil, err
	}
	if detector.Enabled {
		c.told.Acquire()
	}
	return &c.done, &c.failed, nil
}

// AttachCounter makes the counter c count the operations of the queue pair,
// until the queue pair is destroyed. It fails with EINVAL unless the queue pair
// is in the reset or init state, with EINVAL for a counter of another device or
// no operations, with EOPNOTSUPP for unknown operations, and with EBUSY if
// another counter counts one of the operations.
func (q *QP) AttachCounter(c *CompletionCounter, a *libibverbs.QpAttachCompCntrAttr) error {
	if err := q.device.check(); err != nil {
		return err
	}
	s := q.attr.QpState
	if s != libibverbs.IBV_QPS_RESET && s != libibverbs.IBV_QPS_INIT || c.device != q.device || a.CompMask != 0 || a.OpMask == 0 {
		return syscall.EINVAL
	}
	if a.OpMask&^counterOps != 0 {
		return syscall.EOPNOTSUPP
	}
	if q.counters == nil {
		q.counters = &counters{}
	}
	for i, other := range q.counters {
		if a.OpMask&(1<<i) != 0 && other != nil {
			return syscall.EBUSY
		}
	}
	for i := range q.counters {
		if a.OpMask&(1<<i) != 0 {
			q.counters[i] = c
			c.attached++
		}
	}
	return nil
}

// Detach detaches the counter from all queue pairs.
func (c *CompletionCounter) Detach() {
	for _, q := range c.device.qps {
		if q.counters == nil {
			continue
		}
		for i, other := range q.counters {
			if other == c {
				q.counters[i] = nil
				c.attached--
			}
		}
	}
}

// detachCounters detaches all counters from the queue pair.
func (q *QP) detachCounters() {
	if q.counters == nil {
		return
	}
	for _, c := range q.counters {
		if c != nil {
			c.attached--
		}
	}
	q.counters = nil
}

// count counts a completion with that status, of an operation in counterOps. q
// must have counters. If the answers that dep names have not left the process,
// the count is staged. A failure has no bytes: it counts as 1 in a counter of
// bytes, too. told has what the operation has accessed, for the race detector.
func (q *QP) count(op libibverbs.QpAttachCompCntrOp, status libibverbs.WcStatus, bytes uint32, dep dependency, told detector.Account) {
	if op == 0 {
		return
	}
	c := q.counters[bits.TrailingZeros32(uint32(op))]
	if c == nil {
		return
	}
	t := stagedCount{dependency: dep, counter: c, failed: status != libibverbs.IBV_WC_SUCCESS, n: 1, told: told}
	if c.bytes && !t.failed {
		t.n = uint64(bytes)
	}
	if q.device.config.Outgoing == nil || dep.qp == nil && dep.way == nil {
		t.show()
		return
	}
	q.device.staged.addCount(t)
}

// show adds the staged count to its counter.
func (t *stagedCount) show() {
	if detector.Enabled {
		t.counter.told.Add(t.told)
	}
	if t.failed {
		t.counter.failed += t.n
	} else {
		t.counter.done += t.n
	}
}

// addCount stages t. If many counts are staged, it adds t to another one of the
// same counter and queue pair, which then waits for what t waits for.
func (s *publication) addCount(t stagedCount) {
	for i := len(s.counts) - 1; i >= 0 && len(s.counts) >= maxStagedCounts; i-- {
		if o := &s.counts[i]; o.counter == t.counter && o.failed == t.failed && o.qp == t.qp && o.way == t.way {
			o.n += t.n
			if detector.Enabled {
				o.told.Add(t.told)
			}
			o.dependency = t.dependency
			return
		}
	}
	s.counts = append(s.counts, t)
}

// countOps has the operation that counters know a request by, for each opcode
// of completions. Other requests are not counted.
var countOps = map[libibverbs.WcOpcode]libibverbs.QpAttachCompCntrOp{
	libibverbs.IBV_WC_SEND:       libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
	libibverbs.IBV_WC_RDMA_WRITE: libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
	libibverbs.IBV_WC_RDMA_READ:  libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
}

// countRequest counts the completion of a request of the queue pair's own,
// unless the request is the device's. q must have counters.
func (q *QP) countRequest(op libibverbs.WrOpcode, status libibverbs.WcStatus, bytes uint32, way Way, told detector.Account) {
	if q.offload == nil && int(op) < len(wcOpcodes) {
		q.count(countOps[wcOpcodes[op].opcode], status, bytes, dependency{way: way}, told)
	}
}
