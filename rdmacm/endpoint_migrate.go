package rdmacm

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// errMigrated is what an endpoint answers after Migrate.
var errMigrated = cerr.Refuse("Endpoint", "", "the endpoint was migrated: use the ID that Migrate has returned")

// Endpoint makes the id synchronous; see rdma_migrate_id(3), whose channel is
// NULL for this. Events that nobody has read move with it. The id stays what
// it is, and is closed with the endpoint. A queue pair that CreateQP has made
// for it is used, but remains the caller's to close, before the endpoint.
func (id *ID) Endpoint() (*Endpoint, error) {
	if err := id.checkOwnEvents(); err != nil {
		return nil, err
	}
	if id.endpoint.Swap(true) {
		return nil, cerr.Refuse("rdma_migrate_id", id.name(), "the id has an endpoint already")
	}
	use := useDispatcher
	if id.backlog.Load() != 0 {
		use = ownDispatcher
	}
	d, err := use()
	if err != nil {
		id.endpoint.Store(false)
		return nil, err
	}
	ep := newEndpoint(d, id) // which knows the id before its first event
	resume := d.channel.pause()
	defer resume()
	if err := id.migrate(d.channel); err != nil {
		d.forget(id)
		id.endpoint.Store(false)
		return nil, errors.Join(err, d.release())
	}
	return ep, nil
}

// Migrate makes the endpoint's id asynchronous, with its events on a channel;
// see rdma_migrate_id(3). Those that nobody has taken move with it, and so do
// connection requests. Calls that wait end with an error, as do further ones.
//
// What the endpoint has made, such as its queue pair, remains its own: it can
// still be used, and is closed with the endpoint, which must come before the
// id's Close.
func (ep *Endpoint) Migrate(to *EventChannel) (*ID, error) {
	if err := ep.usable(); err != nil {
		return nil, err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // meanwhile
		return nil, err
	}
	if err := to.self().Use(); err != nil {
		return nil, fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.pause()()
	if err := ep.id.migrate(to); err != nil {
		return nil, err
	}
	ep.moved = true
	ep.settle()
	events, requests := ep.inbox.end(errMigrated)
	for _, request := range requests {
		events = append(events, request.id.request)
	}
	ep.id.bring(to, events)
	var err error
	for _, request := range requests {
		request.inbox.end(errMigrated)
		err = errors.Join(err, request.leave())
	}
	return ep.id, errors.Join(err, ep.leave())
}

// settle returns when the dispatcher has handed out every event of the id that
// it had read from its channel before the id left that.
func (ep *Endpoint) settle() {
	const none = ^EventType(0) // which no other call waits for
	last := &Event{ID: ep.id, Type: none}
	done := ep.inbox.expect(func(ev *Event) bool { return ev == last })
	ch := ep.dispatcher.channel
	ch.mu.Lock()
	ch.ahead = append(ch.ahead, last)
	ch.mu.Unlock()
	ch.fd.Kick()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		select {
		case <-ep.dispatcher.done: // it has failed
			stop()
		case <-ctx.Done():
		}
	}()
	_, _ = ep.inbox.await(ctx, done)
}
