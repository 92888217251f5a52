package rdmacm

import "slices"

// room counts the requests of one direction that are posted, and has those wait
// who want to post when there are as many as the queue takes. Only what is posted
// counts, so that a full queue always has a completion to come. It is guarded by
// the operations' mutex.
type room struct {
	size, used int
	waiting    []chan struct{} // those who wait, in turn; each receives when it may look again
}

func (r *room) isFull() bool { return r.used == r.size }

// wait puts the caller at the end of those who wait. The channel receives, once,
// when there may be room. Whoever has received looks again, or calls leave.
func (r *room) wait() chan struct{} {
	turn := make(chan struct{}, 1)
	r.waiting = append(r.waiting, turn)
	return turn
}

// leave ends what wait began.
func (r *room) leave(turn chan struct{}) {
	if i := slices.Index(r.waiting, turn); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return
	}
	r.wakeNext() // it was told, and others may use the room
}

// free gives up the place of a request that is done.
func (r *room) free() {
	r.used--
	r.wakeNext()
}

// wakeNext tells the next of those who wait if there is room.
func (r *room) wakeNext() {
	if len(r.waiting) > 0 && !r.isFull() {
		r.waiting[0] <- struct{}{}
		r.waiting = slices.Delete(r.waiting, 0, 1)
	}
}

// wakeAll tells all who wait that there will be no room any more.
func (r *room) wakeAll() {
	for _, turn := range r.waiting {
		turn <- struct{}{}
	}
	r.waiting = nil
}
