// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "slices"

// room counts the posted requests of one direction and makes goroutines wait
// while the queue is full. It counts only posted requests, so a full queue
// always has a completion to come. It is guarded by the operations' mutex.
type room struct {
	size, used int

	// Turns of the waiting goroutines, in order. No other goroutine overtakes
	// the first, which may need more room than the others. A turn receives when
	// it becomes the first, and when there is more room.
	waiting []chan struct{}
}

// has reports whether there is room for n more.
func (r *room) has(n int) bool { return r.used+n <= r.size }

// wait queues the caller behind the other goroutines. The caller must call
// leave.
func (r *room) wait() chan struct{} {
	turn := make(chan struct{}, 1)
	r.waiting = append(r.waiting, turn)
	return turn
}

// isFirst reports whether no other goroutine waits before the owner of turn.
func (r *room) isFirst(turn chan struct{}) bool { return r.waiting[0] == turn }

// leave ends a wait.
func (r *room) leave(turn chan struct{}) {
	i := slices.Index(r.waiting, turn)
	r.waiting = slices.Delete(r.waiting, i, i+1)
	if i == 0 {
		r.tellFirst()
	}
}

// free frees the places of n completed requests.
func (r *room) free(n int) {
	r.used -= n
	r.tellFirst()
}

// tellFirst makes the first waiting goroutine look again.
func (r *room) tellFirst() {
	if len(r.waiting) == 0 {
		return
	}
	select {
	case r.waiting[0] <- struct{}{}:
	default: // the goroutine has been told, and has not looked yet
	}
}
