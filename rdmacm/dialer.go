package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Dialer says how to reach a listener. The zero value is usable. Its methods
// may be called concurrently.
type Dialer struct {
	// LocalAddr is the address to connect from, as host or host:port; empty
	// lets the system choose.
	LocalAddr string
	// ResolveTimeout bounds each of the two steps that find the peer; 0
	// stands for 2 s. The context bounds the whole.
	ResolveTimeout time.Duration
	// TOS is the type of service, which stands in the IP header of RoCE and
	// iWARP, and chooses the service level on InfiniBand.
	TOS uint8
}

const defaultResolve = 2 * time.Second

// Dial connects to a listener at host:port with the zero Dialer.
func Dial(ctx context.Context, address string, config *Config) (*Conn, error) {
	return new(Dialer).Dial(ctx, address, config)
}

// Dial connects to a listener at host:port. It returns when the connection is
// up, or with a *RejectedError if the peer refuses, an *EventError if it cannot
// be reached, an error that is syscall.ECONNRESET if it gave up in the middle,
// one that is syscall.ETIMEDOUT after Config.HandshakeTimeout, or one that is
// ctx.Err(). If the host has several addresses, they are tried in turn. The config
// may be nil.
func (d *Dialer) Dial(ctx context.Context, address string, config *Config) (*Conn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.Dial", "dialer")
	}
	if err := ended("Dial", ctx); err != nil {
		return nil, err
	}
	complete := config.withDefaults()
	var conn *Conn
	err := d.each(ctx, address, func(local, peer netip.AddrPort) (err error) {
		conn, err = d.dialAddr(ctx, local, peer, complete)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// each calls f with the addresses of host:port in turn, until one will do.
func (d *Dialer) each(ctx context.Context, address string, f func(local, peer netip.AddrPort) error) error {
	peers, err := lookup(ctx, address)
	if err != nil {
		return err
	}
	if !peers[0].IsValid() {
		return cerr.Refuse("rdma_resolve_addr", address, "the host is missing")
	}
	var local netip.AddrPort
	if d.LocalAddr != "" {
		if local, err = lookupLocal(ctx, d.LocalAddr); err != nil {
			return err
		}
		if peers = sameFamily(peers, local); len(peers) == 0 {
			return cerr.Argument("rdma_resolve_addr", address, cerr.InvalidAs(syscall.EAFNOSUPPORT,
				"no address of the family of the local address %v", local.Addr()))
		}
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	var errs []error
	for _, peer := range peers {
		err := f(local, peer)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (d *Dialer) dialAddr(ctx context.Context, local, peer netip.AddrPort, config Config) (*Conn, error) {
	ds, id, err := d.resolved(ctx, AddrInfo{PortSpace: PortSpaceTCP, Src: local, Dst: peer}, config.AckTimeout)
	if err != nil {
		return nil, err
	}
	conn, err := newConn(ds, id, config)
	if err != nil {
		return nil, err
	}
	if err := conn.connect(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// resolved makes an id that knows the way to the peer. The caller is a user of
// the dispatcher then.
func (d *Dialer) resolved(ctx context.Context, info AddrInfo, ackTimeout time.Duration) (*dispatcher, *ID, error) {
	ds, id, err := newDispatchedID(info.PortSpace, useDispatcher)
	if err != nil {
		return nil, nil, err
	}
	if err := d.resolve(ctx, ds, id, info, ackTimeout); err != nil {
		return nil, nil, errors.Join(err, id.Close(), ds.release())
	}
	return ds, id, nil
}

// resolve finds the device, the peer's hardware address and the path to it.
func (d *Dialer) resolve(ctx context.Context, ds *dispatcher, id *ID, info AddrInfo, ackTimeout time.Duration) error {
	events := make(chan *Event, 4) // more than these steps can cause
	ds.handle(id, func(ev *Event) {
		select {
		case events <- ev:
		default:
		}
	})
	defer ds.forget(id)
	wait := func(want EventType) error {
		for {
			select {
			case ev := <-events:
				if err := ev.Err(); err != nil {
					return err
				}
				if ev.Type == want {
					return nil
				}
			case <-ctx.Done():
				return contextError(ctx)
			}
		}
	}
	timeout := d.ResolveTimeout
	if timeout == 0 {
		timeout = defaultResolve
	}
	if err := id.resolveInfo(info, timeout); err != nil {
		return err
	}
	if err := wait(EventAddrResolved); err != nil {
		return err
	}
	if d.TOS != 0 {
		if err := id.SetTOS(d.TOS); err != nil {
			return err
		}
	}
	if ackTimeout != 0 { // now, so that the peer is told
		if err := id.SetAckTimeout(ackTimeout); err != nil {
			return err
		}
	}
	if err := id.routeInfo(info, timeout); err != nil {
		return err
	}
	return wait(EventRouteResolved)
}

func (c *Conn) connect(ctx context.Context) error {
	p, err := c.param(nil)
	if err != nil {
		return err
	}
	return c.orGone(c.handshake(ctx, func() error { return c.id.connect(p, c.movesQP) }))
}

// lookup returns the addresses of host:port.
func lookup(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, uint16(port))}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil { // the resolver would lose its zone
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return out, nil
}

// sameFamily returns those of the peers that can be reached from the local
// address.
func sameFamily(peers []netip.AddrPort, local netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(peers, func(peer netip.AddrPort) bool {
		return local.IsValid() && peer.Addr().Is4() != local.Addr().Is4()
	})
}

// lookupLocal returns the first address of a host, with or without a port.
func lookupLocal(ctx context.Context, address string) (netip.AddrPort, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "0")
	}
	addrs, err := lookup(ctx, address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("local address: %w", err)
	}
	return addrs[0], nil
}
