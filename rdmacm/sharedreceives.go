// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/verbena-go/verbena/ibverbs"
)

// sharedReceives holds the receives of a pool's shared receive queue, and their
// memory. Each receive has a slot, whose number is in the ID of the work
// request.
//
// When a queue pair ends in the middle of a message, a device completes the
// receive of that message, as flushed, before EventLastWQEReached. Soft-RoCE
// does not complete it and forgets the receive. So after the end of a
// connection on Soft-RoCE, a receive that was posted before the end may be
// lost. It is called a suspect as soon as a receive that was posted later has
// completed. Spare receives take the places of suspects. A suspect may also be
// in use by another connection. It is certainly lost if each connection that
// existed when it became a suspect is over, or has completed a receive that was
// posted later: a connection takes receives in order and one at a time. A lost
// receive is posted again.
type sharedReceives struct {
	srq     *ibverbs.SRQ
	mr      *ibverbs.MR
	message int  // number of bytes in a slot
	loses   bool // whether the device forgets receives, as Soft-RoCE does

	low atomic.Bool // whether less than half of the receives are posted

	mu        sync.Mutex // guards the fields below
	slots     []sharedSlot
	free      []uint32 // slots that are neither posted nor held
	batch     *ibverbs.RecvBatch
	want      int    // number of slots that should be posted, apart from extra
	posted    int    // number of posted slots that are not suspects
	suspects  int    // number of suspects
	last      uint64 // number of the receive posted last; numbers start at 1
	passed    uint64 // highest number of a receive that has completed
	lastAtEnd uint64 // value of last when a connection ended most recently; 0 if there are no receives that may still become suspects
	extra     int    // number of spare slots that are posted in addition to want: one for each connection that has ended since lastAtEnd was last 0
	serial    uint64 // serial number of the connection that joined last
}

type sharedSlot struct {
	number  uint64 // number of the receive; 0 while it is not posted
	suspect uint64 // serial number of the newest connection that may have taken the receive; 0 if it is not a suspect (see sharedReceives)
}

const (
	// sharedReceive marks the IDs of receives in a shared receive queue.
	sharedReceive = 1 << 61
	// userRequest marks the IDs of the program's own work requests.
	userRequest = 1 << 63
	// recvBatch is the maximum number of receives posted in one call.
	recvBatch = 64
)

// sparesFor returns the number of spare slots for the given number of receives.
func sparesFor(receives int) int { return min(max(receives/8, 8), 256) }

func (s *sharedReceives) init(srq *ibverbs.SRQ, mr *ibverbs.MR, receives, message int, loses bool) (err error) {
	s.srq, s.mr, s.message, s.want, s.loses = srq, mr, message, receives, loses
	s.slots = make([]sharedSlot, receives+sparesFor(receives))
	for i := range s.slots {
		s.free = append(s.free, uint32(len(s.slots)-1-i))
	}
	if s.batch, err = ibverbs.NewRecvBatch(recvBatch, 1); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.post()
}

// memory returns the first n bytes of a slot.
func (s *sharedReceives) memory(slot uint32, n int) []byte {
	return s.mr.Sub(int(slot)*s.message, min(n, s.message)).Bytes()
}

// take takes a slot whose receive has completed, and returns the number of the
// receive. It returns 0 if the slot was not posted.
func (s *sharedReceives) take(slot uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(slot) >= int64(len(s.slots)) || s.slots[slot].number == 0 {
		return 0
	}
	at := &s.slots[slot]
	number := at.number
	if at.suspect != 0 {
		s.suspects-- // posted does not count suspects
	} else {
		s.posted--
	}
	*at = sharedSlot{}
	s.passed = max(s.passed, number)
	s.noteLow()
	return number
}

func (s *sharedReceives) noteLow() { s.low.Store(2*s.posted < s.want) }

// give takes back a slot whose message is no longer needed. The next call of
// refill posts the slot.
func (s *sharedReceives) give(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, slot)
}

// refill posts the slots that were given back. If C refuses, the next call
// tries again.
func (s *sharedReceives) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) > 0 {
		_ = s.post()
	}
}

// post posts free slots until want + extra slots are posted. The caller must
// hold s.mu.
func (s *sharedReceives) post() error {
	for len(s.free) > 0 && s.posted < s.want+s.extra {
		s.batch.Reset()
		n := min(len(s.free), s.want+s.extra-s.posted, recvBatch)
		slots := s.free[len(s.free)-n:]
		for _, slot := range slots {
			if err := s.batch.Recv(sharedReceive|uint64(slot), s.mr.Sub(int(slot)*s.message, s.message)); err != nil {
				return err
			}
		}
		posted, err := s.srq.PostRecv(s.batch)
		for _, slot := range slots[:posted] {
			s.last++
			s.slots[slot].number = s.last
		}
		// The slots that were not posted stay free.
		s.free = append(s.free[:len(s.free)-n], slots[posted:]...)
		s.posted += posted
		s.noteLow()
		if err != nil {
			return err
		}
	}
	return nil
}

// join returns the serial number of a connection that may take receives from
// now on.
func (s *sharedReceives) join() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	return s.serial
}

// left records that a connection's queue pair has been destroyed. live calls
// its argument for each existing connection, with the connection's serial
// number and the number of the last receive that it has completed.
func (s *sharedReceives) left(live func(func(serial, received uint64))) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loses {
		return
	}
	s.lastAtEnd = s.last
	s.extra = min(s.extra+1, len(s.slots)-s.want)
	s.reclaim(live)
	_ = s.post()
}

// unsettled reports whether there are suspects, or receives that may become
// suspects.
func (s *sharedReceives) unsettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspects > 0 || s.lastAtEnd > 0 && s.passed > 0
}

// settle checks again which receives are lost, and posts them again. live is as
// for left.
func (s *sharedReceives) settle(live func(func(serial, received uint64))) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reclaim(live)
	_ = s.post()
}

// reclaim finds suspects, and frees the slots of those that are lost. live is
// as for left. The caller must hold s.mu.
func (s *sharedReceives) reclaim(live func(func(serial, received uint64))) {
	if s.lastAtEnd > 0 {
		for i := range s.slots {
			at := &s.slots[i]
			if at.number > 0 && at.suspect == 0 && at.number < s.passed && at.number <= s.lastAtEnd {
				at.suspect = s.serial
				s.suspects++
				s.posted--
			}
		}
		if s.passed >= s.lastAtEnd {
			s.lastAtEnd, s.extra = 0, 0
		}
	}
	if s.suspects == 0 {
		return
	}
	// A connection can have a suspect if it existed when the receive became a
	// suspect, and has not completed a later receive.
	oldest := make(map[uint64]uint64)
	live(func(serial, received uint64) { oldest[serial] = received })
	for i := range s.slots {
		at := &s.slots[i]
		if at.suspect == 0 {
			continue
		}
		lowest := uint64(math.MaxUint64)
		for serial, received := range oldest {
			if serial <= at.suspect {
				lowest = min(lowest, received)
			}
		}
		if lowest > at.number {
			*at = sharedSlot{}
			s.suspects--
			s.free = append(s.free, uint32(i))
		}
	}
}
