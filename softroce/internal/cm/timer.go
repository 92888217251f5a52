// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/heap"
	"time"
)

// timers is a heap of the connections whose timer is running. The first is due
// first.
type timers []*conn

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool {
	if t[i].due != t[j].due {
		return t[i].due < t[j].due
	}
	return t[i].serial < t[j].serial
}

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

func (t *timers) Push(x any) {
	c := x.(*conn)
	c.timer = len(*t)
	*t = append(*t, c)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.timer = -1
	return c
}

// wait starts c's timer, or restarts a running one. now is the current time.
// The timer expires after the time d, multiplied by Config.Scale.
func (c *conn) wait(now, d time.Duration) {
	c.stop()
	c.due = now + time.Duration(float64(d)*c.m.scale)
	heap.Push(&c.m.timers, c)
}

// stop stops c's timer, if it is running.
func (c *conn) stop() {
	if c.timer >= 0 {
		heap.Remove(&c.m.timers, c.timer)
	}
}
