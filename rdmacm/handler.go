package rdmacm

import (
	"sync"

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
