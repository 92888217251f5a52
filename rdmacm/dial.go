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
)

// Dial connects to a listener at host:port. It returns when the connection is
// up, or with a *RejectedError if the peer refuses, an *EventError if it cannot
// be reached, or an error that is ctx.Err(). If the host has several addresses,
// they are tried in turn. The config may be nil.
func Dial(ctx context.Context, address string, config *Config) (*Conn, error) {
	conn, err := dial(ctx, address, config.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

func dial(ctx context.Context, address string, config Config) (*Conn, error) {
	peers, err := lookup(ctx, address)
	if err != nil {
		return nil, err
	}
	if !peers[0].IsValid() {
		return nil, fmt.Errorf("missing host: %w", syscall.EINVAL)
	}
	var local netip.AddrPort
	if config.LocalAddr != "" {
		if local, err = lookupLocal(ctx, config.LocalAddr); err != nil {
			return nil, err
		}
		if peers = sameFamily(peers, local); len(peers) == 0 {
			return nil, fmt.Errorf("no address of the family of the local address %v: %w",
				local.Addr(), syscall.EAFNOSUPPORT)
		}
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	var errs []error
	for _, peer := range peers {
		conn, err := dialAddr(ctx, local, peer, config)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, errors.Join(errs...)
}

func dialAddr(ctx context.Context, local, peer netip.AddrPort, config Config) (*Conn, error) {
	d, err := useDispatcher()
	if err != nil {
		return nil, err
	}
	id, err := d.channel.NewID(PortSpaceTCP)
	if err != nil {
		return nil, errors.Join(err, d.release())
	}
	if err := resolve(ctx, d, id, local, peer, config); err != nil {
		return nil, errors.Join(err, id.Close(), d.release())
	}
	conn, err := newConn(d, id, config)
	if err != nil {
		return nil, err
	}
	if err := conn.connect(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// resolve finds the device, the peer's hardware address and the path to it.
func resolve(ctx context.Context, d *dispatcher, id *ID, local, peer netip.AddrPort, config Config) error {
	events := make(chan *Event, 4) // more than these steps can cause
	d.handle(id, func(ev *Event) {
		select {
		case events <- ev:
		default:
		}
	})
	defer d.forget(id)
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
	if err := id.ResolveAddr(local, peer, config.ResolveTimeout); err != nil {
		return err
	}
	if err := wait(EventAddrResolved); err != nil {
		return err
	}
	if err := id.ResolveRoute(config.ResolveTimeout); err != nil {
		return err
	}
	return wait(EventRouteResolved)
}

func (c *Conn) connect(ctx context.Context) error {
	p, err := c.param(nil)
	if err != nil {
		return err
	}
	if err := c.id.Connect(p); err != nil {
		return err
	}
	return c.handshake(ctx)
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
