package rsocket

import (
	"context"
	"errors"
	"net"
	"time"
)

var errTODO = errors.New("not written yet")

// A ListenConfig contains options for listening. The zero value is usable.
type ListenConfig struct {
	// Config has the sizes and times of the connections.
	Config Config
	// Backlog is the most connections that wait for Accept, and the most that are in their handshake; 0 means 128. Requests
	// beyond these are refused.
	Backlog int
	// ReuseAddr lets sockets that do not listen share the address; see rdmacm.ListenConfig.
	ReuseAddr bool
}

// Listen listens with the zero ListenConfig.
func Listen(network, address string) (*Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen listens for connections at host:port. The network is "rdma", or, for addresses of one family alone, "rdma4" or "rdma6".
// If the host is empty, it listens on every address of every device. If the port is 0, the system chooses one. The context is
// for looking up the address; its end does not end the listener.
//
// For a loopback address, Listen fails with an error matching syscall.EADDRNOTAVAIL unless a device has it; see rdmacm.Listen.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	return nil, errTODO
}

// A Listener accepts connections. It is a net.Listener. Its methods may be called concurrently. Handshakes proceed without Accept.
type Listener struct{}

var _ net.Listener = (*Listener)(nil)

// Accept waits for the next connection, which is a *Conn. It fails with an error matching os.ErrDeadlineExceeded when the deadline
// has passed, net.ErrClosed after Close, and syscall.ENODEV if the device was removed.
func (ln *Listener) Accept() (net.Conn, error) { return nil, errTODO }

// SetDeadline sets when Accept fails. The zero time means never.
func (ln *Listener) SetDeadline(t time.Time) error { return errTODO }

// Close stops listening, and closes the connections that have not been accepted. Accepted ones stay up. Further calls do nothing.
func (ln *Listener) Close() error { return errTODO }

// Addr returns the listener's address, an Addr.
func (ln *Listener) Addr() net.Addr { return Addr{} }
