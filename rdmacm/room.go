// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "slices"

// room counts the posted requests of one direction and makes goroutines wait
// while the queue is full. It does not count requests that are about to be
// posted, so a full queue always has a completion to come. room is guarded by
// the operations' mutex.
type room struct {
	// size of the queue, and number of posted requests
	size, used int

	// Channels of the waiting goroutines, in order. No other goroutine
	// overtakes the first, which may need more room than the others. A
	// channel receives when its goroutine becomes the first, and when there
	// is more room.
	waiting []chan struct{}
}

// has reports whether the queue has room for n more requests.
func (r *room) has(n int) bool { return r.used+n <= r.size }

// wait adds the caller behind the other waiting goroutines and returns its
// channel. The caller must call leave.
func (r *room) wait() chan struct{} {
	turn := make(chan struct{}, 1)
	r.waiting = append(r.waiting, turn)
	return turn
}

// isFirst reports whether turn is the channel of the first waiting goroutine.
func (r *room) isFirst(turn chan struct{}) bool { return r.waiting[0] == turn }

// leave ends the wait of the goroutine with the channel turn.
func (r *room) leave(turn chan struct{}) {
	i := slices.Index(r.waiting, turn)
	r.waiting = slices.Delete(r.waiting, i, i+1)
	if i == 0 {
		r.tellFirst()
	}
}

// free records that n requests have completed.
func (r *room) free(n int) {
	r.used -= n
	r.tellFirst()
}

// tellFirst makes the first waiting goroutine check again whether there is
// room.
func (r *room) tellFirst() {
	if len(r.waiting) == 0 {
		return
	}
	select {
	case r.waiting[0] <- struct{}{}:
	default: // the goroutine was told before, and has not checked yet
	}
}
