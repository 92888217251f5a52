package rdmacm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
)

// BindAddr gives the id a local address; see rdma_bind_addr(3). Port 0 lets
// the system choose one. An address without an IP stands for every address of
// every device, and so does a loopback address.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	sa, err := newSockaddr(addr)
	if err != nil {
		return err
	}
	name := addr.String()
	if !addr.Addr().IsValid() {
		name = fmt.Sprintf(":%d", addr.Port()) // as Listen is given it
	}
	return id.bind(sa, name)
}

// BindIB gives the id a local address of InfiniBand's; see rdma_bind_addr(3).
// A zero GID stands for every one of every device.
func (id *ID) BindIB(addr IBAddr) error { return id.bind(addr.sockaddr(), addr.String()) }

func (id *ID) bind(sa *sockaddr, name string) error {
	// In an error it is this address that matters, which the id does not have yet.
	return id.call(func() error { return wrap(name, librdmacm.BindAddr(id.raw, sa.ptr())) })
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows, the latter
// after the timeout, which C has in milliseconds, at the latest. The source may
// be the zero value.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	if !dst.IsValid() {
		return cerr.Refuse("rdma_resolve_addr", id.name(), "no destination: dst is the zero AddrPort")
	}
	to, err := newSockaddr(dst)
	if err != nil {
		return err
	}
	if !src.IsValid() {
		return id.resolveAddr(nil, to, timeout, dst.String())
	}
	from, err := newSockaddr(src)
	if err != nil {
		return err
	}
	return id.resolveAddr(from, to, timeout, src.String()+" to "+dst.String())
}

// ResolveIB is ResolveAddr for addresses of InfiniBand's. src may be nil.
func (id *ID) ResolveIB(src *IBAddr, dst IBAddr, timeout time.Duration) error {
	if src == nil {
		return id.resolveAddr(nil, dst.sockaddr(), timeout, dst.String())
	}
	return id.resolveAddr(src.sockaddr(), dst.sockaddr(), timeout, src.String()+" to "+dst.String())
}

func (id *ID) resolveAddr(src, dst *sockaddr, timeout time.Duration, name string) error {
	var from *librdmacm.Sockaddr
	if src != nil {
		from = src.ptr()
	}
	return id.call(func() error {
		return wrap(name, librdmacm.ResolveAddr(id.raw, from, dst.ptr(), milliseconds(timeout)))
	})
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3).
// EventRouteResolved or EventRouteError follows, the latter after the timeout at
// the latest. Where the InfiniBand address cache daemon runs, the call waits for
// its answer.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	const missing = "resolve the address"
	err := id.callBound("rdma_resolve_route", missing, func() error {
		return librdmacm.ResolveRoute(id.raw, milliseconds(timeout))
	})
	return explain(err, id.saw(EventAddrResolved), missing)
}

func milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), 1<<31-1))
}
