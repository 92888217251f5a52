// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/turns"
)

// A Dialer contains options for connecting to a listener. The zero value is
// usable. Its methods may be called concurrently. Dialer has the options that
// only the dialing end sets, before it has a queue pair; Config has those that
// both ends of a connection can set.
type Dialer struct {
	// Config configures the connections that Dial makes. DialDatagram ignores
	// it.
	Config Config
	// LocalAddr is the address to connect from, as host or host:port. If empty,
	// the system chooses one.
	LocalAddr string
	// ResolveTimeout limits each of the two steps that locate the peer: address
	// and route resolution; 0 means 2 s. The context limits the whole call.
	ResolveTimeout time.Duration
	// TOS is the type of service. RoCE and iWARP put it into the IP header; on
	// InfiniBand it selects the service level. 0 leaves the choice to the system.
	TOS uint8
}

const defaultResolve = 2 * time.Second

// Dial connects to the listener at host:port, using a Dialer with the config,
// which may be nil.
func Dial(ctx context.Context, address string, config *Config) (*Conn, error) {
	var d Dialer
	if config != nil {
		d.Config = *config
	}
	return d.Dial(ctx, address)
}

// Dial connects to the listener at host:port and blocks until the connection is
// up. If the host has several addresses, Dial tries them in turn. An empty or
// unspecified host, such as 0.0.0.0, means the local system: Dial tries the
// addresses of LocalAddrs.
//
// Dial fails with a *RejectedError if the peer refuses, and with an *EventError
// if the peer cannot be reached. The error matches syscall.ECONNRESET if the
// peer gives up during the handshake, syscall.ETIMEDOUT if
// Config.HandshakeTimeout passes, and ctx.Err() if ctx ends first.
//
// If the listener's backlog is full, Dial tries again after pauses that grow to
// five seconds, until ctx ends or Config.HandshakeTimeout is over. If the
// backlog stays full, the error also matches ErrBacklogFull. Dial also tries
// again, up to seven times, if the peer gives up during the handshake, as an
// overloaded listener does. Each attempt calls PreparedQP.Prepare and
// Config.Setup.
func (d *Dialer) Dial(ctx context.Context, address string) (*Conn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.Dial", "dialer")
	}
	if err := ended("Dial", ctx); err != nil {
		return nil, err
	}
	if err := d.Config.Check(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	complete := d.Config.withDefaults()
	var conn *Conn
	err := d.each(ctx, address, func(local, peer netip.AddrPort) error {
		err := backlog.Retry(ctx, complete.HandshakeTimeout, "Config.HandshakeTimeout", func(ctx context.Context) (err error) {
			conn, err = d.dialAddr(ctx, local, peer, complete)
			return err
		})
		if err != nil {
			complete.logFailure(ctx, "rdma dial failed", err, slog.String("peer", peer.String()))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// each calls f with each address of host:port in turn until a call succeeds.
func (d *Dialer) each(ctx context.Context, address string, f func(local, peer netip.AddrPort) error) error {
	peers, err := lookup(ctx, address)
	if err != nil {
		return err
	}
	if host := peers[0].Addr(); !host.IsValid() || host.IsUnspecified() {
		if peers, err = localSystem(peers[0]); err != nil {
			return err
		}
	}
	var local netip.AddrPort
	if d.LocalAddr != "" {
		if local, err = lookupLocal(ctx, d.LocalAddr); err != nil {
			return err
		}
		if peers = sameFamily(peers, local); len(peers) == 0 {
			return cerr.Argument("rdma_resolve_addr", address, cerr.InvalidAs(syscall.EAFNOSUPPORT,
				"the host has no address of the same family as the local address %v", local.Addr()))
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
	for i, err := range errs {
		errs[i] = fmt.Errorf("%v: %w", peers[i], err)
	}
	return errors.Join(errs...)
}

func (d *Dialer) dialAddr(ctx context.Context, local, peer netip.AddrPort, config Config) (*Conn, error) {
	began := time.Now()
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
	conn.logUp(ctx, "rdma connected", began)
	return conn, nil
}

// resolved creates an ID and resolves the peer's address and route. The caller
// must release the dispatcher.
func (d *Dialer) resolved(ctx context.Context, info AddrInfo, ackTimeout time.Duration) (*dispatcher, *ID, error) {
	endTurn := turns.Make()
	ds, id, err := newDispatchedID(info.PortSpace, useDispatcher)
	endTurn()
	if err != nil {
		return nil, nil, err
	}
	if err := d.resolve(ctx, ds, id, info, ackTimeout); err != nil {
		return nil, nil, errors.Join(err, id.Close(), ds.release())
	}
	return ds, id, nil
}

// resolve finds the device, the peer's hardware address and the path to the
// peer.
func (d *Dialer) resolve(ctx context.Context, ds *dispatcher, id *ID, info AddrInfo, ackTimeout time.Duration) error {
	steps := newAnswers()
	var failing sync.Once
	var failure error // reason why resolving failed between the two steps; set before over is closed
	over := make(chan struct{})
	steps.over, steps.why = over, func() error { return failure }
	ds.handle(id, func(ev *Event) {
		switch ev.Type {
		// A broken event channel ends all IDs with EventConnectError.
		case EventAddrResolved, EventAddrError, EventRouteResolved, EventRouteError, EventDeviceRemoval, EventConnectError:
			if err := ev.Err(); !steps.offer(ev) && err != nil {
				failing.Do(func() { failure = err; close(over) })
			}
		}
	})
	defer ds.forget(id)
	timeout := d.ResolveTimeout
	if timeout == 0 {
		timeout = defaultResolve
	}
	if _, err := steps.ask(ctx, func() error {
		return inTurn(func() error { return id.resolveInfo(info, timeout) })
	}); err != nil {
		return err
	}
	if d.TOS != 0 {
		if err := id.SetTOS(d.TOS); err != nil {
			return err
		}
	}
	if ackTimeout != 0 { // must be set before the request, which carries it
		if err := id.SetAckTimeout(ackTimeout); err != nil {
			return fmt.Errorf("Config.AckTimeout: %w", err)
		}
	}
	_, err := steps.ask(ctx, func() error {
		return inTurn(func() error { return id.routeInfo(info, timeout) })
	})
	return err
}

// inTurn calls f, which calls C. It limits how many goroutines do that at once.
func inTurn(f func() error) error {
	defer turns.Make()()
	return f()
}

func (c *Conn) connect(ctx context.Context) error {
	p, err := c.param(nil)
	if err != nil {
		return err
	}
	return c.orFull(ctx, c.orGone(c.handshake(ctx, func() error { return c.id.connect(p, c.movesQP) })))
}

// localSystem returns the addresses of this machine that Dial tries for to, an
// address with an empty or unspecified host. They have the port of to. If the
// host is 0.0.0.0, they are all IPv4.
func localSystem(to netip.AddrPort) ([]netip.AddrPort, error) {
	addrs, err := LocalAddrs()
	if err != nil {
		return nil, err
	}
	var peers []netip.AddrPort
	for _, addr := range addrs {
		if to.Addr().IsValid() && to.Addr().Is4() && !addr.Is4() { // [::] is both families, as for Listen
			continue
		}
		peers = append(peers, netip.AddrPortFrom(addr, to.Port()))
	}
	if len(peers) == 0 {
		kind := "IP"
		if to.Addr().Is4() {
			kind = "IPv4"
		}
		return nil, cerr.Argument("rdma_resolve_addr", to.String(), cerr.InvalidAs(syscall.EADDRNOTAVAIL,
			"no RDMA device of this machine has an %s address", kind))
	}
	return peers, nil
}

// LocalAddrs returns the local system's addresses that belong to RDMA devices,
// except link-local ones. If there are none, it returns no addresses and no
// error. Loopback addresses come first; only the device of package softroce has
// loopback addresses.
func LocalAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	d, err := useDispatcher()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := prefix.Addr().Unmap()
		if addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		has, err := d.hasDevice(addr)
		if err != nil {
			return nil, errors.Join(err, d.release())
		}
		if has {
			addrs = append(addrs, addr)
		}
	}
	sort.SliceStable(addrs, func(i, j int) bool { return addrs[i].IsLoopback() && !addrs[j].IsLoopback() })
	return addrs, d.release()
}

// hasDevice reports whether addr, an address of this machine, belongs to an
// RDMA device.
func (d *dispatcher) hasDevice(addr netip.Addr) (bool, error) {
	id, err := d.channel.NewID(PortSpaceTCP)
	if err != nil {
		return false, err
	}
	has := id.BindAddr(netip.AddrPortFrom(addr, 0)) == nil
	if has {
		_, err := id.Device()
		has = err == nil
	}
	return has, id.Close()
}

// lookup returns the addresses of host:port. For an empty host, it returns one
// AddrPort, whose address is the zero Addr.
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
	if ip, err := netip.ParseAddr(host); err == nil { // the resolver would drop its zone
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

// sameFamily returns the peers that have the local address's family.
func sameFamily(peers []netip.AddrPort, local netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(peers, func(peer netip.AddrPort) bool {
		return local.IsValid() && peer.Addr().Is4() != local.Addr().Is4()
	})
}

// lookupLocal returns the first address of a host. address may have a port;
// otherwise, the port is 0.
func lookupLocal(ctx context.Context, address string) (netip.AddrPort, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "0")
	}
	addrs, err := lookup(ctx, address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look up the local address: %w", err)
	}
	return addrs[0], nil
}
