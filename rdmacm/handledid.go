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

// A Handler handles an event of an ID. If it returns an error, the ID is
// closed.
//
// A Handler may block, and may call any method of the ID except Close and
// Shutdown. A panic in a Handler is not recovered.
type Handler func(id *HandledID, ev *Event) error

// A HandledID is an ID whose events go to a handler function instead of an
// event channel. It passes the handler one event at a time, in order; a slow
// handler delays only its own ID. A goroutine exists only while there are
// events to handle.
//
// Each connection request to a listening HandledID is a new HandledID. It
// inherits the listening ID's Value and its handler, which SetHandler can
// replace. Its first event is EventConnectRequest. Like every HandledID, it
// exists until its handler returns an error or somebody calls Close or
// Shutdown.
//
// Its methods may be called concurrently.
type HandledID struct {
	id       *ID
	listener *HandledID    // of a request
	keep     object.Object // a child of the ID, so that nobody else closes the ID
	done     chan struct{}

	// closing is held while closing the ID and while starting the handler. It is
	// taken before mu and guards the fields below.
	closing    sync.Mutex
	dispatcher *dispatcher
	qp         *ibverbs.QP // from CreateQP
	closed     bool

	mu       sync.Mutex // guards the fields below
	handler  Handler
	events   []*Event
	working  bool          // a goroutine handles the events
	running  chan struct{} // set while the handler runs; closed when it returns
	stopping int           // number of goroutines waiting to close the ID: no handler starts
	cause    error         // why the ID ended: no handler starts anymore
	backlog  int
	requests int // number of requests whose first event has not been handled
}

// NewHandledID creates an ID and passes its events to the handler.
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

// handleID creates a HandledID. It takes over the ID and one use of the
// dispatcher.
func handleID(d *dispatcher, id *ID, handler Handler) *HandledID {
	h := &HandledID{
		id: id, dispatcher: d, handler: handler, backlog: defaultBacklog, done: make(chan struct{}),
	}
	h.keep.InitUnlisted("the HandledID, which has a Close of its own", &id.object)
	d.handle(id, func(ev *Event) { h.dispatch(d, ev) })
	return h
}

// made returns an error if h was not created by NewHandledID.
func (h *HandledID) made() error {
	if h == nil || h.id == nil {
		return notMade("HandledID")
	}
	return nil
}

// ID returns the underlying ID. Its Close, Migrate and Endpoint methods fail.
func (h *HandledID) ID() *ID {
	if h == nil {
		return nil
	}
	return h.id
}

// SetHandler replaces the handler, starting with the next event.
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

// Listen listens for connection requests; see rdma_listen(3). At most backlog
// requests, or 128 if backlog is 0, may wait for the handler or be in its hands
// with EventConnectRequest. Further ones are rejected.
func (h *HandledID) Listen(backlog int) error {
	if err := h.made(); err != nil {
		return err
	}
	backlog = backlogOf(backlog)
	h.mu.Lock()
	h.backlog = backlog
	h.mu.Unlock()
	if h.id.backlog.Load() == 0 { // requests would share the channel with other events
		if err := h.move(ownDispatcher); err != nil {
			return err
		}
	}
	return h.id.listen(backlog, unread)
}

// move moves the ID to the dispatcher that use returns.
func (h *HandledID) move(use func() (*dispatcher, error)) error {
	h.closing.Lock()
	defer h.closing.Unlock()
	d, err := h.dispatcher.move(h.id, use, h.dispatch)
	if d != nil {
		h.dispatcher = d
	}
	return err
}

// CreateQP creates a queue pair like ID.CreateQP. Closing the HandledID closes
// the queue pair if the caller has not.
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

// Done returns a channel that is closed when the ID is closed or its handler
// has returned an error.
func (h *HandledID) Done() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.done
}

// Err returns nil while the ID is in use. Afterwards it returns the handler's
// error, or an error matching os.ErrClosed.
func (h *HandledID) Err() error {
	if err := h.made(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// dispatch takes an event of the ID. A dispatcher calls it, so it must not
// block.
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

// add queues an event for the handler.
func (h *HandledID) add(ev *Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
	h.work()
}

// work starts a goroutine to handle the events if there is none. The caller
// must hold mu.
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
		err := h.move(useDispatcher) // away from the listener's, which receives more requests
		if err == nil {
			err = handler(h, ev)
		}
		h.listener.handled()
		h.finish(err)
	}
}

// begin returns the next event and its handler. The event is nil if there is
// none or the handler may not run.
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

// finish records that the handler has returned, and closes the ID after an
// error.
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

// handled records that a request's first event was handled.
func (h *HandledID) handled() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests--
}

// Close closes the ID and the queue pair that CreateQP created. It ends the
// connection, rejects an unanswered request, and drops events that have not
// been handled. The peer is told only once and learns nothing if that message
// is lost; ID().Disconnect repeats the message until EventDisconnected arrives.
//
// While a handler of the ID runs, Close does nothing and returns an error
// matching syscall.EBUSY, whoever calls it. A handler ends its ID by returning
// an error; other callers use Shutdown.
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

// Shutdown waits for a running handler to return, keeps it from starting again,
// and closes the ID like Close. A handler must not call Shutdown for its own
// ID. If ctx ends first, the error matches ctx.Err(), and the ID stays as it
// was.
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

// stop keeps the handler from starting. It returns a channel that a running
// handler closes, or nil.
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

// end closes the ID after its handler has returned an error.
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

// destroy closes the queue pair and the ID. After an error, it can be called
// again. The caller must hold closing.
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

// sayDone closes done unless it is closed. The caller must hold closing.
func (h *HandledID) sayDone() {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
}
