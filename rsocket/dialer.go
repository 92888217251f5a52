// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Dialer contains options for connecting to an address. The zero value is
// usable. Its methods may be called concurrently. DialContext has the signature
// that http.Transport needs, and works with grpc.WithContextDialer. Config has
// the options that both ends of a connection have.
type Dialer struct {
	// Config sets the sizes and timeouts of connections.
	Config Config
	// Timeout limits the time of each dial, in addition to the context. 0
	// means no limit.
	Timeout time.Duration
	// LocalAddr is the source address, as host or host:port. If it is
	// empty, the system chooses the address.
	LocalAddr string
	// Fallback, if not nil, is called if the peer cannot be reached by
	// RDMA; cause is the reason. It is not called if ctx has ended or
	// Config has an invalid value. DialContext returns the result of
	// Fallback, for example of FallbackTCP. Without Fallback, DialContext
	// either returns a *Conn or fails. Fallback runs in the goroutine of
	// DialContext. It may block and may call any function.
	Fallback func(ctx context.Context, network, address string, cause error) (net.Conn, error)
}

// Dial connects to an address with the zero Dialer. The network is "rdma",
// "rdma4" or "rdma6"; see Dialer.DialContext.
func Dial(network, address string) (net.Conn, error) { return new(Dialer).Dial(network, address) }

// Dial is like DialContext with the background context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to host:port and blocks until the connection is up. The
// network is "rdma", or "rdma4" or "rdma6" for addresses of one family only.
// The result is a *Conn, unless Fallback made it. If the host has several
// addresses, DialContext tries them one after the other. An empty or
// unspecified host, such as 0.0.0.0, stands for the local system, with the
// addresses that rdmacm.LocalAddrs returns.
//
// Errors are *net.OpErrors, and match those of rdmacm.Dialer.Dial: an
// *rdmacm.RejectedError, which matches syscall.ECONNREFUSED, if the peer
// refuses; syscall.ETIMEDOUT if the peer does not answer; ctx.Err() if ctx ends
// first; and errors.ErrUnsupported if the peer does not speak this version of
// the protocol.
//
// If the listener's backlog is full, DialContext tries again, after pauses that
// grow up to five seconds, until ctx ends or Config.HandshakeTimeout has
// passed. If the backlog stays full, the error also matches
// rdmacm.ErrBacklogFull.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch {
	case d == nil:
		return nil, cerr.Nil("Dialer.DialContext", "dialer")
	case ctx == nil:
		return nil, cerr.Nil("Dialer.DialContext", "ctx")
	}
	if err := d.Config.check(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	peers, err := lookup(ctx, network, "tcp", address)
	if err == nil {
		peers, err = localSystem(network, peers)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	var errs []error
	for _, peer := range peers {
		conn, err := d.dial(ctx, peer)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	failed := &net.OpError{Op: "dial", Net: network}
	if len(errs) == 1 {
		failed.Addr, failed.Err = Addr{peers[0]}, timed(without("dial "+peers[0].String()+": ", errs[0]))
	} else { // each error names its address
		failed.Err = timed(errors.Join(errs...))
	}
	err = failed
	if d.Fallback != nil && ctx.Err() == nil {
		return d.Fallback(ctx, network, address, err)
	}
	return nil, err
}

// localSystem replaces a missing or unspecified address by the addresses of the
// local system.
func localSystem(network string, peers []netip.AddrPort) ([]netip.AddrPort, error) {
	if host := peers[0].Addr(); host.IsValid() && !host.IsUnspecified() {
		return peers, nil
	}
	addrs, err := rdmacm.LocalAddrs()
	if err != nil {
		return nil, err
	}
	only4 := network == "rdma4" || peers[0].Addr().Is4()
	var out []netip.AddrPort
	for _, addr := range addrs {
		if only4 && !addr.Is4() || network == "rdma6" && addr.Is4() {
			continue
		}
		out = append(out, netip.AddrPortFrom(addr, peers[0].Port()))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no RDMA device of the local system has an address for network %s: %w", network, syscall.EADDRNOTAVAIL)
	}
	return out, nil
}

// dial connects to one address. While the listener's backlog is full, it tries
// again.
func (d *Dialer) dial(ctx context.Context, peer netip.AddrPort) (conn *Conn, err error) {
	patience := cmp.Or(d.Config.HandshakeTimeout, defaultHandshake)
	err = backlog.Retry(ctx, patience, "Config.HandshakeTimeout", func(ctx context.Context) (err error) {
		conn, err = d.dialOnce(ctx, peer)
		return err
	})
	return conn, err
}

// dialOnce connects to one address, with one attempt.
func (d *Dialer) dialOnce(ctx context.Context, peer netip.AddrPort) (*Conn, error) {
	c := newConn(d.Config.complete())
	below := rdmacm.Dialer{Config: *c.rdmaConfig(), LocalAddr: d.LocalAddr}
	rdma, err := below.Dial(ctx, peer.String())
	if err != nil {
		return nil, also(err, c.free())
	}
	hello, err := protocol.ParseHello(rdma.PeerData())
	if err != nil {
		return nil, errors.Join(err, rdma.Close(), c.free())
	}
	c.establish(rdma, hello)
	return c, nil
}

// FallbackTCP is a Dialer.Fallback that connects to the same host and port over
// TCP, as C programs do under librspreload. If that fails too, the error has
// both reasons.
func FallbackTCP(ctx context.Context, network, address string, cause error) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp"+strings.TrimPrefix(network, "rdma"), address)
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	return conn, nil
}
