// SPDX-License-Identifier: Apache-2.0

// Package links has the checks of connections and of what is made of them. The
// other end is a peer.Server: of this process, or of another host.
package links

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Checks are the checks of connections.
var Checks = slices.Concat(connections, datagrams, sockets, transfers, soak, figures)

// rig is a check with a session.
type rig struct {
	*check.T
	session *peer.Session
	device  *ibverbs.Device
	attr    ibverbs.DeviceAttr
}

// on makes the function of a check that needs a rig.
func on(f func(r *rig)) func(t *check.T) {
	return func(t *check.T) {
		r := &rig{T: t, session: t.Target().Peer}
		if r.session == nil {
			r.serve()
		}
		if err := r.session.Err(); err != nil {
			r.Skipf("the session with the server has ended: %v", err)
		}
		var err error
		r.device, err = r.session.Device()
		r.ok(err)
		r.attr, err = r.device.QueryDevice()
		r.ok(err)
		defer r.excuse()
		f(r)
	}
}

// excuse makes a check that has failed one that was not made, if the session
// with another host has ended meanwhile: the device cannot help that.
func (r *rig) excuse() {
	if r.Target().Peer == nil || !r.Failed() {
		return
	}
	if r.session.Err() == nil {
		_ = r.session.Probe(r.Context()) // until its answer comes, the end of a server is known
	}
	if err := r.session.Err(); err != nil {
		r.Skipf("the session with the server has ended: %v", err)
	}
}

// serve starts a server in this process, and begins a session with it.
func (r *rig) serve() {
	local, err := Address(r.Target().Device, r.Target().Port, netip.Addr{})
	r.ok(err)
	if !local.IsValid() {
		r.Skipf("the device's port has no IP address: give its network interface one")
	}
	server := &peer.Server{}
	r.ok(server.Listen(r.Context(), netip.AddrPortFrom(local, 0).String()))
	r.Close(server)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	r.Close(check.Closer(func() error { cancel(); return <-served }))
	r.session, err = peer.Join(r.Context(), local, server.Addr().String())
	if errors.Is(err, errors.ErrUnsupported) {
		r.Lacks("reliable connections")
	}
	r.ok(err)
	r.Close(r.session)
}

// Address returns an IP address of a device's port, of the same family as
// another, if that is valid. It is invalid if there is none.
func Address(device string, port int, like netip.Addr) (netip.Addr, error) {
	addrs, err := rdmacm.LocalAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	info, err := ibverbs.QueryDeviceInfo(device)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, p := range info.Ports {
		for _, g := range p.GIDs { // of RoCE: no interface has 127.0.0.2, which the device in user space may have
			addrs = append(addrs, g.GID.Addr())
		}
	}
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		return netip.Addr{}, err
	}
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool {
		return (!like.IsValid() || a.Is4() == like.Is4()) && belongs(channel, a, device, port)
	})
	if err := channel.Close(); err != nil || i < 0 {
		return netip.Addr{}, err
	}
	return addrs[i], nil
}

// belongs reports whether an address is one of a device's port.
func belongs(channel *rdmacm.EventChannel, a netip.Addr, device string, port int) bool {
	id, err := channel.NewID(rdmacm.PortSpaceTCP)
	if err != nil {
		return false
	}
	defer id.Close()
	if id.BindAddr(netip.AddrPortFrom(a, 0)) != nil {
		return false
	}
	d, err := id.Device()
	return err == nil && d.Name() == device && id.PortNum() == port
}

// ok fails the check for an error.
func (r *rig) ok(err error) {
	if err != nil {
		r.Failf("%v", err)
	}
}

// want fails the check unless what it says is so.
func (r *rig) want(is bool, format string, args ...any) {
	if !is {
		r.Failf(format, args...)
	}
}

// iWARP reports whether the device speaks iWARP, whose connection manager tells
// less.
func (r *rig) iWARP() bool {
	return r.device.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

func (r *rig) atomics() bool { return r.reads() && r.attr.AtomicCap != libibverbs.IBV_ATOMIC_NONE }

// reads reports whether the device has RDMA reads.
func (r *rig) reads() bool { return r.attr.MaxQPReadAtomic > 0 && r.attr.MaxQPInitReadAtomic > 0 }

// wait returns a context for one thing that must happen.
func (r *rig) wait() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), r.Patience())
}

// config returns the config of a connection.
func config() rdmacm.Config {
	return rdmacm.Config{SendQueue: 4, RecvQueue: 2, MessageSize: peer.MessageSize}
}

// try asks for a service.
func (r *rig) try(service peer.Service, ask, length int) (*rdmacm.Conn, error) {
	ctx, cancel := r.wait()
	defer cancel()
	conn, err := r.session.Dial(ctx, service, ask, length, config())
	if err == nil {
		r.Close(conn)
	}
	return conn, err
}

// dial is try for what must succeed.
func (r *rig) dial(service peer.Service, ask, length int) *rdmacm.Conn {
	conn, err := r.try(service, ask, length)
	if err != nil {
		r.Failf("the server does not serve: %v%s", err, peer.Why(err))
	}
	return conn
}

// service starts a service that listens on a port of its own.
func (r *rig) service(service peer.Service, ask int) netip.AddrPort {
	at := r.session.Port(r.dial(service, ask, 0))
	r.want(at.Port() != 0, "the server has told no port")
	return at
}

// line is a connection whose messages come back.
type line struct {
	*rig
	*rdmacm.Conn
	out *ibverbs.MR
}

func (r *rig) line(conn *rdmacm.Conn) *line {
	r.Reserve(3 * peer.MessageSize)
	out, err := conn.Alloc(peer.MessageSize, 0)
	r.ok(err)
	return &line{r, conn, out}
}

// answer sends a message and returns the answer.
func (l *line) answer(message []byte) []byte {
	ctx, cancel := l.wait()
	defer cancel()
	n := copy(l.out.Bytes(), message)
	l.ok(l.Send(ctx, l.out.Sub(0, n)))
	m, err := l.Receive(ctx)
	l.ok(err)
	return m.Data
}

// echo sends n bytes, which must come back.
func (l *line) echo(n int, seed byte) {
	message := filled(n, seed)
	if got := l.answer(message); !bytes.Equal(got, message) {
		l.Failf("a message of %d bytes came back as another one of %d bytes", n, len(got))
	}
}

// filled returns n bytes that tell their place.
func filled(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}

// errnos has the names of errors that calls return.
var errnos = map[syscall.Errno]string{
	syscall.EINVAL: "EINVAL", syscall.EADDRINUSE: "EADDRINUSE", syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.ENODEV: "ENODEV",
	syscall.ENOMEM: "ENOMEM", syscall.EOPNOTSUPP: "EOPNOTSUPP",
}

// ended returns the name of how a call has ended.
func ended(err error) string {
	var refused *rdmacm.RejectedError
	if errors.As(err, &refused) {
		return refused.Reason.String()
	}
	for errno, name := range errnos {
		if errors.Is(err, errno) {
			return name
		}
	}
	if err != nil {
		return err.Error()
	}
	return check.Succeeds
}

// spec is the verdict of what ends in one of these ways.
func spec(ways ...string) check.Verdict { return check.Verdict{Specification: ways} }
