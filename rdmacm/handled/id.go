// SPDX-License-Identifier: Apache-2.0

package handled

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rdmacm"
)

// A Handler handles an event of an ID. If it returns an error, the ID is
// closed.
//
// A Handler runs in a goroutine of its own. It may block and may call all
// methods of its own ID but two: Close returns an error matching syscall.EBUSY,
// and Shutdown waits for the Handler until its context ends. A panic in a
// Handler is not recovered.
type Handler func(id *ID, ev *rdmacm.Event) error

// An ID is an rdmacm.ID whose events go to a handler function instead of an
// event channel. It passes the handler one event at a time, in order; a slow
// handler delays only its own ID. A goroutine exists only while there are
// events to handle.
//
// Each connection request to a listening ID has a new ID. The new ID inherits
// the listening ID's Value and its handler, which SetHandler can replace. Its
// first event is EventConnectRequest. Like every ID, it exists until its
// handler returns an error or the program calls Close or Shutdown.
//
// Its methods may be called concurrently.
type ID struct {
	id       *rdmacm.ID
	listener *ID           // listening ID that got the request; nil if the program created the ID
	keep     object.Object // a child of the rdmacm.ID, so that the program cannot close the rdmacm.ID
	done     chan struct{} // closed when the ID has ended

	// closing is held while the ID is closed and while the handler is
	// started. It is taken before mu and guards the fields below.
	closing sync.Mutex
	qp      *ibverbs.QP // queue pair from CreateQP, or nil
	closed  bool

	mu       sync.Mutex // guards the fields below
	handler  Handler
	events   []*rdmacm.Event
	working  bool          // whether a goroutine handles the events
	running  chan struct{} // closed when the running handler returns; nil while none runs
	stopping int           // number of calls of Shutdown that wait; no handler starts while it is not 0
	cause    error         // reason why the ID ended, or nil; once it is set, no handler starts
	requests int           // number of IDs of requests whose first event has not been handled
}

// New creates an ID and passes its events to the handler.
func New(ps rdmacm.PortSpace, handler Handler) (*ID, error) {
	if handler == nil {
		return nil, cerr.Nil("handled.New", "handler")
	}
	id := new(rdmacm.ID)
	if err := sealed.Open(id.Internals()).Init(ps); err != nil {
		return nil, err
	}
	return newID(id, handler), nil
}

// newID returns an ID that passes the events of the rdmacm.ID to the handler.
func newID(id *rdmacm.ID, handler Handler) *ID {
	h := unstarted(id, handler)
	sealed.Open(id.Internals()).Start(sink{h})
	return h
}

// unstarted returns an ID that gets no events yet.
func unstarted(id *rdmacm.ID, handler Handler) *ID {
	h := &ID{id: id, handler: handler, done: make(chan struct{})}
	h.keep.InitUnlisted("its handled.ID, whose Close must be used", h.object())
	return h
}

// sink takes the events of an ID from package rdmacm.
type sink struct{ h *ID }

func (s sink) Put(ev *rdmacm.Event) { s.h.add(ev) }

func (s sink) Lock() { s.h.mu.Lock() }

func (s sink) Unlock() { s.h.mu.Unlock() }

func (s sink) HasRoom(backlog int) bool { return s.h.cause == nil && s.h.requests < backlog }

func (s sink) Adopt(id *rdmacm.ID, ev *rdmacm.Event) {
	s.h.requests++
	id.SetValue(s.h.id.Value())
	request := newID(id, s.h.handler)
	request.listener = s.h
	request.add(ev)
}

// object returns the object.Object that manages the lifetime of the underlying
// rdmacm.ID.
func (h *ID) object() *object.Object { return sealed.Open(h.id.Internals()).Object() }

// made returns an error if h is nil or was not created by this package.
func (h *ID) made() error {
	if h == nil || h.id == nil {
		return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the handled.ID is nil, or was not made by handled.New"))
	}
	return nil
}

// ID returns the underlying ID. Its Close and Migrate fail.
func (h *ID) ID() *rdmacm.ID {
	if h == nil {
		return nil
	}
	return h.id
}

// SetHandler replaces the handler, starting with the next event.
func (h *ID) SetHandler(handler Handler) error {
	if err := h.made(); err != nil {
		return err
	}
	if handler == nil {
		return cerr.Nil("handled.ID.SetHandler", "handler")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler = handler
	return nil
}

// Listen starts listening for connection requests; see rdma_listen(3). backlog
// is the maximum number of requests whose EventConnectRequest the handler has
// not handled yet, up to 65536; 0 means the system's net.core.somaxconn.
// Further requests are rejected, and tried again by rdmacm.Dial; see
// rdmacm.ErrBacklogFull.
func (h *ID) Listen(backlog int) error {
	if err := h.made(); err != nil {
		return err
	}
	id := sealed.Open(h.id.Internals())
	if !id.IsListening() { // requests would share the channel with other events
		if err := h.move(id.Own); err != nil {
			return err
		}
	}
	return id.Listen(backlog)
}

// move calls f with closing held. f makes another dispatcher read the ID's
// events.
func (h *ID) move(f func() error) error {
	h.closing.Lock()
	defer h.closing.Unlock()
	return f()
}

// CreateQP creates a queue pair like rdmacm.ID.CreateQP. Closing the ID closes
// the queue pair if the caller has not.
func (h *ID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
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
func (h *ID) Done() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.done
}

// Err returns nil while the ID is in use. Afterwards it returns the handler's
// error, or an error matching os.ErrClosed.
func (h *ID) Err() error {
	if err := h.made(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// add queues an event for the handler.
func (h *ID) add(ev *rdmacm.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
	h.work()
}

// work starts a goroutine to handle the events if there is none. The caller
// must hold mu.
func (h *ID) work() {
	if !h.working {
		h.working = true
		go h.handleAll()
	}
}

func (h *ID) handleAll() {
	for {
		handler, ev := h.begin()
		if ev == nil {
			return
		}
		if ev.Type != rdmacm.EventConnectRequest {
			h.finish(handler(h, ev))
			continue
		}
		err := h.move(sealed.Open(h.id.Internals()).Share) // moves the ID off the listener's dispatcher, which reads further requests
		if err == nil {
			err = handler(h, ev)
		}
		h.listener.handled()
		h.finish(err)
	}
}

// begin returns the next event and the handler to call. The event is nil if
// there is none or if no handler may start.
func (h *ID) begin() (Handler, *rdmacm.Event) {
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
func (h *ID) finish(err error) {
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

// handled records that the first event of a request's ID was handled. h is the
// listening ID.
func (h *ID) handled() {
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
// matching syscall.EBUSY. A handler ends its ID by returning an error; other
// callers use Shutdown.
func (h *ID) Close() error {
	if err := h.made(); err != nil {
		return err
	}
	h.closing.Lock()
	defer h.closing.Unlock()
	h.mu.Lock()
	isRunning := h.running != nil
	h.mu.Unlock()
	if isRunning {
		return cerr.Argument("handled.ID.Close", h.object().Name(),
			cerr.InvalidAs(syscall.EBUSY, "the handler is running: return an error from the handler, or call Shutdown, which waits for it"))
	}
	return h.destroy()
}

// Shutdown waits for a running handler to return, prevents further calls of it,
// and closes the ID like Close. A handler must not call Shutdown for its own
// ID. If ctx ends first, the error matches ctx.Err(), and the ID stays as it
// was.
func (h *ID) Shutdown(ctx context.Context) error {
	if err := h.made(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("handled.ID.Shutdown", "ctx")
	}
	running := h.stop()
	defer h.resume()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return netpoll.ContextError(ctx)
		}
	}
	return h.Close()
}

// stop prevents the handler from being called. It returns a channel that is
// closed when a running handler returns, or nil if none runs.
func (h *ID) stop() (running <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping++
	return h.running
}

func (h *ID) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping--; h.stopping == 0 && len(h.events) > 0 {
		h.work()
	}
}

// end closes the ID after its handler has returned an error.
func (h *ID) end() {
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
func (h *ID) destroy() error {
	if h.closed {
		return nil
	}
	if h.qp != nil {
		if err := h.qp.Close(); err != nil {
			return err
		}
	}
	h.keep.RemoveParent(h.object())
	if err := h.id.Close(); err != nil {
		h.keep.AddParent(h.object())
		return err
	}
	h.closed = true
	h.mu.Lock()
	if h.cause == nil {
		h.cause = fmt.Errorf("%s: %w", h.object().Name(), os.ErrClosed)
	}
	h.mu.Unlock()
	err := sealed.Open(h.id.Internals()).Release()
	h.sayDone()
	return err
}

// sayDone closes done unless it is already closed. The caller must hold
// closing.
func (h *ID) sayDone() {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
}
