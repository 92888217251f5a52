// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// pollBatch is the maximum number of completions that are polled at a time.
const pollBatch = 16

// lane holds the requests in flight on one queue pair.
type lane struct {
	qp           *ibverbs.QP
	unsignaled   *ibverbs.SendBatch // batch without completions
	signaled     *ibverbs.SendBatch // batch whose last request has a completion
	posted, done int
	marks        []int // for each completion that is still to come: number of requests posted up to and including its request

	again    *ibverbs.RecvBatch
	receives int // number of posted receives
	free     int // number of receives that have completed and can be posted again
}

// stream sends or receives messages of one size, or both, with many in flight
// on all queue pairs.
type stream struct {
	*end
	clock
	size      int
	out, in   bool
	lanes     []lane
	wcs       []ibverbs.WC
	scheduled time.Duration   // time of the last call of runtime.Gosched; see giveWay
	posted    []time.Duration // time at which each message was posted; nil in a test with a duration
	sent      int             // number of messages posted on all queue pairs
	done      int
	come      int
	completed []completion
	began     bool          // whether the test has begun, so that sends may be posted
	last      time.Duration // time at which the last messages were sent or had arrived
}

// newStream prepares messages, and posts receives.
func (e *end) newStream(size int, out, in bool) (*stream, error) {
	s := &stream{end: e, size: size, out: out, in: in, wcs: make([]ibverbs.WC, pollBatch), lanes: make([]lane, e.QPs)}
	if out && e.Duration == 0 {
		s.posted = make([]time.Duration, 0, e.Iterations*e.QPs)
	}
	for i := range s.lanes {
		l := &s.lanes[i]
		l.qp = e.qps[i]
		var err error
		if out {
			if l.unsignaled, err = e.batch(i, e.List, size, 0); err == nil {
				l.signaled, err = e.batch(i, e.List, size, ibverbs.SendSignaled)
			}
		}
		if in && err == nil {
			if err = e.postReceives(l, i, min(e.Receives, e.Iterations), size); err == nil {
				l.again, err = e.receives(i, pollBatch, size)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// postReceives posts n receives.
func (e *end) postReceives(l *lane, i, n, size int) error {
	b, err := e.receives(i, n, size)
	if err == nil {
		_, err = l.qp.PostRecv(b)
	}
	l.receives += n
	return err
}

// run transfers all messages, or as many as the test's duration allows. The
// duration begins with the first message. As with perftest, the server of a
// test in both directions begins to send when the first message has arrived.
func (s *stream) run(ctx context.Context) (Row, error) {
	before := cpuTime()
	s.expecting = s.in
	defer func() { s.expecting = true }()
	s.clock = newClock()
	if !s.in || s.out && s.control.isClient {
		s.begin()
	}
	for !s.over() {
		if err := s.step(ctx); err != nil {
			return Row{}, fmt.Errorf("message %d of %d bytes: %w", s.sent+s.come, s.size, err)
		}
	}
	r := s.row()
	r.CPU = microseconds(cpuTime()-before) / float64(max(1, s.sent+s.come))
	return r, nil
}

func (s *stream) begin() {
	s.began = true
	if s.Duration > 0 {
		s.clock = newClock()
		s.deadline = s.start.Add(s.Duration)
	}
}

// over reports whether all messages are transferred or the duration is over.
func (s *stream) over() bool {
	if s.expired() {
		return true
	}
	all := s.Iterations * s.QPs
	s.expecting = s.in && s.come < all
	return (!s.out || s.done >= all) && !s.expecting
}

// row returns the result.
func (s *stream) row() Row {
	switch {
	case s.Duration > 0:
		return receivedRow(s.size, s.done+s.come, s.last)
	case s.out:
		return bandwidthRow(s.size, s.posted, s.completed)
	}
	return receivedRow(s.size, s.come, s.last)
}

// giveWay calls runtime.Gosched now and then, as ibverbs does while it spins.
// Otherwise, the runtime's monitor, which checks every 10 ms, would interrupt
// the posting. giveWay also reports the progress of the test.
func (s *stream) giveWay(now time.Duration) {
	if now-s.scheduled >= 8*time.Millisecond {
		s.scheduled = now
		if s.progress != nil {
			s.progress(now, s.size, s.done+s.come)
		}
		runtime.Gosched()
	}
}

// step posts a batch on each queue pair that has room for one. If none has room
// for another batch, it takes completions.
func (s *stream) step(ctx context.Context) error {
	if s.out && s.began {
		room := false
		for i := range s.lanes {
			l := &s.lanes[i]
			if !s.hasRoom(l) {
				continue
			}
			if err := s.post(l); err != nil {
				return err
			}
			room = room || s.hasRoom(l)
		}
		if room {
			return nil
		}
	}
	cq := s.sends
	if !s.out {
		cq = s.recvs
	}
	n, err := s.poll(ctx, cq, s.wcs)
	if err != nil || n == 0 { // n is 0 if the duration is over
		return err
	}
	return s.take(s.wcs[:n])
}

func (s *stream) hasRoom(l *lane) bool {
	return l.posted < s.Iterations && l.posted-l.done+s.List <= s.Depth
}

func (s *stream) post(l *lane) error {
	now := s.now()
	s.giveWay(now)
	if s.posted != nil {
		for range s.List {
			s.posted = append(s.posted, now)
		}
	}
	batch := l.unsignaled
	l.posted += s.List
	s.sent += s.List
	if l.posted%s.Moderation == 0 || l.posted >= s.Iterations {
		batch = l.signaled
		l.marks = append(l.marks, l.posted)
	}
	_, err := l.qp.PostSend(batch)
	return err
}

// take counts completions, and posts receives again.
func (s *stream) take(wcs []ibverbs.WC) error {
	if !s.began { // the server's test begins with the first message
		s.begin()
	}
	done := s.done
	for i := range wcs {
		n, isReceive := ofID(wcs[i].ID())
		l := &s.lanes[n]
		if isReceive {
			s.come++
			l.free++
			continue
		}
		s.done += l.marks[0] - l.done
		l.done, l.marks = l.marks[0], l.marks[1:]
	}
	s.last = s.now()
	s.giveWay(s.last)
	if s.done > done && s.posted != nil {
		s.completed = append(s.completed, completion{s.done, s.last})
	}
	if !s.in {
		return nil
	}
	for i := range s.lanes {
		if err := s.refill(i); err != nil {
			return err
		}
	}
	return nil
}

// refill posts receives of queue pair i again that have completed. It waits
// until it can post pollBatch of them in one call, or the last ones of the
// test.
func (s *stream) refill(i int) error {
	l := &s.lanes[i]
	switch more := min(l.free, s.Iterations-l.receives, pollBatch); {
	case more == pollBatch:
		l.receives += more
		l.free -= more
		_, err := l.qp.PostRecv(l.again)
		return err
	case more > 0 && more == s.Iterations-l.receives:
		l.free -= more
		return s.postReceives(l, i, more, s.size)
	}
	return nil
}

// sendAll measures the sending of messages of a size.
func (e *end) sendAll(ctx context.Context, size int) (Row, error) {
	if e.conn != nil {
		return e.connSendAll(ctx, size)
	}
	s, err := e.newStream(size, true, false)
	if err != nil {
		return Row{}, err
	}
	return s.run(ctx)
}

// receiveAll receives messages of a size. It posts receives before it calls
// ready.
func (e *end) receiveAll(ctx context.Context, size int, ready func() error) (Row, error) {
	if e.conn != nil {
		return e.connReceiveAll(ctx, size, ready)
	}
	return e.exchangeAll(ctx, size, false, ready)
}

// exchangeAll is like receiveAll. If out is set, it also sends as many
// messages.
func (e *end) exchangeAll(ctx context.Context, size int, out bool, ready func() error) (Row, error) {
	s, err := e.newStream(size, out, true)
	if err != nil {
		return Row{}, err
	}
	if err := ready(); err != nil {
		return Row{}, err
	}
	return s.run(ctx)
}
