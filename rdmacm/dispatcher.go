// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// dispatcher reads one event channel and passes every event to the handler of
// its ID. One goroutine, which occupies no thread while it waits, serves any
// number of IDs.
type dispatcher struct {
	channel  *EventChannel
	stop     context.CancelFunc
	done     chan struct{} // closed when the goroutine has ended
	users    int           // number of users; guarded by shared
	refusals queue         // queue that refuses unwanted requests

	mu       sync.Mutex
	handlers map[*ID]func(*Event)
	failed   error // reason why no more events will come, or nil
}

// shared is the dispatcher of all connections; it exists while there are any.
// Each listener has a dispatcher of its own, so that events of connections do
// not wait behind incoming requests.
var shared struct {
	sync.Mutex
	*dispatcher
}

// useDispatcher returns the shared dispatcher. The caller must release it.
func useDispatcher() (*dispatcher, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.dispatcher == nil || shared.failure() != nil {
		d, err := newDispatcher()
		if err != nil {
			return nil, err
		}
		shared.dispatcher = d // replaces a dispatcher that has failed; its users keep that one
	}
	shared.users++
	return shared.dispatcher, nil
}

// ownDispatcher returns a new dispatcher that is not shared. The caller must
// release it.
func ownDispatcher() (*dispatcher, error) {
	d, err := newDispatcher()
	if err == nil {
		d.acquire()
	}
	return d, err
}

// newDispatchedID creates an ID on the channel of a dispatcher, which the
// function use returns. The caller must release the dispatcher.
func newDispatchedID(ps PortSpace, use func() (*dispatcher, error)) (*dispatcher, *ID, error) {
	d, err := use()
	if err != nil {
		return nil, nil, err
	}
	id, err := d.channel.NewID(ps)
	if err != nil {
		return nil, nil, errors.Join(err, d.release())
	}
	return d, id, nil
}

// newDispatcher starts a dispatcher without users.
func newDispatcher() (*dispatcher, error) {
	ch, err := newEventChannel(true)
	if err != nil {
		return nil, err
	}
	// Unlisted, because no caller has to close it.
	ch.object.InitUnlisted(ch.name())
	ctx, stop := context.WithCancel(context.Background())
	d := &dispatcher{channel: ch, stop: stop, done: make(chan struct{}), handlers: map[*ID]func(*Event){}}
	go d.run(ctx)
	return d, nil
}

func (d *dispatcher) acquire() {
	shared.Lock()
	defer shared.Unlock()
	d.users++
}

// release ends one use. The last release closes the channel; the channel's IDs
// must be closed before. It must not be called from a handler.
func (d *dispatcher) release() error {
	if !d.leave() {
		return nil
	}
	// No goroutine can find the dispatcher anymore.
	d.stop()
	<-d.done
	d.refusals.wait()
	return d.channel.Close()
}

// leave ends one use and reports whether it was the last.
func (d *dispatcher) leave() bool {
	shared.Lock()
	defer shared.Unlock()
	if d.users--; d.users > 0 {
		return false
	}
	if shared.dispatcher == d {
		shared.dispatcher = nil
	}
	return true
}

func (d *dispatcher) run(ctx context.Context) {
	defer close(d.done)
	var delay time.Duration
	for {
		ev, err := d.channel.Next(ctx)
		switch {
		case err == nil:
			delay = 0
			d.dispatch(ev)
		case ctx.Err() != nil:
			return
		case !mayPass(err): // the channel is unusable
			d.failAll(err)
			return
		default: // C will read the same event again
			delay = min(max(2*delay, shortestPause), longestPause)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
		}
	}
}

// shortestPause and longestPause bound the delay before reading events again
// after a temporary error.
const shortestPause, longestPause = time.Millisecond, time.Second

// mayPass reports whether an error of reading events is temporary: the system
// may regain the resources it lacks.
func mayPass(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE,
	}, func(target error) bool { return errors.Is(err, target) })
}

// dispatch passes an event to the handler of its ID. A connection request goes
// to the handler of the listening ID.
func (d *dispatcher) dispatch(ev *Event) {
	d.mu.Lock()
	handler := d.handlers[ev.ID]
	if ev.Type == EventConnectRequest {
		handler = d.handlers[ev.ListenID]
	}
	d.mu.Unlock()
	switch {
	case handler != nil:
		handler(ev)
	case ev.Type == EventConnectRequest: // the listener has just been closed
		d.refusals.add(ev.ID.refuse)
	}
}

// keep calls adopt for a connection request if hasRoom returns true. Otherwise,
// it rejects the request, and the peer tries again. It rejects in the
// background, because the kernel may take long. keep adds one use of the
// dispatcher, for the object that adopt creates. It calls both functions with
// mu held.
func (d *dispatcher) keep(id *ID, mu sync.Locker, hasRoom func() bool, adopt func()) {
	mu.Lock()
	room := hasRoom()
	if room {
		d.acquire() // must precede the release by the current users
		adopt()
	}
	mu.Unlock()
	if !room {
		d.refusals.add(id.shed)
	}
}

// catchUpPatience limits how long catchUp waits if events do not stop coming.
const catchUpPatience = time.Second

// catchUp waits until the handlers have had all events that C had at the
// beginning, or until over is closed. It gives up after catchUpPatience.
func (d *dispatcher) catchUp(over <-chan struct{}) {
	late := time.NewTimer(catchUpPatience)
	defer late.Stop()
	select {
	case <-d.channel.drained():
	case <-d.done: // closed if the dispatcher has failed
	case <-over:
	case <-late.C:
	}
}

func (d *dispatcher) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// failAll tells every ID that no more events will come.
func (d *dispatcher) failAll(err error) {
	d.mu.Lock()
	d.failed = err
	handlers := maps.Clone(d.handlers)
	d.mu.Unlock()
	for id, handler := range handlers {
		handler(failedEvent(id, err))
	}
}

// failedEvent returns the event that tells an ID that no more events will come,
// because reading them has failed with err.
func failedEvent(id *ID, err error) *Event {
	status := -int(syscall.EIO)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		status = -int(errno)
	}
	if _, ok := errors.AsType[*ibverbs.Error](err); !ok { // waiting for the descriptor failed
		err = fmt.Errorf("rdma_get_cm_event: %w", err)
	}
	return &Event{ID: id, Type: EventConnectError, Status: status, broken: err}
}

// handle makes f the handler of an ID's events. One goroutine runs all handlers
// one after the other, so a handler must not block or call C.
func (d *dispatcher) handle(id *ID, f func(*Event)) {
	d.mu.Lock()
	d.handlers[id] = f
	failed := d.failed
	d.mu.Unlock()
	if failed != nil {
		f(failedEvent(id, failed))
	}
}

// move moves an ID to another dispatcher, which the function use returns. It
// sets the ID's handler to f unless f is nil. After the call, the caller uses
// that dispatcher instead of d.
func (d *dispatcher) move(id *ID, use func() (*dispatcher, error), f func(*dispatcher, *Event)) (*dispatcher, error) {
	to, err := use()
	if err != nil {
		return nil, err
	}
	if to == d { // happens if the caller has called ID.Listen itself; the ID stays here
		return d, d.release()
	}
	if f != nil {
		to.handle(id, func(ev *Event) { f(to, ev) })
	}
	release := to.channel.hold(id)
	err = id.migrate(to.channel)
	release()
	if err != nil {
		to.forget(id)
		return nil, errors.Join(err, to.release())
	}
	d.forget(id)
	return to, d.release()
}

// forget removes the handler of an ID. The handler may still be running.
func (d *dispatcher) forget(id *ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handlers, id)
}

// queue calls functions in the order of add, on goroutines that exist only
// while there is work. The zero value is ready to use.
type queue struct {
	atOnce int // maximum number of concurrent calls; 0 means 1

	mu      sync.Mutex // guards the fields below
	waiting []func()
	workers int

	working sync.WaitGroup
}

// background runs C calls that no goroutine waits for, such as disconnecting.
// The kernel may block some of them, so several run at once. Each occupies a
// thread, so their number is small.
var background = queue{atOnce: 4}

// destroying destroys the IDs of ended connections. This work has a queue of
// its own, since the kernel may take long to destroy an ID.
var destroying = queue{atOnce: 4}

// add appends a function to the queue. It does not block.
func (q *queue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, f)
	if q.workers < max(q.atOnce, 1) {
		q.workers++
		q.working.Go(q.work)
	}
}

func (q *queue) work() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.waiting = nil
			q.workers--
			q.mu.Unlock()
			return
		}
		f := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		f()
	}
}

// wait blocks until all functions have returned. During the call, no function
// may be added.
func (q *queue) wait() { q.working.Wait() }
