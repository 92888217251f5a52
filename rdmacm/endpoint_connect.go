package rdmacm

import (
	"context"
	"errors"
	"slices"

	"github.com/verbena-go/verbena/internal/cerr"
)

// handle is the handler of the id's events.
func (ep *Endpoint) handle(d *dispatcher, ev *Event) {
	if ev.Type != EventConnectRequest {
		ep.inbox.put(ev)
		return
	}
	kept := ep.inbox.addRequest(int(ep.id.backlog.Load()), func() *Endpoint {
		// The endpoint has not begun to close, so its own use keeps the dispatcher.
		d.acquire()
		return newEndpoint(d, ev.ID)
	})
	if !kept { // nobody takes it; the peer may try again
		d.drop(ev.ID)
	}
}

// Connect asks the peer for a connection and waits until it is up; see
// rdma_connect(3). The event has what the peer gave. If the endpoint has no
// queue pair, it is EventConnectResponse, and Establish of the id has to
// follow. It fails with a *RejectedError if the peer refuses. An endpoint for
// datagrams asks for the peer's queue pair, which the event has.
func (ep *Endpoint) Connect(ctx context.Context, p ConnParam) (*Event, error) {
	return ep.do(ctx, "rdma_connect", func() error {
		ep.mu.Lock()
		p.PrivateData = slices.Concat(ep.connect, p.PrivateData)
		ep.mu.Unlock()
		return ep.id.Connect(p)
	}, anyOf(EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventDisconnected))
}

// Listen makes the endpoint wait for connection requests, which GetRequest
// takes; see rdma_listen(3). Up to backlog of them wait, 128 for 0, and further
// ones are rejected.
func (ep *Endpoint) Listen(backlog int) error {
	if err := ep.usable(); err != nil {
		return err
	}
	if ep.id.backlog.Load() == 0 { // requests come with the channel's other events
		if err := ep.move(ownDispatcher); err != nil {
			return err
		}
	}
	return ep.id.listen(backlogOf(backlog), unread)
}

// GetRequest waits for a connection request and returns its endpoint, to be
// accepted or rejected, and to be closed; see rdma_get_request(3). If the
// endpoint is from CreateEndpoint with a queue pair, the new one has such a
// queue pair too; if that cannot be made, the request is rejected.
func (ep *Endpoint) GetRequest(ctx context.Context) (*Endpoint, error) {
	const op = "rdma_get_request"
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil(op, "ctx")
	}
	if ep.id.backlog.Load() == 0 {
		return nil, errStep(op, ep.id.name(), "listen")
	}
	request, err := ep.inbox.nextRequest(ctx)
	if err != nil {
		return nil, ep.failure(op, err)
	}
	if err := request.move(useDispatcher); err != nil { // away from where more requests come
		return nil, errors.Join(err, request.Close())
	}
	if ep.requestQP != nil {
		if _, err := request.CreateQP(ep.requestPD, *ep.requestQP); err != nil {
			return nil, errors.Join(err, request.Close())
		}
	}
	return request, nil
}

// Accept answers the connection request that the endpoint is from GetRequest
// for, and waits until the connection is up; see rdma_accept(3). For datagrams
// there is nothing to wait for.
func (ep *Endpoint) Accept(ctx context.Context, p ConnParam) error {
	if err := ep.usable(); err != nil {
		return err
	}
	if ep.id.isDatagram() {
		return ep.id.Accept(p)
	}
	_, err := ep.do(ctx, "rdma_accept", func() error { return ep.id.Accept(p) },
		anyOf(EventEstablished, EventRejected, EventUnreachable, EventDisconnected))
	return err
}

// Disconnect ends the connection and waits until the peer has answered, with
// Disconnect or Close of its own; see rdma_disconnect(3). If the peer has ended
// it before, there is nothing to wait for. A peer that is gone is known to be
// after some time only, so give ctx a deadline.
func (ep *Endpoint) Disconnect(ctx context.Context) error {
	const op = "rdma_disconnect"
	if err := ep.usable(); err != nil {
		return err
	}
	if !ep.id.wasUp() {
		return errStep(op, ep.id.name(), "connect")
	}
	if ep.id.isDatagram() {
		return ep.id.Disconnect() // which has no event
	}
	_, err := ep.do(ctx, op, func() error {
		over := ep.id.isOver() // not before events are waited for: one could come in between
		if err := ep.id.Disconnect(); err != nil {
			return err
		}
		if over {
			return errOver
		}
		return nil
	}, anyOf(EventDisconnected))
	if err == errOver {
		return nil
	}
	if ended, ok := errors.AsType[*EventError](err); ok && ended.Type == EventDisconnected && ended.Status == 0 {
		return nil
	}
	return err
}

// errOver says that an end has had its event, after which no other comes.
var errOver = errors.New("the connection is over")
