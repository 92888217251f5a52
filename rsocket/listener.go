// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// A ListenConfig contains options for listening. The zero value is usable.
type ListenConfig struct {
	// Config sets the sizes and timeouts of the connections.
	Config Config
	// Backlog limits the number of connections that wait for Accept, and
	// the number of requests that wait for their handshake. It is at most
	// 65536. 0 means the system's net.core.somaxconn, as in package net.
	// Requests above the limit are refused in a way that makes Dial try
	// again; C programs get ECONNREFUSED.
	//
	// At most 64 handshakes are in progress at a time. While requests wait,
	// the listener ends a handshake that the peer does not complete, to
	// make room for a request: after 10 s, or after 5 s if no other peer
	// completes a handshake in that time. If Dial has already returned at
	// the peer, its connection fails with an error matching
	// syscall.ECONNRESET and, on the device of package softroce,
	// rdmacm.ErrBacklogFull.
	Backlog int
	// ReuseAddr permits other IDs that do not listen to use the same
	// address; see rdmacm.ListenConfig.
	ReuseAddr bool
}

// Listen listens with the zero ListenConfig. The network is "rdma", "rdma4" or
// "rdma6"; see ListenConfig.Listen.
func Listen(network, address string) (*Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen listens for connections to host:port. The network is "rdma", or
// "rdma4" or "rdma6" for addresses of one family only. If the host is empty or
// unspecified, such as 0.0.0.0, Listen listens on all addresses of all devices,
// in the families of the network. If the port is 0, the system chooses one. ctx
// limits the lookup of the host; the end of ctx does not end the listener.
//
// Listen fails for a loopback address with an error matching
// syscall.EADDRNOTAVAIL, unless a device has the address; see rdmacm.Listen.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	switch {
	case lc == nil:
		return nil, cerr.Nil("ListenConfig.Listen", "config")
	case ctx == nil:
		return nil, cerr.Nil("ListenConfig.Listen", "ctx")
	}
	if err := lc.Config.check(); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	addrs, err := lookup(ctx, network, "tcp", address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	at := addrs[0]
	size := lc.Backlog
	if size <= 0 {
		size = backlog.Default()
	}
	size = min(size, maxBacklog)
	config := rdmacm.ListenConfig{Backlog: size, ReuseAddr: lc.ReuseAddr}
	if !at.Addr().IsValid() || at.Addr().IsUnspecified() {
		every := netip.IPv6Unspecified()
		if network == "rdma4" {
			every = netip.IPv4Unspecified()
		}
		at = netip.AddrPortFrom(every, at.Port())
		config.AFOnly = network == "rdma6"
	}
	name := at.String()
	below, err := rdmacm.Listen(ctx, name, &config)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: Addr{at}, Err: without("listen on "+name+": ", err)}
	}
	ln := &Listener{rdma: below, addr: Addr{below.Addr()}, closed: make(chan struct{})}
	ln.setConfig(lc.Config)
	ln.deadline.init(func() {})
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	ln.queue.init(ln.ctx, size, ln.accept)
	ln.serving.Go(ln.serve)
	return ln, nil
}

// Listener accepts connections. It is a net.Listener. Its methods may be called
// concurrently. Handshakes with peers also proceed in the background when no
// call of Accept is in progress.
type Listener struct {
	config   atomic.Pointer[Config] // of connections whose handshake has not begun
	rdma     *rdmacm.Listener
	addr     Addr
	deadline deadline
	queue    listenQueue

	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	serving  sync.WaitGroup
	closing  sync.Once
	closeErr error

	closed chan struct{} // closed when err is set
	ending sync.Once
	err    error // error that Accept returns
}

var _ net.Listener = (*Listener)(nil)

// setConfig sets the Config of the connections whose handshake has not begun.
func (ln *Listener) setConfig(c Config) {
	c = c.complete()
	ln.config.Store(&c)
}

// serve handles connection requests until the rdmacm.Listener ends.
func (ln *Listener) serve() {
	for {
		request, err := ln.rdma.Accept(ln.ctx)
		if err != nil {
			ln.end(err) // after Close, this call has no effect
			return
		}
		if excess := ln.queue.enter(request); excess != nil {
			shed(excess)
		}
	}
}

// accept accepts a connection request and completes its handshake. It tells
// ln.queue when the peer is about to be asked to complete the handshake.
func (ln *Listener) accept(ctx context.Context, request *rdmacm.Request, h *handshake) (*Conn, error) {
	hello, err := protocol.ParseHello(request.PrivateData())
	if err != nil {
		return nil, errors.Join(err, request.Reject(nil))
	}
	c := newConn(*ln.config.Load())
	c.accepted = true
	config := c.rdmaConfig()
	config.Logger = h.logger(config.Logger)
	var listening sync.WaitGroup
	over := make(chan struct{})
	config.Setup = func(rdma *rdmacm.Conn) error {
		ln.queue.asked(h)
		listening.Go(func() { c.completeOnData(rdma.ID(), over) })
		return nil
	}
	rdma, err := request.Accept(ctx, config)
	close(over)
	listening.Wait()
	if err != nil {
		return nil, errors.Join(err, c.free())
	}
	c.establish(rdma, hello)
	return c, nil
}

// dataEvery is the interval at which completeOnData looks for data.
const dataEvery = 250 * time.Millisecond

// completeOnData completes the handshake when data of the peer has arrived,
// until over is closed. The message with which the peer completes it may be
// lost, and the kernel repeats the acceptance, which the peer then confirms
// again, only after four seconds.
func (c *Conn) completeOnData(id *rdmacm.ID, over <-chan struct{}) {
	ticker := time.NewTicker(dataEvery)
	defer ticker.Stop()
	for {
		select {
		case <-over:
			return
		case <-ticker.C:
		}
		// Notify fails if the handshake has just been completed.
		if c.hasEarlyData() && id.Notify(ibverbs.EventCommEstablished) == nil {
			return
		}
	}
}

// end makes Accept fail with err. Only the first call has an effect.
func (ln *Listener) end(err error) {
	ln.ending.Do(func() {
		ln.err = err
		close(ln.closed)
	})
}

// check returns an error if ln is nil or was not made by this package.
func (ln *Listener) check() error {
	if ln == nil || ln.closed == nil {
		return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the Listener is nil, or was not made by this package"))
	}
	return nil
}

// opError returns the error of the operation op on the listener.
func (ln *Listener) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: network, Addr: ln.addr, Err: err}
}

// Accept waits for the next connection, which is a *Conn. It fails with an
// error matching os.ErrDeadlineExceeded when the deadline has passed,
// net.ErrClosed after Close, and syscall.ENODEV after the device was removed.
func (ln *Listener) Accept() (net.Conn, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	for {
		passed := ln.deadline.wait()
		switch {
		case fired(ln.closed):
			return nil, ln.opError("accept", ln.err)
		case fired(passed):
			return nil, ln.opError("accept", os.ErrDeadlineExceeded)
		}
		select {
		case a := <-ln.queue.ready:
			ln.queue.accepted()
			return a.conn, nil
		case <-ln.closed:
		case <-passed:
		}
	}
}

// SetDeadline sets the time at which Accept fails, including calls in progress.
// The zero time means that there is no deadline.
func (ln *Listener) SetDeadline(t time.Time) error {
	if err := ln.check(); err != nil {
		return err
	}
	if fired(ln.closed) {
		return ln.opError("set", ln.err)
	}
	ln.deadline.set(t)
	return nil
}

// Close stops listening and closes the connections that wait for Accept.
// Accepted connections stay open. Further calls have no effect. Close does not
// wait for handlers of Config.Logger, since these may call Close: a connection
// whose record is being handled is closed after the handler has returned.
func (ln *Listener) Close() error {
	if err := ln.check(); err != nil {
		return err
	}
	ln.closing.Do(func() {
		ln.end(net.ErrClosed)
		ln.cancel()
		err := ln.rdma.Close()
		ln.serving.Wait()
		ln.queue.close()
		ln.closeErr = ln.opError("close", err)
	})
	return ln.closeErr
}

// Addr returns the address on which ln listens, of type Addr.
func (ln *Listener) Addr() net.Addr {
	if ln == nil {
		return Addr{}
	}
	return ln.addr
}
