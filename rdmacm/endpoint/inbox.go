// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/rdmacm"
)

// inbox keeps an endpoint's events and connection requests until a call takes
// them. The dispatcher that adds them must not block. Only the number of
// connection requests is limited, because an ID has few events.
type inbox struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever a field below changes
	// calls that wait, or waited, for an event, in the order in which they
	// began
	calls    []*call
	events   []*rdmacm.Event // events that no call has taken
	requests []*Endpoint     // endpoints of requests that no call has taken
	ended    error           // reason why every wait fails, or nil
	failed   error           // reason why no more events come, or nil; earlier events can still be taken
}

// call is a call of the endpoint that waits, or waited, for the event that
// answers it.
type call struct {
	answers   func(*rdmacm.Event) bool // reports whether an event answers the call
	event     *rdmacm.Event            // the answer, once it has come
	abandoned bool                     // whether the caller has stopped waiting
}

// anyOf returns a function that accepts events of the given types.
func anyOf(types ...rdmacm.EventType) func(*rdmacm.Event) bool {
	return func(ev *rdmacm.Event) bool { return slices.Contains(types, ev.Type) }
}

// expect adds a call. Use it before the C call that causes the event. C answers
// calls of one kind in order.
func (in *inbox) expect(answers func(*rdmacm.Event) bool) *call {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := &call{answers: answers}
	in.calls = append(in.calls, c)
	return c
}

// cancel removes a call that will not be answered.
func (in *inbox) cancel(c *call) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.remove(c)
}

func (in *inbox) remove(c *call) {
	in.calls = slices.DeleteFunc(in.calls, func(other *call) bool { return other == c })
}

// put gives an event to the call that it answers, or keeps it.
func (in *inbox) put(ev *rdmacm.Event) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.answer(ev) {
		in.events = append(in.events, ev)
	}
	in.notify()
}

// answer gives an event to the calls that it answers and reports whether it was
// taken. The end of a connection answers all calls waiting for it.
// EventDeviceRemoval and EventConnectError, which no event follows, answer
// every call.
func (in *inbox) answer(ev *rdmacm.Event) (taken bool) {
	last := ev.Type == rdmacm.EventDeviceRemoval || ev.Type == rdmacm.EventConnectError
	if last {
		in.failed = ev.Err()
	}
	for _, c := range slices.Clone(in.calls) {
		if !last && !c.answers(ev) {
			continue
		}
		in.remove(c)
		c.event = ev
		taken = taken || !c.abandoned
		if !last && ev.Type != rdmacm.EventDisconnected {
			break
		}
	}
	return taken && ev.Type != rdmacm.EventDeviceRemoval // EventDeviceRemoval concerns more than the call, so it is also kept
}

func (in *inbox) notify() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// await waits for the event that answers a call. If ctx ends before the event
// comes, the method next can return the event later.
func (in *inbox) await(ctx context.Context, c *call) (*rdmacm.Event, error) {
	err := in.wait(ctx, func() bool { return c.event != nil })
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.event != nil {
		return c.event, nil
	}
	c.abandoned = true
	return nil, err
}

// next waits for an event that answers no waiting call.
func (in *inbox) next(ctx context.Context) (ev *rdmacm.Event, err error) {
	err = in.wait(ctx, func() bool {
		if len(in.events) > 0 {
			ev, in.events = in.events[0], in.events[1:]
		}
		return ev != nil
	})
	return ev, err
}

// nextRequest waits for a connection request.
func (in *inbox) nextRequest(ctx context.Context) (request *Endpoint, err error) {
	err = in.wait(ctx, func() bool {
		if len(in.requests) > 0 {
			request, in.requests = in.requests[0], in.requests[1:]
		}
		return request != nil
	})
	return request, err
}

// wait blocks until done returns true; it calls done with mu held. Events
// already received take precedence over a failure, but not over the end of the
// endpoint.
func (in *inbox) wait(ctx context.Context, done func() bool) error {
	for {
		in.mu.Lock()
		switch {
		case in.ended != nil:
			defer in.mu.Unlock()
			return in.ended
		case done():
			in.mu.Unlock()
			return nil
		case in.failed != nil:
			defer in.mu.Unlock()
			return in.failed
		case ctx.Err() != nil:
			in.mu.Unlock()
			return netpoll.ContextError(ctx)
		}
		changed := in.changed
		in.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// hasRoom reports whether the inbox has fewer than limit connection requests
// and may store another. The caller holds mu.
func (in *inbox) hasRoom(limit int) bool { return in.ended == nil && len(in.requests) < limit }

// add stores a connection request. The caller holds mu.
func (in *inbox) add(request *Endpoint) {
	in.requests = append(in.requests, request)
	in.notify()
}

// end makes every wait fail with err and returns the events and requests that
// no call has taken. If end is called again, the first err stays.
func (in *inbox) end(err error) ([]*rdmacm.Event, []*Endpoint) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended == nil {
		in.ended = err
		in.notify()
	}
	events, requests := in.events, in.requests
	in.events, in.requests = nil, nil
	return events, requests
}

// err returns the reason why every wait fails, or nil.
func (in *inbox) err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.ended
}
