package rdmacm

import "slices"

// room counts the posted requests of one direction and makes goroutines wait
// while the queue is full. It counts only posted requests, so a full queue
// always has a completion to come. It is guarded by the operations' mutex.
type room struct {
	size, used int
	waiting    []chan struct{} // waiting goroutines, in order; each receives when it may check again
}

func (r *room) isFull() bool { return r.used == r.size }

// wait queues the caller. The channel receives once, when there may be room.
// The caller must then check again or call leave.
func (r *room) wait() chan struct{} {
	turn := make(chan struct{}, 1)
	r.waiting = append(r.waiting, turn)
	return turn
}

// leave ends a wait.
func (r *room) leave(turn chan struct{}) {
	if i := slices.Index(r.waiting, turn); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return
	}
	r.wakeNext() // it was told of room that others may use
}

// free frees the place of a completed request.
func (r *room) free() {
	r.used--
	r.wakeNext()
}

// wakeNext wakes the next waiting goroutine if there is room.
func (r *room) wakeNext() {
	if len(r.waiting) > 0 && !r.isFull() {
		r.waiting[0] <- struct{}{}
		r.waiting = slices.Delete(r.waiting, 0, 1)
	}
}

// wakeAll wakes all waiting goroutines when there will be no more room.
func (r *room) wakeAll() {
	for _, turn := range r.waiting {
		turn <- struct{}{}
	}
	r.waiting = nil
}
