// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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
// ctx.Err() if ctx ends first; it then goes on in the background, with further
// addresses too, and closes the connection. Each address takes at most about a
// minute.
func (d *Dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "rdma", Err: fmt.Errorf("%s: %w", address, err)}
	}
	return c, nil
}

// patience is how long the server may take to answer the client's first
// messages.
const patience = 30 * time.Second

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
	dialer := rdmacm.Dialer{LocalAddr: d.LocalAddr, Config: rdmacm.Config{
		SendQueue: sendQueue, RecvQueue: recvQueue, KeepAlive: d.KeepAlive, Setup: c.setup,
	}}
	rdma, err := connect(ctx, &dialer, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.start(ctx, rdma); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connect connects, or returns when ctx ends. The handshake then goes on
// without the caller, and the connection is closed: Valkey 8.1 crashes if a
// client takes its request back before the server has come to it.
func connect(ctx context.Context, d *rdmacm.Dialer, address string) (*rdmacm.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type result struct {
		conn *rdmacm.Conn
		err  error
	}
	dialed := make(chan result)
	go func() {
		conn, err := d.Dial(context.WithoutCancel(ctx), address)
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
