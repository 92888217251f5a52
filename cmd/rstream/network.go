// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// addresses holds the address to connect to or listen on, and the address to
// connect from.
type addresses struct {
	server string // address of the server, as host:port
	local  string // host to connect from; empty means any
}

// addresses looks up the addresses in the flags. It does not look up names if
// -f or -T r forbids that.
func (o *options) addresses(ctx context.Context) (a addresses, err error) {
	port := strconv.Itoa(o.port)
	if o.numeric {
		for flag, host := range map[string]string{"-s": o.server, "-b": o.bind} {
			if _, err := netip.ParseAddr(host); err != nil && host != "" {
				return a, program.Misuse("%s %s: expected an IP address", flag, host)
			}
		}
	}
	a = addresses{net.JoinHostPort(cmp.Or(o.server, o.bind), port), o.bind}
	if !o.resolve || o.tcp || a.server == ":"+port {
		return a, nil
	}
	info, err := rdmacm.LookUp(ctx, o.bind, o.server, port, nil)
	if err != nil {
		return a, err
	}
	if o.server == "" {
		return addresses{info.Src.String(), ""}, nil
	}
	a.server = info.Dst.String()
	if o.bind != "" {
		a.local = info.Src.Addr().String()
	}
	return a, nil
}

// dial connects to the server.
func (o *options) dial(ctx context.Context, a addresses, inline int) (net.Conn, error) {
	if !o.tcp {
		return (&rsocket.Dialer{LocalAddr: a.local, Config: o.config(inline)}).DialContext(ctx, "rdma", a.server)
	}
	var d net.Dialer
	if a.local != "" {
		local, err := net.ResolveIPAddr("ip", a.local)
		if err != nil {
			return nil, err
		}
		d.LocalAddr = &net.TCPAddr{IP: local.IP, Zone: local.Zone}
	}
	conn, err := d.DialContext(ctx, "tcp", a.server)
	if err != nil {
		return nil, err
	}
	return o.tuned(conn.(*net.TCPConn))
}

// listen listens for the client.
func (o *options) listen(ctx context.Context, a addresses) (net.Listener, error) {
	if !o.tcp {
		return (&rsocket.ListenConfig{Config: o.config(o.inline)}).Listen(ctx, "rdma", a.server)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", a.server)
	if err != nil {
		return nil, err
	}
	return &tcpListener{ln, o}, nil
}

// config returns the config of an RDMA connection according to the flags.
func (o *options) config(inline int) rsocket.Config {
	buffer := 2 * o.buffer // as rsocket(7) doubles the size that it is given, like Linux
	c := rsocket.Config{
		ReadBuffer: buffer, WriteBuffer: buffer, MaxInline: inline, Spin: o.wait.spin(),
		KeepAlive: time.Duration(o.keepAlive) * time.Second,
	}
	if inline == 0 {
		c.MaxInline = -1
	}
	if o.keepAlive == 0 {
		c.KeepAlive = -1
	}
	return c
}

// spin returns the value of rsocket.Config.Spin for this way of waiting.
func (w wait) spin() time.Duration {
	switch w {
	case spinning:
		return ibverbs.MaxSpin
	case blocking:
		return ibverbs.DefaultSpin
	}
	return -1
}

// tcpListener is a listener whose connections are set up according to the
// flags.
type tcpListener struct {
	net.Listener
	*options
}

func (ln *tcpListener) Accept() (net.Conn, error) {
	conn, err := ln.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return ln.tuned(conn.(*net.TCPConn))
}

// tuned sets up a connection according to the flags, and returns it.
func (o *options) tuned(conn *net.TCPConn) (net.Conn, error) {
	idle := time.Duration(o.keepAlive) * time.Second
	err := errors.Join(conn.SetReadBuffer(o.buffer), conn.SetWriteBuffer(o.buffer),
		conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: idle > 0, Idle: idle}))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
