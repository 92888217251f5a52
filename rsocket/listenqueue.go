// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// listenQueue holds the peers of a listener from their connection request to
// Accept. Requests wait for a place for their handshake, and connections wait
// for Accept.
//
// A handshake takes memory and a queue pair before the peer has proven that it
// answers, so the number of places is small. If a peer does not complete its
// handshake in time, the newest request gets its place, since older requests
// are likely to be part of the same flood. After a completed handshake, the
// oldest request gets the place.
type listenQueue struct {
	backlog int // limit of waiting requests, and of waiting connections
	accept  func(ctx context.Context, request *rdmacm.Request, h *handshake) (*Conn, error)
	ready   chan arrival // connections that wait for Accept; has room for all that may come
	ctx     context.Context

	mu          sync.Mutex              // guards the fields below
	idle        sync.Cond               // uses mu; signals that busy may have become false
	waiting     []*rdmacm.Request       // requests without a place, the oldest first
	underWay    map[*handshake]struct{} // handshakes in progress
	ending      int                     // number of handshakes in progress that were ended to make room
	replacement *handshake              // handshake that has replaced an ended one, until its peer is asked to complete it; otherwise nil
	completed   time.Time               // time of the last completed handshake
	timer       *time.Timer
	alarm       time.Time // time for which the timer is set; zero: that time has come
	closed      bool
}

// handshake is a handshake in progress. It has a place in a listenQueue.
type handshake struct {
	began time.Time
	asked time.Time // time at which the peer was asked to complete the handshake; zero: not yet
	ended bool      // whether the handshake was ended to make room for another
	end   context.CancelCauseFunc

	queue   *listenQueue
	logging int // number of calls of the log handler in progress, for which close does not wait
}

// arrival is a connection that waits for Accept, with its handshake.
type arrival struct {
	conn *Conn
	of   *handshake
}

// unwaited is a log handler for which the queue's close does not wait, since
// the handler may close the listener.
type unwaited struct {
	slog.Handler
	of *handshake
}

// Handle calls the wrapped handler, and counts the call.
func (u unwaited) Handle(ctx context.Context, r slog.Record) error {
	u.of.queue.logs(u.of, 1)
	defer u.of.queue.logs(u.of, -1)
	return u.Handler.Handle(ctx, r)
}

// logger returns the logger for the connection of the handshake, or nil if to
// is nil.
func (h *handshake) logger(to *slog.Logger) *slog.Logger {
	if to == nil {
		return nil
	}
	return slog.New(unwaited{to.Handler(), h})
}

// logs adds calls, 1 or -1, to the number of the log handler's calls in
// progress for a handshake.
func (l *listenQueue) logs(h *handshake, calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.logging += calls
	l.idle.Broadcast()
}

const (
	maxBacklog    = 1 << 16
	maxHandshakes = 64 // limit of handshakes in progress; Linux lets a device have 128 handshake messages in progress
	maxEnding     = 8  // limit of ended handshakes that are still in progress, as the kernel may take long to destroy their objects
	// longPatience limits the time in which a peer must complete its
	// handshake while other requests wait. If no other peer completes one
	// either, the limit is shortPatience. Linux repeats an acceptance that
	// the peer does not confirm after four seconds. So shortPatience is
	// enough if the acceptance or its confirmation was lost once, and
	// longPatience if that happened twice.
	//
	// Both limits are at least slowness times the duration of this end's
	// part of the handshake, and time in which this process does not run
	// does not count. That leaves peers enough time if this machine is slow.
	longPatience, shortPatience = 10 * time.Second, 5 * time.Second
	slowness                    = 3
	tolerance                   = 100 * time.Millisecond // lateness of the timer on a machine that is not slow
)

// init sets the queue's fields. The end of ctx ends all handshakes.
func (l *listenQueue) init(ctx context.Context, backlog int, accept func(context.Context, *rdmacm.Request, *handshake) (*Conn, error)) {
	l.ctx, l.backlog, l.accept = ctx, backlog, accept
	l.idle.L = &l.mu
	l.ready = make(chan arrival, backlog+l.places()+maxEnding)
	l.underWay = map[*handshake]struct{}{}
	l.timer = time.AfterFunc(time.Hour, l.timeOut)
	l.timer.Stop()
}

// places returns the limit of handshakes in progress.
func (l *listenQueue) places() int { return min(l.backlog, maxHandshakes) }

// enter adds a request. If too many requests wait, it removes and returns the
// oldest, which the caller must pass to shed; otherwise excess is nil.
func (l *listenQueue) enter(request *rdmacm.Request) (excess *rdmacm.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, request)
	l.fill()
	if len(l.waiting) > l.backlog {
		excess = l.take(0)
	}
	return excess
}

// shed refuses a request in a way that makes its peer try again. It calls C, so
// no lock may be held.
func shed(request *rdmacm.Request) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(rdmacm.ErrBacklogFull)
	_, _ = request.Accept(ctx, nil)
}

// accepted records that Accept has taken a connection, which makes room for
// handshakes.
func (l *listenQueue) accepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fill()
}

// timeOut is called by the queue's timer. It ends the slowest handshake if the
// time of that handshake is up and a request waits for its place.
func (l *listenQueue) timeOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fill()
}

// forgive gives handshakes more time if the time for which the timer was set is
// long over: this process did not run, and did not see what peers have sent.
// They get the time that has passed since, and shortPatience. The caller holds
// l.mu.
func (l *listenQueue) forgive() {
	late := time.Since(l.alarm)
	if l.alarm.IsZero() || late < 0 {
		return
	}
	l.alarm = time.Time{}
	if late <= tolerance {
		return
	}
	for h := range l.underWay {
		if !h.asked.IsZero() {
			h.asked, h.began = h.asked.Add(late+shortPatience), h.began.Add(late+shortPatience)
		}
	}
}

// fill starts handshakes of the oldest requests in the free places. If no place
// is free and a handshake takes too long, fill ends it and starts the newest
// request's handshake. It does so for one handshake at a time, since ending and
// starting handshakes slows down the others. The caller holds l.mu.
func (l *listenQueue) fill() {
	l.forgive()
	for len(l.waiting) > 0 && l.mayBegin() && len(l.underWay)-l.ending < l.places() {
		l.begin(l.take(0))
	}
	if len(l.waiting) == 0 || !l.mayBegin() || l.replacement != nil || l.ending == maxEnding {
		return
	}
	h, due := l.slowest()
	if h == nil {
		return // fill runs again when the next peer is asked to complete its handshake
	}
	if wait := time.Until(due); wait > 0 {
		l.alarm = due
		l.timer.Reset(wait)
		return
	}
	h.ended = true
	l.ending++
	h.end(rdmacm.ErrBacklogFull)
	l.replacement = l.begin(l.take(len(l.waiting) - 1))
}

// mayBegin reports whether handshakes may start: not while too many connections
// wait for Accept, nor after close.
func (l *listenQueue) mayBegin() bool { return !l.closed && len(l.ready) < l.backlog }

// slowest returns the handshake that is to be ended first, and the time for
// that. It returns nil if no peer has been asked to complete its handshake.
func (l *listenQueue) slowest() (first *handshake, at time.Time) {
	for h := range l.underWay {
		if h.ended || h.asked.IsZero() {
			continue
		}
		if due := h.due(l.completed); first == nil || due.Before(at) {
			first, at = h, due
		}
	}
	return first, at
}

// due returns the time at which a handshake is to be ended. Its peer must have
// been asked to complete it. completed is the time at which the last handshake
// was completed.
func (h *handshake) due(completed time.Time) time.Time {
	since := h.asked
	if completed.After(since) {
		since = completed
	}
	part := slowness * h.asked.Sub(h.began)
	due, last := since.Add(max(shortPatience, part)), h.asked.Add(max(longPatience, part))
	if last.Before(due) {
		return last
	}
	return due
}

// take removes the waiting request i, and returns it.
func (l *listenQueue) take(i int) *rdmacm.Request {
	request := l.waiting[i]
	copy(l.waiting[i:], l.waiting[i+1:])
	last := len(l.waiting) - 1
	l.waiting[last] = nil
	l.waiting = l.waiting[:last]
	return request
}

// begin starts the handshake of a request.
func (l *listenQueue) begin(request *rdmacm.Request) *handshake {
	ctx, end := context.WithCancelCause(l.ctx)
	h := &handshake{began: time.Now(), end: end, queue: l}
	l.underWay[h] = struct{}{}
	go func() {
		defer end(nil)
		c, err := l.accept(ctx, request, h)
		l.leave(h, c, err) // an error is dropped: the peer has been told, and no caller of this end waits for it
	}()
	return h
}

// asked records that the peer is about to be asked to complete the handshake h.
func (l *listenQueue) asked(h *handshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.asked = time.Now()
	if l.replacement == h {
		l.replacement = nil
	}
	l.fill()
}

// leave ends the handshake h, whose result is c or err. It makes the connection
// wait for Accept, and frees the place.
func (l *listenQueue) leave(h *handshake, c *Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.closed {
		l.mu.Unlock()
		dismiss(c)
		l.mu.Lock()
	} else if err == nil {
		l.completed = time.Now()
		l.ready <- arrival{c, h}
	}
	delete(l.underWay, h)
	l.idle.Broadcast()
	if h.ended {
		l.ending--
	}
	if l.replacement == h {
		l.replacement = nil
	}
	l.fill()
}

// close rejects the waiting requests and closes the waiting connections. It
// does not wait for log handlers, since these may have called it; connections
// whose record is being handled are closed later. The context must have ended,
// and enter must not be called any more. Accept may still take a connection.
func (l *listenQueue) close() {
	l.mu.Lock()
	l.closed = true
	l.timer.Stop()
	waiting := l.waiting
	l.waiting = nil
	l.dropArrivals()
	l.mu.Unlock()
	for _, request := range waiting {
		_ = request.Reject(nil) // fails if the peer has given up
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy() {
		l.idle.Wait()
	}
}

// dropArrivals begins to close the connections that wait for Accept, each in a
// goroutine. Until its connection is closed, each handshake is in l.underWay
// again, so that close waits for it. The caller holds l.mu.
func (l *listenQueue) dropArrivals() {
	for {
		select {
		case a := <-l.ready:
			l.underWay[a.of] = struct{}{}
			go func() {
				dismiss(a.conn)
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.underWay, a.of)
				l.idle.Broadcast()
			}()
		default:
			return
		}
	}
}

// busy reports whether a handshake is in progress for which close must wait.
// The caller holds l.mu.
func (l *listenQueue) busy() bool {
	for h := range l.underWay {
		if h.logging == 0 {
			return true
		}
	}
	return false
}

// dismiss closes a connection that was not accepted, without waiting for the
// peer.
func dismiss(c *Conn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
