// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// Dialer has options for connections. The zero Dialer is ready for use.
type Dialer struct {
	// Window is the number of bytes that the server can send before the program
	// reads them; 0 means 512 KiB. It is rounded up to a multiple of 4 KiB, and
	// at most 1 GiB. A connection locks twice that much memory, and 256 KiB.
	// After each such number of bytes of a long value, the server waits until
	// it is offered the next window.
	Window int
	// LocalAddr is the address to connect from, as host or host:port. If empty,
	// the system chooses one.
	LocalAddr string
	// KeepAlive is how often the connection checks that the server's device
	// still answers; 0 means 30 s, and a negative value disables the check. See
	// rdmacm.Config.
	KeepAlive time.Duration
}

// Dial connects to the server at host:port, as the zero Dialer does.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return new(Dialer).Dial(ctx, network, address)
}

// Dial connects to the server at host:port, the values of its rdma-bind and
// rdma-port. It returns a *Conn. The network is "rdma", or "tcp" as go-redis
// calls it.
//
// If the host has several addresses, Dial tries them in turn. It fails with an
// error matching syscall.ECONNREFUSED if no server listens there, and matching
// ctx.Err() if ctx ends first. Without a deadline in ctx, it gives up after two
// minutes. An address may take one of them if no device answers there.
//
// When ctx ends, Dial sends no further request to connect. A handshake whose
// request it has sent goes on in the background, because Valkey 8.1 crashes if
// a client takes a request back. That ends when the server comes to it, or when
// the system gives up: after about a minute if the server's device does not
// answer, and about twenty if it does, but the server is busy. The program
// should not exit before.
//
// At most 32 handshakes with one address, as it was passed to Dial, are under
// way at a time, those in the background among them. Another Dial of that
// address waits.
func (d *Dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "rdma", Err: fmt.Errorf("%s: %w", address, err)}
	}
	return c, nil
}

const (
	// patience is how long Dial waits for the server without a deadline.
	patience = 2 * time.Minute
	// maxHandshakes is how many handshakes with one address may be under way.
	// Each has a queue pair and locked memory.
	maxHandshakes = 32
)

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	if network != "rdma" && !strings.HasPrefix(network, "tcp") {
		return nil, net.UnknownNetworkError(network)
	}
	const page = 4096
	switch {
	case d.Window < 0 || d.Window > 1<<30:
		return nil, fmt.Errorf("Dialer.Window of %d bytes: from 0 to 1 GiB are possible", d.Window)
	case d.Window == 0:
		d = &Dialer{512 << 10, d.LocalAddr, d.KeepAlive}
	}
	c := newConn((d.Window + page - 1) / page * page)
	ctx, cancel := withPatience(ctx)
	defer cancel()
	rdma, err := connect(ctx, d.rdma(c.setup), address)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx, rdma); err != nil {
		_ = rdma.Close() // before Close, which would wait until the server's device has the first messages
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// withPatience limits a context that has no deadline.
func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// rdma returns a dialer for a connection that setup prepares.
func (d *Dialer) rdma(setup func(*rdmacm.Conn) error) *rdmacm.Dialer {
	return &rdmacm.Dialer{LocalAddr: d.LocalAddr, Config: rdmacm.Config{
		SendQueue: sendQueue, RecvQueue: recvQueue, KeepAlive: d.KeepAlive, Setup: setup,
		HandshakeTimeout: -1, // rdmacm would take the request back; the system does not when it gives up
	}}
}

// limiter limits how many handshakes with an address are under way.
type limiter struct {
	underWay chan struct{} // has a value for each that is
	users    int           // number of calls that wait for their turn or have it; guarded by limiters
}

// limiters has those with users, by address.
var limiters = struct {
	sync.Mutex
	of map[string]*limiter
}{of: map[string]*limiter{}}

// takeTurn waits until another handshake with the address may be under way. The
// caller calls end after it.
func takeTurn(ctx context.Context, address string) (end func(), err error) {
	limiters.Lock()
	l := limiters.of[address]
	if l == nil {
		l = &limiter{underWay: make(chan struct{}, maxHandshakes)}
		limiters.of[address] = l
	}
	l.users++
	limiters.Unlock()
	leave := func() {
		limiters.Lock()
		defer limiters.Unlock()
		if l.users--; l.users == 0 {
			delete(limiters.of, address)
		}
	}
	select {
	case l.underWay <- struct{}{}:
		return func() { <-l.underWay; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("%d handshakes are under way: %w", maxHandshakes, ctx.Err())
	}
}

// connect connects, or returns when ctx ends. A handshake whose request has
// been sent then goes on without the caller, and the connection is closed:
// Valkey 8.1 crashes if a client takes its request back before the server has
// come to it.
func connect(ctx context.Context, d *rdmacm.Dialer, address string) (*rdmacm.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	endTurn, err := takeTurn(ctx, address)
	if err != nil {
		return nil, err
	}
	type result struct {
		conn *rdmacm.Conn
		err  error
	}
	dialed := make(chan result)
	go func() {
		defer endTurn()
		conn, err := outlast(ctx, d, address)
		select {
		case dialed <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}()
	select {
	case r := <-dialed:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// outlast connects. When ctx ends, it sends no further request, but waits for
// the answer to one that it has sent.
func outlast(ctx context.Context, d *rdmacm.Dialer, address string) (*rdmacm.Conn, error) {
	dialing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	setup := d.Config.Setup
	d.Config.Setup = func(c *rdmacm.Conn) error { // called before each request
		if err := setup(c); err != nil {
			return err
		}
		stop()
		if err := ctx.Err(); err != nil {
			cancel() // try no further address
			return err
		}
		return nil
	}
	return d.Dial(dialing, address)
}
