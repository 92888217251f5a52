// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// timer calls the method expired of its queue pair at the time at. With each
// ACK, a timer moves to a later time. That is cheap, since the timer's place in
// the heap is corrected only when the timer reaches the top.
type timer struct {
	at     time.Duration // time of expiry; 0: the timer is stopped
	queued time.Duration // time for which the timer is in the heap: at, or earlier
	index  int           // index in the heap plus 1; 0: not in the heap
	qp     *QP
}

// timers is a heap of timers, ordered by the field queued.
type timers []*timer

// set starts t, or moves it if it is running, so that it expires at the time
// at.
func (h *timers) set(t *timer, at time.Duration) {
	t.at = at
	switch {
	case t.index == 0:
		t.queued = at
		*h = append(*h, t)
		t.index = len(*h)
		h.up(t.index - 1)
	case at < t.queued:
		t.queued = at
		h.up(t.index - 1)
	}
}

// stop stops t. t stays in the heap until the time for which it was set.
func (t *timer) stop() { t.at = 0 }

// remove stops t and takes it out of the heap.
func (h *timers) remove(t *timer) {
	t.at = 0
	if t.index == 0 {
		return
	}
	i, last := t.index-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// expire calls expired for the timers that are due at the time now.
func (h *timers) expire(now time.Duration) {
	for len(*h) > 0 && (*h)[0].queued <= now {
		t := (*h)[0]
		switch {
		case t.at == 0:
			h.remove(t)
		case t.at > now:
			t.queued = t.at
			h.down(0)
		default:
			h.remove(t)
			t.qp.expired(t)
		}
	}
}

// next returns the time at which expire must be called next, or Never. The time
// may be earlier than that of the first timer to expire.
func (h timers) next() time.Duration {
	if len(h) == 0 {
		return Never
	}
	return h[0].queued
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// up restores the heap after the key of element i was lowered.
func (h timers) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].queued <= h[i].queued {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

// down restores the heap after the key of element i was raised.
func (h timers) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].queued < h[least].queued {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
