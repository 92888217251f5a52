package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// handle is the handler of the id's events.
func (ep *Endpoint) handle(ev *Event) {
	if ev.Type != EventConnectRequest {
		ep.inbox.put(ev)
		return
	}
	kept := ep.inbox.addRequest(int(ep.id.backlog.Load()), func() *Endpoint {
		// The endpoint has not begun to close, so its own use keeps the dispatcher.
		ep.dispatcher.acquire()
		return newEndpoint(ep.dispatcher, ev.ID)
	})
	if !kept { // nobody takes it; the peer may try again
		ep.dispatcher.drop(ev.ID)
	}
}

// ready returns nil, or why no call can begin that waits.
func (ep *Endpoint) ready(ctx context.Context, op string) error {
	if err := ep.usable(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return ep.failure(op, contextError(ctx))
	}
	return nil
}

// do starts something and waits for the event that answers it. An event that
// reports a failure is returned as an error.
func (ep *Endpoint) do(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*Event, error) {
	c, err := ep.begin(ctx, op, start, answers)
	if err != nil {
		return nil, err
	}
	return ep.finish(ctx, op, c)
}

// begin is the first half of do.
func (ep *Endpoint) begin(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*call, error) {
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	c := ep.inbox.expect(answers)
	if err := start(); err != nil {
		ep.inbox.cancel(c)
		return nil, err
	}
	return c, nil
}

// finish is the second half of do.
func (ep *Endpoint) finish(ctx context.Context, op string, c *call) (*Event, error) {
	ev, err := ep.inbox.await(ctx, c)
	if err == nil {
		err = ev.Err()
	}
	if err != nil {
		return nil, ep.failure(op, err)
	}
	return ev, nil
}

// failure names the operation and the endpoint in an error.
func (ep *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("%s (%s): %w", op, ep.id.name(), err)
}

// left returns how long C may try: what is left until ctx ends.
func left(ctx context.Context) time.Duration {
	if ctx != nil {
		if deadline, ok := ctx.Deadline(); ok {
			return time.Until(deadline)
		}
	}
	return defaultResolve
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). The source may be the zero value. Without a deadline of
// ctx, C gives up after 2 s.
func (ep *Endpoint) ResolveAddr(ctx context.Context, src, dst netip.AddrPort) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error {
		return ep.id.ResolveAddr(src, dst, left(ctx))
	}, anyOf(EventAddrResolved, EventAddrError))
	return err
}

// ResolveIB is ResolveAddr for addresses of InfiniBand's. src may be nil.
func (ep *Endpoint) ResolveIB(ctx context.Context, src *IBAddr, dst IBAddr) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error {
		return ep.id.ResolveIB(src, dst, left(ctx))
	}, anyOf(EventAddrResolved, EventAddrError))
	return err
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3).
// Without a deadline of ctx, C gives up after 2 s.
func (ep *Endpoint) ResolveRoute(ctx context.Context) error {
	return ep.route(ctx, "rdma_resolve_route", func() error { return ep.id.ResolveRoute(left(ctx)) })
}

// SetIBPaths gives the endpoint paths to the peer, in place of ResolveRoute;
// see rdma_set_option(3). The first is used.
func (ep *Endpoint) SetIBPaths(ctx context.Context, paths ...libibverbs.PathData) error {
	return ep.route(ctx, "rdma_set_option", func() error { return ep.id.SetIBPaths(paths...) })
}

func (ep *Endpoint) route(ctx context.Context, op string, start func() error) error {
	_, err := ep.do(ctx, op, start, anyOf(EventRouteResolved, EventRouteError))
	return err
}

// ResolveAddrInfo looks up a host and a service; see rdma_resolve_addrinfo(3).
// It needs rdma-core 60 and a kernel in which programs can write events, which
// is Linux 6.17. Asking DNS holds a thread, also after ctx has ended.
func (ep *Endpoint) ResolveAddrInfo(ctx context.Context, host, service string, hints *AddrInfo) ([]AddrInfo, error) {
	const op = "rdma_resolve_addrinfo"
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	hints = hints.clone() // ctx may end first
	done := make(chan error, 1)
	go func() {
		_, err := ep.do(ctx, op, func() error { return ep.id.ResolveAddrInfo(host, service, hints) },
			anyOf(EventAddrinfoResolved, EventAddrinfoError))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return ep.id.QueryAddrInfo()
	case <-ctx.Done():
		return nil, ep.failure(op, contextError(ctx))
	}
}

// Connect asks the peer for a connection and waits until it is up; see
// rdma_connect(3). The event has what the peer gave. If the endpoint has no
// queue pair, it is EventConnectResponse, and Establish of the id has to
// follow. It fails with a *RejectedError if the peer refuses. An endpoint for
// datagrams asks for the peer's queue pair, which the event has.
func (ep *Endpoint) Connect(ctx context.Context, p ConnParam) (*Event, error) {
	return ep.do(ctx, "rdma_connect", func() error {
		if len(ep.connect) > 0 {
			p.PrivateData = append(ep.connect[:len(ep.connect):len(ep.connect)], p.PrivateData...)
		}
		return ep.id.Connect(p)
	}, anyOf(EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventDisconnected))
}

// Listen makes the endpoint wait for connection requests, which GetRequest
// takes; see rdma_listen(3). Up to backlog of them wait, 1024 for 0, and further
// ones are rejected.
func (ep *Endpoint) Listen(backlog int) error {
	if err := ep.usable(); err != nil {
		return err
	}
	return ep.id.listen(min(max(backlog, 0), maxBacklog), unread)
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
		return nil, errStep(op, "listen")
	}
	request, err := ep.inbox.nextRequest(ctx)
	if err != nil {
		return nil, ep.failure(op, err)
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

// Reject refuses the connection request, as ID.Reject does.
func (ep *Endpoint) Reject(privateData []byte) error { return ep.ID().Reject(privateData) }

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
		return errStep(op, "connect")
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

// JoinMulticast makes the endpoint, which must be for datagrams, a member of a
// multicast group and waits until it is one; see rdma_join_multicast_ex(3). The
// event has the way to the group. If ctx ends before, the group is left.
func (ep *Endpoint) JoinMulticast(ctx context.Context, group netip.Addr, flags JoinFlags) (*Event, error) {
	return ep.joinGroup(ctx, func(value any) error { return ep.id.JoinMulticast(group, flags, value) },
		func() error { return ep.id.LeaveMulticast(group) })
}

// JoinMulticastIB is JoinMulticast for an address of InfiniBand's.
func (ep *Endpoint) JoinMulticastIB(ctx context.Context, group IBAddr, flags JoinFlags) (*Event, error) {
	return ep.joinGroup(ctx, func(value any) error { return ep.id.JoinMulticastIB(group, flags, value) },
		func() error { return ep.id.LeaveMulticastIB(group) })
}

func (ep *Endpoint) joinGroup(ctx context.Context, join func(value any) error, leave func() error) (*Event, error) {
	const op = "rdma_join_multicast"
	value := new(int) // not to be mistaken for any other's
	c, err := ep.begin(ctx, op, func() error { return join(value) }, func(ev *Event) bool {
		return (ev.Type == EventMulticastJoin || ev.Type == EventMulticastError) && ev.Value == value
	})
	if err != nil {
		return nil, err
	}
	ev, err := ep.finish(ctx, op, c)
	if err != nil {
		_ = leave()        // which fails if the id was closed
		ep.inbox.cancel(c) // no answer comes any more
	}
	return ev, err
}
