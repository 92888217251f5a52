// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// A timer gives its queue pair a call at a time. Moving it to a later time is
// cheap enough to do for each ACK: its place in the heap is corrected when it
// reaches the top.
type timer struct {
	at     time.Duration // 0 if it does not run
	queued time.Duration // its key in the heap, at most at
	index  int           // its place in the heap from 1 on, or 0
	qp     *QP
}

// timers is a heap of timers, ordered by queued.
type timers []*timer

// set makes t expire at a time, which replaces its old one.
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

// stop keeps t from expiring. t stays in the heap until its old time.
func (t *timer) stop() { t.at = 0 }

// remove takes t out of the heap.
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

// expire expires the timers that are due.
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

// next returns a time by which expire must be called, or Never.
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
