package rdmacm

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Endpoint is an id whose calls wait for what they start: the synchronous way
// to work with rdma_cm(7). No wait holds a thread in C, and its context ends
// it. What was started then goes on: its event comes from Next, unless the
// endpoint is closed. Methods may be called from any goroutine.
//
// Options, and what else does not wait, are methods of its ID. That the id's
// asynchronous calls work too, with events that come from Next, is seldom of
// use.
type Endpoint struct {
	id         *ID
	dispatcher *dispatcher
	inbox      inbox

	// Of an endpoint from CreateEndpoint that listens, what its requests get.
	requestPD *ibverbs.PD
	requestQP *ibverbs.QPConfig

	// mu is held while what the endpoint has is made or closed. It is taken
	// before id.mu, and never by the handler of its events.
	mu         sync.Mutex
	connect    []byte      // of an AddrInfo, to be put before private data
	pd         *ibverbs.PD // its own or the caller's
	moved      bool        // by Migrate
	unanswered []*Endpoint // requests that Close has found
	closer     closer
	leaving    closer
	owned
}

// errEndpointClosed is what calls that wait get from Close.
var errEndpointClosed = fmt.Errorf("endpoint: %w", os.ErrClosed)

// NewEndpoint makes an endpoint; see rdma_create_id(3). CreateEndpoint does
// more of what has to follow.
func NewEndpoint(ps PortSpace) (*Endpoint, error) {
	d, id, err := newDispatchedID(ps, useDispatcher)
	if err != nil {
		return nil, err
	}
	return newEndpoint(d, id), nil
}

// newEndpoint makes the endpoint of an id on the dispatcher's channel, or that
// is about to come there. It becomes the endpoint's, and so does one use of
// the dispatcher.
func newEndpoint(d *dispatcher, id *ID) *Endpoint {
	id.endpoint.Store(true)
	ep := &Endpoint{id: id, dispatcher: d}
	ep.inbox.changed = make(chan struct{})
	d.handle(id, func(ev *Event) { ep.handle(d, ev) })
	return ep
}

// move makes another dispatcher hand out the id's events.
func (ep *Endpoint) move(use func() (*dispatcher, error)) error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // meanwhile
		return err
	}
	d, err := ep.dispatcher.move(ep.id, use, ep.handle)
	if d != nil {
		ep.dispatcher = d
	}
	return err
}

// leave ends the endpoint's use of the dispatcher.
func (ep *Endpoint) leave() error {
	return ep.leaving.do(func() error {
		ep.dispatcher.forget(ep.id)
		ep.id.endpoint.Store(false)
		return ep.dispatcher.release()
	})
}

// usable returns nil, or why the endpoint cannot wait for anything.
func (ep *Endpoint) usable() error {
	id := ep.ID()
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	return ep.inbox.err()
}

// ID returns the endpoint's id, for the calls that do not wait.
func (ep *Endpoint) ID() *ID {
	if ep == nil {
		return nil
	}
	return ep.id
}

// Close ends the connection and closes what the endpoint has: its id, and the
// queues, the memory regions and the protection domain that it has made. A
// request that nobody has answered is rejected. Calls that wait end with an
// error that is os.ErrClosed. See rdma_destroy_ep(3). The peer is told of the end
// once, and hears nothing if that message is lost; Disconnect tells it until it
// answers.
//
// While something else that the caller has made needs one of them, Close
// returns a BusyError, and can be called again. After Migrate the id is left
// alone.
func (ep *Endpoint) Close() error {
	if ep.ID() == nil {
		return ep.ID().self().Use()
	}
	_, requests := ep.inbox.end(errEndpointClosed)
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.unanswered = append(ep.unanswered, requests...)
	return ep.closer.do(ep.release)
}

// release closes what the endpoint has, in the order that C needs. After an
// error it can be called again.
func (ep *Endpoint) release() error {
	for len(ep.unanswered) > 0 {
		if err := ep.unanswered[0].Close(); err != nil {
			return err
		}
		ep.unanswered = ep.unanswered[1:]
	}
	if !ep.moved && ep.id.wasUp() {
		_ = ep.id.Disconnect() // it may be over already
	}
	if err := ep.closeQueues(); err != nil {
		return err
	}
	if err := ep.closeRegions(); err != nil {
		return err
	}
	if !ep.moved {
		if err := ep.id.Close(); err != nil {
			return err
		}
	}
	if err := ep.closePD(); err != nil {
		return err
	}
	return ep.leave()
}

// Next waits for an event that no call has asked for, such as EventDisconnected
// when the peer has ended the connection, EventTimewaitExit, EventAddrChange,
// EventDeviceRemoval or EventUser.
func (ep *Endpoint) Next(ctx context.Context) (*Event, error) {
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil("Endpoint.Next", "ctx")
	}
	ev, err := ep.inbox.next(ctx)
	if err != nil {
		return nil, ep.failure("next event", err)
	}
	return ev, nil
}
