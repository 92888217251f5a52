// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// pollBatch is how many completions are taken at a time.
const pollBatch = 16

// sendAll measures messages of a size, many at a time.
func (e *end) sendAll(ctx context.Context, size int) (Row, error) {
	if e.conn != nil {
		return e.connSendAll(ctx, size)
	}
	quiet, err := e.batch(e.List, size, 0)
	if err != nil {
		return Row{}, err
	}
	loud, err := e.batch(e.List, size, ibverbs.SendSignaled)
	if err != nil {
		return Row{}, err
	}
	s := stream{
		end: e, clock: newClock(), wcs: make([]ibverbs.WC, pollBatch),
		posted: make([]time.Duration, 0, e.Iterations), completed: make([]completion, 0, e.Iterations),
	}
	before := cpuTime()
	for len(s.completed) == 0 || s.done() < e.Iterations {
		batch, marked := quiet, false
		if after := len(s.posted) + e.List; after%e.Moderation == 0 || after >= e.Iterations {
			batch, marked = loud, true
		}
		if err := s.step(ctx, batch, marked); err != nil {
			return Row{}, fmt.Errorf("message %d of %d bytes: %w", len(s.posted), size, err)
		}
	}
	used := cpuTime() - before
	r := bandwidthRow(size, s.posted, s.completed)
	r.CPU = microseconds(used) / float64(len(s.posted))
	return r, nil
}

// stream is messages under way.
type stream struct {
	*end
	clock
	scheduled time.Duration // see giveWay
	wcs       []ibverbs.WC
	posted    []time.Duration // when each was
	marks     []int           // how many were posted with each request that gives a completion, of those to come
	completed []completion
}

func (s *stream) done() int {
	if len(s.completed) == 0 {
		return 0
	}
	return s.completed[len(s.completed)-1].n
}

// giveWay lets the runtime schedule now and then, as ibverbs does while it spins:
// otherwise the runtime's monitor, which looks every 10 ms, would interrupt the
// posting.
func (s *stream) giveWay(now time.Duration) {
	if now-s.scheduled >= 8*time.Millisecond {
		s.scheduled = now
		runtime.Gosched()
	}
}

// step posts a batch if there is room, and takes completions if there is none
// for another one.
func (s *stream) step(ctx context.Context, batch *ibverbs.SendBatch, marked bool) error {
	if len(s.posted) < s.Iterations && len(s.posted)-s.done()+s.List <= s.Depth {
		now := s.now()
		s.giveWay(now)
		for range s.List {
			s.posted = append(s.posted, now)
		}
		if marked {
			s.marks = append(s.marks, len(s.posted))
		}
		if _, err := s.qp.PostSend(batch); err != nil {
			return err
		}
	}
	if len(s.posted) < s.Iterations && len(s.posted)-s.done()+s.List <= s.Depth {
		return nil
	}
	n, err := s.poll(ctx, s.sends, s.wcs)
	if err != nil {
		return err
	}
	s.completed = append(s.completed, completion{s.marks[n-1], s.now()})
	s.marks = s.marks[n:]
	return nil
}

// receiveAll takes messages of a size, for which so many receives are posted
// before the sender may begin.
func (e *end) receiveAll(ctx context.Context, size int, ready func() error) (Row, error) {
	if e.conn != nil {
		return e.connReceiveAll(ctx, size, ready)
	}
	ahead, err := e.receives(min(e.Receives, e.Iterations), size)
	if err != nil {
		return Row{}, err
	}
	if _, err := e.qp.PostRecv(ahead); err != nil {
		return Row{}, err
	}
	again, err := e.receives(pollBatch, size)
	if err != nil {
		return Row{}, err
	}
	if err := ready(); err != nil {
		return Row{}, err
	}
	posted, come, free := ahead.Len(), 0, 0
	wcs := make([]ibverbs.WC, pollBatch)
	c, before := newClock(), cpuTime()
	for come < e.Iterations {
		n, err := e.poll(ctx, e.recvs, wcs)
		if err != nil {
			return Row{}, fmt.Errorf("message %d of %d bytes: %w", come, size, err)
		}
		come, free = come+n, free+n
		if more := min(free, e.Iterations-posted, pollBatch); more == pollBatch || more == e.Iterations-posted && more > 0 {
			if more < pollBatch {
				if again, err = e.receives(more, size); err != nil {
					return Row{}, err
				}
			}
			if _, err := e.qp.PostRecv(again); err != nil {
				return Row{}, err
			}
			posted, free = posted+more, free-more
		}
	}
	r := receivedRow(size, come, c.now())
	r.CPU = microseconds(cpuTime()-before) / float64(come)
	return r, nil
}
