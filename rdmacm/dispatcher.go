package rdmacm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// dispatcher reads one event channel and hands every event to its id's
// handler. It serves any number of ids with one goroutine, which holds no
// thread.
type dispatcher struct {
	channel  *EventChannel
	stop     context.CancelFunc
	done     chan struct{} // closed when the goroutine has ended
	users    int           // guarded by shared
	refusals queue         // of requests that nobody wants

	mu       sync.Mutex
	handlers map[*ID]func(*Event)
	failed   error // why no events will come any more
}

// shared is the dispatcher of all connections, as long as there are any. What
// listens has one of its own, so that no connection's events wait behind the
// requests that others send.
var shared struct {
	sync.Mutex
	*dispatcher
}

// useDispatcher returns the dispatcher, whose user the caller is until release.
func useDispatcher() (*dispatcher, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.dispatcher == nil || shared.failure() != nil {
		d, err := newDispatcher()
		if err != nil {
			return nil, err
		}
		shared.dispatcher = d // one that has failed is left to its users
	}
	shared.users++
	return shared.dispatcher, nil
}

// ownDispatcher returns a dispatcher that nobody else finds, whose user the
// caller is until release.
func ownDispatcher() (*dispatcher, error) {
	d, err := newDispatcher()
	if err == nil {
		d.acquire()
	}
	return d, err
}

// newDispatchedID makes an id on the channel of a dispatcher, which use returns.
// The caller is a user of the dispatcher then.
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
	ch, err := newEventChannel()
	if err != nil {
		return nil, err
	}
	// Unlisted, because it is nobody's to close.
	ch.object.InitUnlisted(ch.name())
	ch.dispatched = true
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

// release gives up one use; the last one closes the channel, whose ids must be
// closed. It must not be called from a handler.
func (d *dispatcher) release() error {
	if !d.leave() {
		return nil
	}
	// Nobody finds it any more.
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
		case !mayPass(err): // the channel is of no use any more
			d.failAll(err)
			return
		default: // C reads the same event again then
			delay = min(max(2*delay, shortestPause), longestPause)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
		}
	}
}

// shortestPause and longestPause bound how long to wait before events are read again
// after an error that may pass.
const shortestPause, longestPause = time.Millisecond, time.Second

// mayPass reports whether reading events may succeed later: what the system
// lacks may come back.
func mayPass(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE,
	}, func(target error) bool { return errors.Is(err, target) })
}

// dispatch hands an event to the handler of its id, or of the id that listens.
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
	case ev.Type == EventConnectRequest: // the listener has just closed
		d.drop(ev.ID)
	}
}

// keep calls adopt for a request if there is room for it, with another use of the
// dispatcher, and drops the request otherwise; its peer may try again. Both functions
// are called with mu held.
func (d *dispatcher) keep(id *ID, mu sync.Locker, hasRoom func() bool, adopt func()) {
	mu.Lock()
	room := hasRoom()
	if room {
		d.acquire() // before anybody can give up what keeps the dispatcher now
		adopt()
	}
	mu.Unlock()
	if !room {
		d.drop(id)
	}
}

// drop refuses a request that nobody wants. The kernel may take its time for
// that, so the events of others do not wait for it.
func (d *dispatcher) drop(id *ID) {
	d.refusals.add(id.refuse)
}

func (d *dispatcher) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// failAll tells every id that no events will come any more.
func (d *dispatcher) failAll(err error) {
	d.mu.Lock()
	d.failed = err
	handlers := maps.Clone(d.handlers)
	d.mu.Unlock()
	for id, handler := range handlers {
		handler(failedEvent(id, err))
	}
}

// failedEvent stands for the events that an id will not get.
func failedEvent(id *ID, err error) *Event {
	status := -int(syscall.EIO)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		status = -int(errno)
	}
	return &Event{ID: id, Type: EventConnectError, Status: status}
}

// handle makes f the handler of an id's events. All handlers run one after the
// other on one goroutine, so none may wait for anything, or call C.
func (d *dispatcher) handle(id *ID, f func(*Event)) {
	d.mu.Lock()
	d.handlers[id] = f
	failed := d.failed
	d.mu.Unlock()
	if failed != nil {
		f(failedEvent(id, failed))
	}
}

// move makes another dispatcher, which use returns, hand out an id's events to f,
// which may be nil. The id's owner is a user of that one then, and not of d.
func (d *dispatcher) move(id *ID, use func() (*dispatcher, error), f func(*dispatcher, *Event)) (*dispatcher, error) {
	to, err := use()
	if err != nil {
		return nil, err
	}
	if to == d { // the id's own Listen was called, which moves nothing
		return d, d.release()
	}
	if f != nil {
		to.handle(id, func(ev *Event) { f(to, ev) })
	}
	resume := to.channel.pause()
	err = id.migrate(to.channel)
	resume()
	if err != nil {
		to.forget(id)
		return nil, errors.Join(err, to.release())
	}
	d.forget(id)
	return to, d.release()
}

// forget removes the handler of an id, which may still be running.
func (d *dispatcher) forget(id *ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handlers, id)
}

// queue calls functions in the order in which they come, on goroutines that
// exist only while there are any. The zero value is ready.
type queue struct {
	atOnce int // how many functions may run at once; 0 stands for 1

	mu      sync.Mutex // guards what follows
	waiting []func()
	workers int

	working sync.WaitGroup
}

// background is for calls of C that nobody waits for, such as those that end
// connections. The kernel may hold some of them up, so there are several at
// once; each holds a thread, so there are few.
var background = queue{atOnce: 4}

// partings give back the ids of connections that have ended. Destroying one may
// take the kernel long, so that nothing else stands behind it.
var partings = queue{atOnce: 4}

// add puts a function at the end of the queue. It does not wait.
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

// wait returns when all has been done. Nobody may add anything meanwhile.
func (q *queue) wait() { q.working.Wait() }
