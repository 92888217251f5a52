package rdmacm

import (
	"context"
	"net/netip"
)

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
