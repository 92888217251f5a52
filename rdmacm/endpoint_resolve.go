package rdmacm

import (
	"context"
	"net/netip"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

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
			anyOf(EventAddrInfoResolved, EventAddrInfoError))
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
