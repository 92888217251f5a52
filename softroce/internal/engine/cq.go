// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// CQ is a completion queue.
type CQ struct {
	device *Device
	ring   *CompletionQueue
	qps    map[*QP]bool // that use it

	moderation libibverbs.ModerateCq
	held       uint32        // completions since an event was due that moderation holds back
	deadline   time.Duration // when the event is made nevertheless; 0: not known before the device advances
}

// CreateCQ makes a completion queue whose completions go to ring. The error is EINVAL for
// no entries or more than the device's limit, ENOMEM if there are too many queues.
func (d *Device) CreateCQ(ring *CompletionQueue) (*CQ, error) {
	if err := d.CheckCQE(ring.Max); err != nil {
		return nil, err
	}
	if d.cqs == maxCQs {
		return nil, syscall.ENOMEM
	}
	d.cqs++
	return &CQ{device: d, ring: ring, qps: map[*QP]bool{}}, nil
}

// CheckCQE returns EINVAL if no completion queue can have n entries.
func (d *Device) CheckCQE(n uint32) error {
	if err := d.check(); err != nil {
		return err
	}
	if n == 0 || n > maxCQE {
		return syscall.EINVAL
	}
	return nil
}

// Resize moves the completions to entries, which has size places, a power of two, of which max may be used.
// The owner holds the lock of those who poll. The error is EINVAL, and nothing changes, if max is 0, above the
// device's limit, or less than the completions in the queue.
func (q *CQ) Resize(entries unsafe.Pointer, size, maxEntries uint32) error {
	if err := q.device.CheckCQE(maxEntries); err != nil {
		return err
	}
	r := q.ring
	if r.Added-r.Polled > maxEntries {
		return syscall.EINVAL
	}
	to := CompletionQueue{Size: size, Entries: entries}
	for n := r.Polled; n != r.Added; n++ {
		*to.entry(n) = *r.entry(n)
	}
	r.Entries, r.Size, r.Max = entries, size, maxEntries
	return nil
}

// Moderate makes the queue hold events back: until there are CqCount completions to tell of, or CqPeriod
// microseconds after the first of them. An event that is held back comes now.
func (q *CQ) Moderate(m libibverbs.ModerateCq) error {
	if err := q.device.check(); err != nil {
		return err
	}
	q.moderation = m
	if q.held > 0 {
		q.fire()
	}
	return nil
}

// Destroy removes the queue. The error is EBUSY while queue pairs use it.
func (q *CQ) Destroy() error {
	if len(q.qps) > 0 {
		return syscall.EBUSY
	}
	q.forget()
	q.device.cqs--
	return nil
}

// add puts a completion into the queue and makes the event if one is due. Solicited says
// that the completion is one for which a queue armed for solicited events waits: a receive of a
// message with the solicited bit. Failures always are.
//
// C.QpNum must be set; add sets the times.
//
// If there is no room the completion is lost and the queue broken: an event says so, and its
// queue pairs go to the error state when the device next advances.
func (q *CQ) add(c Completion, solicited bool) {
	r, d := q.ring, q.device
	if r.Overrun != 0 {
		return
	}
	if r.Added-atomic.LoadUint32(&r.Polled) >= r.Max {
		atomic.StoreUint32(&r.Overrun, 1)
		d.event(libibverbs.IBV_EVENT_CQ_ERR, q)
		d.failing = slices.AppendSeq(d.failing, maps.Keys(q.qps))
		return
	}
	c.Timestamp = uint64(d.now)
	c.Wallclock = uint64(d.start + int64(d.now))
	*r.entry(r.Added) = c
	// Who arms the queue and then polls sees this completion, or it is seen here that the queue is armed. A store
	// would not do: with the race detector, those to C's memory may come after the load that follows.
	atomic.SwapUint32(&r.Added, r.Added+1)
	armed := atomic.LoadUint32(&r.Armed)
	if armed == ArmedNext || armed == ArmedSolicited && (solicited || c.Status != libibverbs.IBV_WC_SUCCESS) {
		q.due()
	}
}

// due makes the event for which the queue is armed, or holds it back.
func (q *CQ) due() {
	q.held++
	count, period := uint32(q.moderation.CqCount), q.period()
	switch {
	case count == 0 && period == 0, count != 0 && q.held >= count:
		q.fire()
	case q.held == 1 && period != 0:
		q.device.moderated = append(q.device.moderated, q)
	}
}

func (q *CQ) period() time.Duration { return time.Duration(q.moderation.CqPeriod) * time.Microsecond }

// fire makes the event for which the queue is armed.
func (q *CQ) fire() {
	q.forget()
	atomic.StoreUint32(&q.ring.Armed, NotArmed)
	if f := q.device.config.CompletionEvent; f != nil {
		f(q)
	}
}

// forget gives up the event that moderation holds back, if any.
func (q *CQ) forget() {
	q.held, q.deadline = 0, 0
	q.device.moderated = slices.DeleteFunc(q.device.moderated, func(m *CQ) bool { return m == q })
}

// remove drops the completions of a queue pair. The owner holds the lock of those who poll.
func (q *CQ) remove(number uint32) {
	r := q.ring
	kept := r.Polled
	for n := r.Polled; n != r.Added; n++ {
		if c := r.entry(n); c.QpNum != number {
			*r.entry(kept) = *c
			kept++
		}
	}
	atomic.StoreUint32(&r.Added, kept)
}

// advanceCQs makes the events that moderation has held back for long enough, and puts the queue pairs of
// queues that ran over into the error state. It returns when the next event is due, or 0.
func (d *Device) advanceCQs() (next time.Duration) {
	for _, q := range slices.Clone(d.moderated) {
		if q.deadline == 0 {
			q.deadline = d.now + q.period()
		}
		if q.deadline <= d.now {
			q.fire()
		} else if next == 0 || q.deadline < next {
			next = q.deadline
		}
	}
	for len(d.failing) > 0 { // which may put more of them there
		failing := d.failing
		d.failing = nil
		for _, q := range slices.SortedFunc(slices.Values(failing), func(a, b *QP) int { return cmp.Compare(a.number, b.number) }) {
			q.fail()
		}
	}
	return next
}
