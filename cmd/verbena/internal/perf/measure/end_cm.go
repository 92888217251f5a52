// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// connectWithCM connects with rdma_cm, and exchanges only the keys of memory.
func (e *end) connectWithCM(ctx context.Context, where Where) (err error) {
	var config ibverbs.QPConfig
	prepare := func(ep *endpoint.Endpoint) error {
		if e.device, err = ep.ID().Device(); err != nil {
			return err
		}
		if config, err = e.allocate(); err != nil {
			return err
		}
		if e.qp, err = ep.CreateQP(e.pd, config); err == nil {
			e.close = append(e.close, e.qp.Close)
			e.qps = []*ibverbs.QP{e.qp}
		}
		return err
	}
	ep, err := endpoint.New(rdmacm.PortSpaceTCP)
	if err != nil {
		return err
	}
	e.close = append(e.close, ep.Close)
	param := rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1}
	if where.Server == "" {
		if err := ep.ID().BindAddr(local(e.control, where.TCPPort)); err != nil {
			return err
		}
		if err := ep.Listen(1); err != nil {
			return err
		}
		if err := e.meet(); err != nil { // the client may connect now
			return err
		}
		request, err := ep.GetRequest(ctx)
		if err != nil {
			return err
		}
		e.close = append(e.close, request.Close)
		if err := prepare(request); err != nil {
			return err
		}
		if err := request.Accept(ctx, param); err != nil {
			return err
		}
		e.follow(ctx, request)
	} else {
		if err := e.meet(); err != nil {
			return err
		}
		if err := ep.ResolveAddr(ctx, netip.AddrPort{}, remote(e.control, where.TCPPort)); err != nil {
			return err
		}
		if err := ep.ResolveRoute(ctx); err != nil {
			return err
		}
		if err := prepare(ep); err != nil {
			return err
		}
		if _, err := ep.Connect(ctx, param); err != nil {
			return err
		}
		e.follow(ctx, ep)
	}
	e.offer()
	_, err = e.agree()
	return err
}

// follow sets the life of the end to that of the connection. If the device is
// removed, it closes the control connection, at which the end and the peer may
// wait for each other.
func (e *end) follow(ctx context.Context, ep *endpoint.Endpoint) {
	e.life = peers.Watch(ctx, ep)
	context.AfterFunc(e.life, func() {
		if e.removal() != nil {
			e.control.hangUp()
		}
	})
}

// removal returns the event that the device was removed as an error, or nil if
// no such event has come.
func (e *end) removal() error {
	ended, ok := errors.AsType[*rdmacm.EventError](context.Cause(e.life))
	if ok && ended.Type == rdmacm.EventDeviceRemoval {
		return ended
	}
	return nil
}

// meet calls settle, with any MTU: rdma_cm chooses the MTU, so neither end uses
// the one that they exchange.
func (e *end) meet() error {
	_, err := e.control.settle(1)
	return err
}

func local(c net.Conn, port int) netip.AddrPort  { return withPort(c.LocalAddr(), port) }
func remote(c net.Conn, port int) netip.AddrPort { return withPort(c.RemoteAddr(), port) }

func withPort(addr net.Addr, port int) netip.AddrPort {
	a, _ := netip.ParseAddrPort(addr.String())
	return netip.AddrPortFrom(a.Addr().Unmap(), uint16(port))
}
