// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// endpointCalls are all calls of an Endpoint that C could be crashed with, or
// that could wait.
var endpointCalls = map[string]func(ctx context.Context, ep *endpoint.Endpoint, to netip.AddrPort) error{
	"BindAddr": func(_ context.Context, ep *endpoint.Endpoint, to netip.AddrPort) error {
		return ep.ID().BindAddr(netip.AddrPortFrom(to.Addr(), 0))
	},
	"ResolveAddr": func(ctx context.Context, ep *endpoint.Endpoint, to netip.AddrPort) error {
		return ep.ResolveAddr(ctx, netip.AddrPort{}, to)
	},
	"Resolve": func(ctx context.Context, ep *endpoint.Endpoint, to netip.AddrPort) error {
		return ep.Resolve(ctx, rdmacm.AddrInfo{Dst: to})
	},
	"ResolveRoute": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.ResolveRoute(ctx) },
	"ResolveAddrInfo": func(ctx context.Context, ep *endpoint.Endpoint, to netip.AddrPort) error {
		_, err := ep.ResolveAddrInfo(ctx, to.Addr().String(), "7", nil)
		return err
	},
	"Listen": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.Listen(1) },
	"GetRequest": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.GetRequest(ctx)
		return err
	},
	"Connect": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Connect(ctx, rdmacm.ConnParam{})
		return err
	},
	"Accept": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		return ep.Accept(ctx, rdmacm.ConnParam{})
	},
	"Reject":     func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.ID().Reject(nil) },
	"Disconnect": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.Disconnect(ctx) },
	"Next": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Next(ctx)
		return err
	},
	"JoinMulticast": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.JoinMulticast(ctx, netip.MustParseAddr("239.1.2.3"), rdmacm.JoinFull)
		return err
	},
	"JoinMulticastIB": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.JoinMulticastIB(ctx, rdmacm.IBAddr{GID: ibverbs.GID{0xff}}, rdmacm.JoinFull)
		return err
	},
	"Migrate": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Migrate(nil)
		return err
	},
	"CreateQP": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.CreateQP(nil, cmtest.EndpointQueues)
		return err
	},
	"CreateSRQ": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 1})
		return err
	},
	"RegMsgs": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegMsgs(make([]byte, 8))
		return err
	},
	"RegRead": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegRead(make([]byte, 8))
		return err
	},
	"RegWrite": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegWrite(make([]byte, 8))
		return err
	},
	"PostRecv": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.PostRecv(1) },
	"PostSend": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error { return ep.PostSend(1, 0) },
	"PostRead": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		return ep.PostRead(1, ibverbs.RemoteBuffer{}, 0)
	},
	"PostWrite": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		return ep.PostWrite(1, ibverbs.RemoteBuffer{}, 0)
	},
	"PostUDSend": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		return ep.PostUDSend(1, nil, 1, 0)
	},
	"SendComp": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.SendComp(ctx)
		return err
	},
	"RecvComp": func(ctx context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RecvComp(ctx)
		return err
	},
	"accessors": func(_ context.Context, ep *endpoint.Endpoint, _ netip.AddrPort) error {
		_, _, _ = ep.ID(), ep.ID().LocalAddr(), ep.ID().RemoteAddr()
		_, _, _ = ep.ID().Request(), ep.PD(), ep.QP()
		return nil
	},
}

// needQueues are the calls that need a queue pair.
var needQueues = []string{
	"RegMsgs", "RegRead", "RegWrite", "PostRecv", "PostSend", "PostRead", "PostWrite", "PostUDSend", "SendComp", "RecvComp",
}

var endpointStates = []struct {
	name string
	make func(t *testing.T, ip netip.Addr) *endpoint.Endpoint
	want map[string]string
}{
	{"unbound", func(t *testing.T, _ netip.Addr) *endpoint.Endpoint { return cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP) }, map[string]string{
		"ResolveRoute": cmtest.StepResolve, "Connect": cmtest.StepRoute, "Accept": cmtest.StepRequest, "Reject": cmtest.StepRequest, "Disconnect": cmtest.StepConnect,
		"GetRequest": "listen first", "JoinMulticast": cmtest.StepBind, "JoinMulticastIB": cmtest.StepBind, "CreateQP": cmtest.StepBind, "CreateSRQ": cmtest.StepBind,
	}},
	{"bound", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.ID().BindAddr(netip.AddrPortFrom(ip, 0)))
		return ep
	}, map[string]string{"GetRequest": "listen first", "Accept": cmtest.StepRequest, "Reject": cmtest.StepRequest, "Disconnect": cmtest.StepConnect}},
	{"listening", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		return cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, ip)
	}, map[string]string{"Accept": cmtest.StepRequest, "Reject": cmtest.StepRequest, "Disconnect": cmtest.StepConnect}},
	{"address resolved", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.ResolveAddr(cmtest.Bounded(t), netip.AddrPort{}, netip.AddrPortFrom(ip, 7)))
		return ep
	}, map[string]string{"GetRequest": "listen first", "Accept": cmtest.StepRequest, "Disconnect": cmtest.StepConnect}},
	{"request", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		ln := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(ip, 0)))
		require.NoError(t, ln.Listen(1))
		client := cmtest.ActiveEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
		require.NoError(t, client.ID().Connect(rdmacm.ConnParam{}))
		return cmtest.GetRequest(t, ln)
	}, map[string]string{"Accept": cmtest.StepQP, "GetRequest": "listen first", "Disconnect": cmtest.StepConnect}},
	{"connected", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		client, _ := cmtest.ConnectEndpoints(t, ip)
		return client
	}, map[string]string{"GetRequest": "listen first", "Accept": cmtest.StepRequest, "CreateQP": "the id has a queue pair"}},
	{"accepted", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		_, server := cmtest.ConnectEndpoints(t, ip)
		return server
	}, map[string]string{"GetRequest": "listen first", "CreateQP": "the id has a queue pair"}},
	{"disconnected", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		client, server := cmtest.ConnectEndpoints(t, ip)
		require.NoError(t, server.Close())
		cmtest.NextOf(t, client, rdmacm.EventDisconnected)
		return client
	}, map[string]string{"GetRequest": "listen first", "Accept": cmtest.StepRequest}},
	{"closed", func(t *testing.T, ip netip.Addr) *endpoint.Endpoint {
		ep := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.Close())
		return ep
	}, nil},
}

// Every call of an endpoint in every state comes back, also where there is
// nothing to wait for.
func TestEndpointGuards(t *testing.T) {
	d := cmtest.NeedDevice(t)
	to := netip.AddrPortFrom(d.IPv4, 7)
	for _, state := range endpointStates {
		for _, name := range slices.Sorted(maps.Keys(endpointCalls)) {
			t.Run(fmt.Sprint(state.name, "/", name), func(t *testing.T) {
				ep := state.make(t, d.IPv4)
				want := state.want[name]
				if slices.Contains(needQueues, name) && ep.QP() == nil && state.name != "closed" {
					want = cmtest.StepQP
				}
				if state.name == "closed" && name == "Reject" {
					want = cmtest.StepRequest
				}
				ctx := cmtest.Bounded(t)
				if want == "" { // what waits, waits for nothing
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
					defer cancel()
				}
				err := endpointCalls[name](ctx, ep, to)
				t.Log(err)
				if name == "accessors" {
					return
				}
				cmtest.CheckGuard(t, state.name, name, want, err)
			})
		}
	}
	for name, ep := range map[string]*endpoint.Endpoint{"nil": nil, "zero": {}} {
		for call, f := range endpointCalls {
			if err := f(t.Context(), ep, to); call != "accessors" {
				require.Error(t, err, "%s of a %s endpoint", call, name)
			}
		}
		require.ErrorIs(t, ep.Close(), os.ErrInvalid)
	}
	nilContext := cmtest.NewEndpoint(t, rdmacm.PortSpaceTCP)
	var none context.Context
	_, err := nilContext.Next(none)
	require.ErrorContains(t, err, "ctx is nil")
	require.ErrorContains(t, nilContext.ResolveRoute(none), "ctx is nil")
}
