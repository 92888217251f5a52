package rsocket

import (
	"context"
	"net"
	"time"
)

// A Dialer contains options for connecting to an address. The zero value is usable. Its methods may be called
// concurrently. DialContext fits http.Transport and grpc.WithContextDialer.
type Dialer struct {
	// Config has the sizes and times of connections.
	Config Config
	// Timeout limits each dial, in addition to the context; 0 means no limit of its own.
	Timeout time.Duration
	// LocalAddr is the address to connect from, as host or host:port. If empty, the system chooses one.
	LocalAddr string
	// Fallback, if not nil, is called when the peer cannot be reached by RDMA, with the reason, unless ctx has ended. What
	// it returns, DialContext returns. FallbackTCP is one. Without it, a dial either returns a *Conn or fails.
	Fallback func(ctx context.Context, network, address string, cause error) (net.Conn, error)
}

// Dial connects to an address with the zero Dialer.
func Dial(network, address string) (net.Conn, error) { return new(Dialer).Dial(network, address) }

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to host:port and blocks until the connection is up. The network is "rdma", or, for addresses of one
// family alone, "rdma4" or "rdma6". The connection is a *Conn, unless Fallback has made it. If the host has several
// addresses, DialContext tries them in turn.
//
// Errors are *net.OpErrors, and match what rdmacm.Dialer.Dial says: an *rdmacm.RejectedError, which matches
// syscall.ECONNREFUSED, if the peer refuses, syscall.ETIMEDOUT if it does not answer, ctx.Err() if ctx ends first, and
// errors.ErrUnsupported if the peer speaks another version of the protocol.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, errTODO
}

// FallbackTCP is a Dialer.Fallback that connects to the same host and port over TCP.
func FallbackTCP(ctx context.Context, network, address string, _ error) (net.Conn, error) {
	return nil, errTODO
}
