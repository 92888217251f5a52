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

	staged  []duty // of the completions in the ring that are not shown yet
	cleared int    // how many of them wait for no answer
	listed  bool   // in publication.cqs

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
	end := q.end()
	if end-r.Polled > maxEntries {
		return syscall.EINVAL
	}
	to := CompletionQueue{Size: size, Entries: entries}
	for n := r.Polled; n != end; n++ {
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
	if q.listed {
		s := &q.device.staged
		s.cqs = slices.DeleteFunc(s.cqs, func(o *CQ) bool { return o == q })
	}
	q.device.cqs--
	return nil
}

// end is the count behind the last completion in the ring.
func (q *CQ) end() uint32 { return q.ring.Added + uint32(len(q.staged)) }

// add puts a completion into the queue. Show makes the event if one is due. Solicited says
// that the completion is one for which a queue armed for solicited events waits: a receive of a
// message with the solicited bit. Failures always are.
//
// C.QpNum must be set; add sets the times.
//
// If there is no room the completion is lost and the queue broken: an event says so, and its
// queue pairs go to the error state when the device next advances.
func (q *CQ) add(c Completion, y duty) {
	r, d := q.ring, q.device
	if r.Overrun != 0 {
		return
	}
	if q.end()-atomic.LoadUint32(&r.Polled) >= r.Max {
		atomic.StoreUint32(&r.Overrun, 1)
		d.event(libibverbs.IBV_EVENT_CQ_ERR, q)
		d.failing = slices.AppendSeq(d.failing, maps.Keys(q.qps))
		return
	}
	c.Timestamp = uint64(d.now)
	c.Wallclock = uint64(d.start + int64(d.now))
	*r.entry(q.end()) = c
	q.staged = append(q.staged, y)
	if d.config.Outgoing == nil {
		q.show(1)
	} else if !q.listed {
		q.listed = true
		d.staged.cqs = append(d.staged.cqs, q)
	}
}

// show lets the program see the first n completions that are staged, and makes the events that are due.
func (q *CQ) show(n int) {
	if n == 0 {
		return
	}
	r := q.ring
	first := r.Added
	// Who arms the queue and then polls sees these completions, or it is seen here that the queue is armed. A store
	// would not do: with the race detector, those to C's memory may come after the load that follows.
	atomic.SwapUint32(&r.Added, first+uint32(n))
	for i, y := range q.staged[:n] {
		armed := atomic.LoadUint32(&r.Armed)
		if armed == NotArmed {
			break
		}
		if armed == ArmedNext || y.solicited || r.entry(first+uint32(i)).Status != libibverbs.IBV_WC_SUCCESS {
			q.due()
		}
	}
	q.staged = q.staged[:copy(q.staged, q.staged[n:])]
	q.cleared = max(0, q.cleared-n)
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
	end, kept := q.end(), r.Polled
	staged, cleared := q.staged[:0], 0
	for n := r.Polled; n != end; n++ {
		c := r.entry(n)
		if c.QpNum == number {
			continue
		}
		*r.entry(kept) = *c
		kept++
		if i := int(int32(n - r.Added)); i >= 0 {
			staged = append(staged, q.staged[i])
			if i < q.cleared {
				cleared++
			}
		}
	}
	q.staged, q.cleared = staged, cleared
	atomic.StoreUint32(&r.Added, kept-uint32(len(staged)))
}

// advanceEvents makes the events that moderation has held back for long enough. It returns when the next event is due, or 0.
func (d *Device) advanceEvents() (next time.Duration) {
	if len(d.moderated) == 0 {
		return 0
	}
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
	return next
}

// advanceCQs puts the queue pairs of queues that ran over into the error state.
func (d *Device) advanceCQs() {
	for len(d.failing) > 0 { // which may put more of them there
		failing := d.failing
		d.failing = nil
		for _, q := range slices.SortedFunc(slices.Values(failing), func(a, b *QP) int { return cmp.Compare(a.number, b.number) }) {
			q.fail()
		}
	}
}
