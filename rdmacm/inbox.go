package rdmacm

import (
	"context"
	"slices"
	"sync"
)

// inbox keeps what comes for an endpoint until somebody takes it. It is
// unbounded, but for connection requests: the dispatcher must not wait. An
// id has few events.
type inbox struct {
	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, whenever something below changes
	calls    []*call       // in the order in which they have begun
	events   []*Event      // that no call has asked for
	requests []*Endpoint   // that nobody has taken
	ended    error         // why waiting is of no use any more
	failed   error         // why no events come any more; those that have come count
}

// call is a call that waits for the event that answers it, or did.
type call struct {
	answers   func(*Event) bool
	event     *Event
	abandoned bool
}

// anyOf answers a call with the first event of these types.
func anyOf(types ...EventType) func(*Event) bool {
	return func(ev *Event) bool { return slices.Contains(types, ev.Type) }
}

// expect begins a call, before what it waits for is started. C answers calls of
// one kind in the order in which they were made.
func (in *inbox) expect(answers func(*Event) bool) *call {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := &call{answers: answers}
	in.calls = append(in.calls, c)
	return c
}

// cancel ends a call that will not be answered.
func (in *inbox) cancel(c *call) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.remove(c)
}

func (in *inbox) remove(c *call) {
	in.calls = slices.DeleteFunc(in.calls, func(other *call) bool { return other == c })
}

// put hands an event out, or keeps it.
func (in *inbox) put(ev *Event) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.answer(ev) {
		in.events = append(in.events, ev)
	}
	in.notify()
}

// answer gives an event to the call that it answers, and reports whether it
// has. The end of a connection answers all that can be waiting for it, and an
// event after which none follow every call.
func (in *inbox) answer(ev *Event) (taken bool) {
	last := ev.Type == EventDeviceRemoval || ev.Type == EventConnectError
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
		if !last && ev.Type != EventDisconnected {
			break
		}
	}
	return taken && ev.Type != EventDeviceRemoval // which concerns more than the call
}

func (in *inbox) notify() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// await waits for the event that answers a call. If ctx ends before, the event
// goes where those go that nobody has asked for.
func (in *inbox) await(ctx context.Context, c *call) (*Event, error) {
	err := in.wait(ctx, func() bool { return c.event != nil })
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.event != nil {
		return c.event, nil
	}
	c.abandoned = true
	return nil, err
}

// next waits for an event that no call has asked for.
func (in *inbox) next(ctx context.Context) (ev *Event, err error) {
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

// wait waits until done, which is called with mu held, returns true. What has
// come wins over an end that came with it, but not over the endpoint's.
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
			return contextError(ctx)
		}
		changed := in.changed
		in.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// hasRoom reports whether another connection request may come, of up to limit. The
// caller holds mu.
func (in *inbox) hasRoom(limit int) bool { return in.ended == nil && len(in.requests) < limit }

// add keeps a connection request. The caller holds mu.
func (in *inbox) add(request *Endpoint) {
	in.requests = append(in.requests, request)
	in.notify()
}

// end makes every wait end with the error, and returns what nobody has taken.
// Of several ends the first one counts.
func (in *inbox) end(err error) ([]*Event, []*Endpoint) {
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

// err returns nil, or why waiting is of no use.
func (in *inbox) err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.ended
}
