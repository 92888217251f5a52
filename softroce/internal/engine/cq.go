// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"
	"sort"
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
	qps    map[*QP]bool // queue pairs that complete into the queue
	srqs   int          // number of shared receive queues that complete into the queue

	staged   []dependency // for each completion that is in the ring but not yet visible, the answers for which it waits
	answered int          // number of completions, from the first of staged on, whose answers were sent
	ready    int          // number of completions, from the first of staged on, that can be made visible; valid only during Publish
	listed   bool         // whether the queue is in publication.cqs

	moderation libibverbs.ModerateCq
	held       uint32        // number of completions for which no event was fired yet, as moderation delays it
	deadline   time.Duration // time at which the delayed event fires; 0 until the next Advance
}

// CreateCQ creates a completion queue on the given ring. It fails with EINVAL
// if ring.Max is 0 or above the device's limit, and with ENOMEM if the device
// has too many queues.
func (d *Device) CreateCQ(ring *CompletionQueue) (*CQ, error) {
	if err := d.CheckCQE(ring.Max); err != nil {
		return nil, err
	}
	if d.cqs == int(d.limits.CQs) {
		return nil, syscall.ENOMEM
	}
	d.cqs++
	return &CQ{device: d, ring: ring, qps: map[*QP]bool{}}, nil
}

// CheckCQE returns EINVAL if a completion queue cannot have n entries, and EIO
// if the device was removed.
func (d *Device) CheckCQE(n uint32) error {
	if err := d.check(); err != nil {
		return err
	}
	if n == 0 || n > d.limits.CQE {
		return syscall.EINVAL
	}
	return nil
}

// Resize moves the completions to the array entries, which has size elements, a
// power of two. At most maxEntries of them may be in use. The caller must hold
// the lock of the threads that poll. Resize fails with EINVAL if maxEntries is
// 0, above the device's limit, or less than the number of completions in the
// queue. If it fails, nothing changes.
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

// Moderate delays the queue's events until there are m.CqCount completions, or
// until m.CqPeriod microseconds after the first of them. An event that an
// earlier call delays fires at once.
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

// Destroy removes the queue. It fails with EBUSY while queue pairs or shared
// receive queues use it.
func (q *CQ) Destroy() error {
	if len(q.qps) > 0 || q.srqs > 0 {
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

// end returns the number of all completions that were added, including those
// that are not visible yet.
func (q *CQ) end() uint32 { return q.ring.Added + uint32(len(q.staged)) }

// add puts the completion c into the queue. c stays invisible to the program
// until the answers that dep names have left the process. When c becomes
// visible, the event of an armed queue fires; a queue that is armed for
// solicited events needs dep.solicited or a failed completion for that.
//
// The caller must set c.QpNum. add sets the times, and does not keep c.
//
// If the ring is full, the completion is lost and the queue is broken: add
// reports an asynchronous event, and the next Advance puts the queue pairs of
// the queue into the error state.
func (q *CQ) add(c *Completion, dep dependency) {
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
	*r.entry(q.end()) = *c
	if q.staged == nil {
		q.staged, d.staged.unused = d.staged.unused, nil
	}
	q.staged = append(q.staged, dep)
	if d.config.Outgoing == nil {
		q.show(1)
	} else if !q.listed {
		q.listed = true
		d.staged.cqs = append(d.staged.cqs, q)
	}
}

// fewStaged is the number of dependencies for which each queue has an array.
const fewStaged = 16

// show makes the first n staged completions visible to the program, and fires
// the event if the queue is armed for one of them.
func (q *CQ) show(n int) {
	if n == 0 {
		return
	}
	r := q.ring
	first := r.Added
	// A poller that arms the queue and then polls sees these completions, or
	// else this thread sees that the queue is armed. A store would not do:
	// under the race detector, stores to C's memory may come after the load
	// that follows.
	atomic.SwapUint32(&r.Added, first+uint32(n))
	for i, dep := range q.staged[:n] {
		armed := atomic.LoadUint32(&r.Armed)
		if armed == NotArmed {
			break
		}
		if armed&ArmedNext != 0 || dep.solicited || r.entry(first+uint32(i)).Status != libibverbs.IBV_WC_SUCCESS {
			q.due()
		}
	}
	if n < len(q.staged) {
		copy(q.staged, q.staged[n:])
	}
	q.staged = q.staged[:len(q.staged)-n]
	q.answered = max(0, q.answered-n)
	if cap(q.staged) <= fewStaged || len(q.staged) > 0 {
		return
	}
	if s := &q.device.staged; cap(q.staged) > cap(s.unused) {
		clear(q.staged[:n]) // may refer to queue pairs
		s.unused, q.staged = q.staged, s.unused
	}
}

// due handles that an event of the queue is due: it fires the event, or delays
// it if moderation demands that.
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

// period returns the longest time for which moderation delays an event.
func (q *CQ) period() time.Duration { return time.Duration(q.moderation.CqPeriod) * time.Microsecond }

// fire disarms the queue and fires its event.
func (q *CQ) fire() {
	q.forget()
	armed := atomic.SwapUint32(&q.ring.Armed, NotArmed)
	if f := q.device.config.CompletionEvent; f != nil {
		f(q, armed)
	}
}

// forget cancels the event that moderation delays, if any.
func (q *CQ) forget() {
	q.held, q.deadline = 0, 0
	q.device.moderated = slices.DeleteFunc(q.device.moderated, func(m *CQ) bool { return m == q })
}

// remove removes the completions for which gone returns true. The caller must
// hold the lock of the threads that poll.
func (q *CQ) remove(gone func(c *Completion) bool) {
	r := q.ring
	end, kept := q.end(), r.Polled
	staged, answered := q.staged[:0], 0
	for n := r.Polled; n != end; n++ {
		c := r.entry(n)
		if gone(c) {
			q.device.noteDropped(c.Ticket)
			continue
		}
		*r.entry(kept) = *c
		kept++
		if i := int(int32(n - r.Added)); i >= 0 {
			staged = append(staged, q.staged[i])
			if i < q.answered {
				answered++
			}
		}
	}
	q.staged, q.answered = staged, answered
	atomic.StoreUint32(&r.Added, kept-uint32(len(staged)))
}

// advanceEvents fires the events whose delay by moderation is over. next is the
// time at which the next delay ends, or 0 if there is none.
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

// advanceCQs puts the queue pairs of broken completion queues into the error
// state.
func (d *Device) advanceCQs() {
	for len(d.failing) > 0 { // a queue pair that fails may overrun another queue
		failing := d.failing
		d.failing = nil
		sort.Slice(failing, func(i, j int) bool { return failing[i].number < failing[j].number })
		for _, q := range failing {
			q.fail()
		}
	}
}
