package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Handler is called with each event of an id, as the kernel calls its own
// handlers. If it returns an error, the id is closed then.
//
// It may wait, and do with the id what it likes but close it. A panic in it is
// the program's.
type Handler func(id *HandledID, ev *Event) error

// HandledID is an id with a function that handles its events, instead of an
// event channel that somebody reads. The events of one id are handled in order
// and one at a time; a handler that takes long delays only its own id. There is
// a goroutine only while there are events to handle.
//
// A request that comes to an id that listens is a HandledID itself. It has the
// listening id's handler, until it is given its own, and Value. Its first event
// is EventConnectRequest. Like every HandledID, it is there until its handler
// returns an error or somebody calls Close or Shutdown.
//
// Its methods may be called concurrently.
type HandledID struct {
	id       *ID
	listener *HandledID    // of a request
	keep     object.Object // a child of the id's, so that nobody else closes that
	done     chan struct{}

	// closing is held by who closes the id, and by who begins to run the
	// handler. It is taken before mu, and guards what follows.
	closing    sync.Mutex
	dispatcher *dispatcher
	qp         *ibverbs.QP // from CreateQP
	closed     bool

	mu       sync.Mutex // guards what follows
	handler  Handler
	events   []*Event
	working  bool          // there is a goroutine for them
	running  chan struct{} // while the handler runs; closed when it returns
	stopping int           // how many wait to close the id: no handler begins
	cause    error         // why the id is over: no handler begins any more
	backlog  int
	requests int // whose first event is not handled yet
}

// NewHandledID makes an id whose events go to the handler.
func NewHandledID(ps PortSpace, handler Handler) (*HandledID, error) {
	if handler == nil {
		return nil, cerr.Nil("NewHandledID", "handler")
	}
	d, id, err := newDispatchedID(ps, useDispatcher)
	if err != nil {
		return nil, err
	}
	return handleID(d, id, handler), nil
}

// handleID makes a HandledID, to which the id and one use of the dispatcher
// belong then.
func handleID(d *dispatcher, id *ID, handler Handler) *HandledID {
	h := &HandledID{
		id: id, dispatcher: d, handler: handler, backlog: defaultBacklog, done: make(chan struct{}),
	}
	h.keep.InitUnlisted("the HandledID, which has a Close of its own", &id.object)
	d.handle(id, func(ev *Event) { h.dispatch(d, ev) })
	return h
}

// made returns an error for what NewHandledID has not made.
func (h *HandledID) made() error {
	if h == nil || h.id == nil {
		return notMade("HandledID")
	}
	return nil
}

// ID returns the id, for everything but Close, Migrate and Endpoint, which it
// refuses.
func (h *HandledID) ID() *ID {
	if h == nil {
		return nil
	}
	return h.id
}

// SetHandler gives the id another handler, from its next event on.
func (h *HandledID) SetHandler(handler Handler) error {
	if err := h.made(); err != nil {
		return err
	}
	if handler == nil {
		return cerr.Nil("HandledID.SetHandler", "handler")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler = handler
	return nil
}

// Listen makes the id wait for requests to connect; see rdma_listen(3). Up to
// backlog of them may be waiting for the handler, or be in its hands with
// EventConnectRequest, 128 for 0; further ones are rejected.
func (h *HandledID) Listen(backlog int) error {
	if err := h.made(); err != nil {
		return err
	}
	backlog = backlogOf(backlog)
	h.mu.Lock()
	h.backlog = backlog
	h.mu.Unlock()
	if h.id.backlog.Load() == 0 { // requests come with the channel's other events
		if err := h.move(ownDispatcher); err != nil {
			return err
		}
	}
	return h.id.listen(backlog, unread)
}

// move makes another dispatcher hand out the id's events.
func (h *HandledID) move(use func() (*dispatcher, error)) error {
	h.closing.Lock()
	defer h.closing.Unlock()
	d, err := h.dispatcher.move(h.id, use, h.dispatch)
	if d != nil {
		h.dispatcher = d
	}
	return err
}

// CreateQP makes a queue pair as ID.CreateQP does, which is closed with the id
// if not before.
func (h *HandledID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	if err := h.made(); err != nil {
		return nil, err
	}
	h.closing.Lock()
	defer h.closing.Unlock()
	qp, err := h.id.CreateQP(pd, config)
	if err == nil {
		h.qp = qp
	}
	return qp, err
}

// Done returns a channel that is closed when the id is over: when it is closed,
// or its handler has returned an error.
func (h *HandledID) Done() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.done
}

// Err returns nil while the id is in use, and then why it is over: the error
// that its handler has returned, or one that is os.ErrClosed.
func (h *HandledID) Err() error {
	if err := h.made(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// dispatch takes an event of the id. It is called by a dispatcher, and so waits
// for nothing.
func (h *HandledID) dispatch(d *dispatcher, ev *Event) {
	if ev.Type != EventConnectRequest {
		h.add(ev)
		return
	}
	d.keep(ev.ID, &h.mu, func() bool { return h.cause == nil && h.requests < h.backlog }, func() {
		h.requests++
		ev.ID.SetValue(h.id.Value())
		request := handleID(d, ev.ID, h.handler)
		request.listener = h
		request.add(ev)
	})
}

// add has an event handled.
func (h *HandledID) add(ev *Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
	h.work()
}

// work sees to it that somebody handles the events. The caller holds mu.
func (h *HandledID) work() {
	if !h.working {
		h.working = true
		go h.handleAll()
	}
}

func (h *HandledID) handleAll() {
	for {
		handler, ev := h.begin()
		if ev == nil {
			return
		}
		if ev.Type != EventConnectRequest {
			h.finish(handler(h, ev))
			continue
		}
		err := h.move(useDispatcher) // away from the listener's, where more requests come
		if err == nil {
			err = handler(h, ev)
		}
		h.listener.handled()
		h.finish(err)
	}
}

// begin returns what to run next, if there is an event and its handler may run.
func (h *HandledID) begin() (Handler, *Event) {
	h.closing.Lock()
	defer h.closing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil {
		h.events = nil
	}
	if len(h.events) == 0 || h.stopping > 0 {
		h.working = false
		return nil, nil
	}
	ev := h.events[0]
	h.events[0] = nil
	h.events = h.events[1:]
	h.running = make(chan struct{})
	return h.handler, ev
}

// finish notes that the handler has returned, and closes the id after an error.
func (h *HandledID) finish(err error) {
	h.mu.Lock()
	if h.cause == nil {
		h.cause = err
	}
	close(h.running)
	h.running = nil
	h.mu.Unlock()
	if err != nil {
		h.end()
	}
}

// handled notes that a request's first event was handled.
func (h *HandledID) handled() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests--
}

// Close closes the id, with the queue pair that CreateQP has made; a connection
// ends with it, and a request that nobody has answered is rejected. Events that
// have not been handled are dropped. The peer is told of the end once, and hears
// nothing if that message is lost; ID().Disconnect tells it again until
// EventDisconnected comes.
//
// While a handler of the id runs, Close does nothing and returns an error that
// is syscall.EBUSY, from anywhere: a handler ends its id by returning an error,
// and others wait with Shutdown.
func (h *HandledID) Close() error {
	if err := h.made(); err != nil {
		return err
	}
	h.closing.Lock()
	defer h.closing.Unlock()
	h.mu.Lock()
	isRunning := h.running != nil
	h.mu.Unlock()
	if isRunning {
		return cerr.Argument("HandledID.Close", h.id.object.Name(),
			cerr.InvalidAs(syscall.EBUSY, "the handler is running; return an error from that, or wait with Shutdown"))
	}
	return h.destroy()
}

// Shutdown is Close that waits for the handler if it is running, and lets it
// begin no more. A handler must not wait for its own end with it. It returns an
// error that is ctx.Err() when ctx ends; the id is as it was then.
func (h *HandledID) Shutdown(ctx context.Context) error {
	if err := h.made(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("HandledID.Shutdown", "ctx")
	}
	running := h.stop()
	defer h.resume()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
	return h.Close()
}

// stop keeps the handler from beginning, and returns what a running one closes.
func (h *HandledID) stop() (running <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping++
	return h.running
}

func (h *HandledID) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping--; h.stopping == 0 && len(h.events) > 0 {
		h.work()
	}
}

// end closes the id after its handler has returned an error.
func (h *HandledID) end() {
	h.closing.Lock()
	defer h.closing.Unlock()
	if err := h.destroy(); err != nil {
		h.mu.Lock()
		h.cause = errors.Join(h.cause, err)
		h.mu.Unlock()
		h.sayDone()
	}
}

// destroy closes what the id has and the id. After an error it can be called
// again. The caller holds closing.
func (h *HandledID) destroy() error {
	if h.closed {
		return nil
	}
	if h.qp != nil {
		if err := h.qp.Close(); err != nil {
			return err
		}
	}
	h.keep.RemoveParent(&h.id.object)
	if err := h.id.Close(); err != nil {
		h.keep.AddParent(&h.id.object)
		return err
	}
	h.closed = true
	h.mu.Lock()
	if h.cause == nil {
		h.cause = fmt.Errorf("%s: %w", h.id.object.Name(), os.ErrClosed)
	}
	h.mu.Unlock()
	h.dispatcher.forget(h.id)
	err := h.dispatcher.release()
	h.sayDone()
	return err
}

// sayDone closes done, once. The caller holds closing.
func (h *HandledID) sayDone() {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
}
