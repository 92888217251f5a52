package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// guarded is an id in some state, and what calls on it need.
type guarded struct {
	id *rdmacm.ID
	ch *rdmacm.EventChannel // another one than the id's
	pd *ibverbs.PD          // of the id's device
	cq *ibverbs.CQ
	to netip.AddrPort // where nobody listens
}

// idCalls are all calls of an ID that C could be crashed with.
var idCalls = map[string]func(g guarded) error{
	"BindAddr":          func(g guarded) error { return g.id.BindAddr(netip.AddrPortFrom(g.to.Addr(), 0)) },
	"BindIB":            func(g guarded) error { return g.id.BindIB(rdmacm.IBAddr{}) },
	"ResolveAddr":       func(g guarded) error { return g.id.ResolveAddr(netip.AddrPort{}, g.to, time.Second) },
	"ResolveIB":         func(g guarded) error { return g.id.ResolveIB(nil, rdmacm.IBAddr{GID: ibverbs.GID{1}}, time.Second) },
	"ResolveRoute":      func(g guarded) error { return g.id.ResolveRoute(time.Second) },
	"ResolveAddrInfo":   func(g guarded) error { return g.id.ResolveAddrInfo(g.to.Addr().String(), "7", nil) },
	"QueryAddrInfo":     func(g guarded) error { _, err := g.id.QueryAddrInfo(); return err },
	"Listen":            func(g guarded) error { return g.id.Listen(1) },
	"Connect":           func(g guarded) error { return g.id.Connect(rdmacm.ConnParam{}) },
	"Accept":            func(g guarded) error { return g.id.Accept(rdmacm.ConnParam{}) },
	"Accept with QPNum": func(g guarded) error { return g.id.Accept(rdmacm.ConnParam{QPNum: 1}) },
	"Reject":            func(g guarded) error { return g.id.Reject(nil) },
	"RejectECE":         func(g guarded) error { return g.id.RejectECE(nil) },
	"Establish":         func(g guarded) error { return g.id.Establish() },
	"Disconnect":        func(g guarded) error { return g.id.Disconnect() },
	"Notify":            func(g guarded) error { return g.id.Notify(ibverbs.EventCommEstablished) },
	"SetLocalECE":       func(g guarded) error { return g.id.SetLocalECE(ibverbs.ECE{VendorID: 1}) },
	"RemoteECE":         func(g guarded) error { _, err := g.id.RemoteECE(); return err },
	"InitQPAttr":        func(g guarded) error { _, _, err := g.id.InitQPAttr(ibverbs.QPStateRTR); return err },
	"WriteUserEvent":    func(g guarded) error { return g.id.WriteUserEvent(0, 1) },
	"JoinMulticast":     func(g guarded) error { return g.id.JoinMulticast(someGroup, rdmacm.JoinFull, nil) },
	"JoinMulticastIB": func(g guarded) error {
		return g.id.JoinMulticastIB(rdmacm.IBAddr{GID: ibverbs.GID{0xff}}, rdmacm.JoinSendOnly, nil)
	},
	"LeaveMulticast":   func(g guarded) error { return g.id.LeaveMulticast(someGroup) },
	"LeaveMulticastIB": func(g guarded) error { return g.id.LeaveMulticastIB(rdmacm.IBAddr{GID: ibverbs.GID{0xff}}) },
	"SetTOS":           func(g guarded) error { return g.id.SetTOS(8) },
	"SetReuseAddr":     func(g guarded) error { return g.id.SetReuseAddr(true) },
	"SetAFOnly":        func(g guarded) error { return g.id.SetAFOnly(true) },
	"SetAckTimeout":    func(g guarded) error { return g.id.SetAckTimeout(time.Second) },
	"SetIBPaths":       func(g guarded) error { return g.id.SetIBPaths() },
	"Migrate":          func(g guarded) error { return g.id.Migrate(g.ch) },
	"Context":          func(g guarded) error { _, err := g.id.Device(); return err },
	"CreateQP": func(g guarded) error {
		qp, err := g.id.CreateQP(g.pd, ibverbs.QPConfig{SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 1})
		if err == nil {
			err = qp.Close()
		}
		return err
	},
	"Endpoint": func(g guarded) error {
		ep, err := g.id.Endpoint()
		if err == nil {
			_, err = ep.Migrate(g.ch)
		}
		return err
	},
	// What cannot fail must not crash.
	"addresses": func(g guarded) error {
		_, _, _, _ = g.id.LocalAddr(), g.id.RemoteAddr(), g.id.LocalIBAddr(), g.id.RemoteIBAddr()
		_, _, _, _, _ = g.id.PortNum(), g.id.PortSpace(), g.id.Raw(), g.id.QP(), g.id.Request()
		g.id.SetValue(1)
		_ = g.id.Value()
		return nil
	},
}

var someGroup = netip.MustParseAddr("239.1.2.3")

// The steps that errors name.
const (
	stepBind    = "bind or resolve the address first"
	stepResolve = "resolve the address first"
	stepRoute   = "resolve the address and the route first"
	stepRequest = "receive a connection request first"
	stepConnect = "connect first"
	stepAccept  = "accept first"
	stepQP      = "create a queue pair first"
)

// guardStates are ids in their states, with what calls must say that come too
// early or too late there. C decides about the others, and they must come back.
var guardStates = []struct {
	name string
	make func(t *testing.T, ip netip.Addr) *rdmacm.ID
	want map[string]string
}{
	{"unbound", func(t *testing.T, _ netip.Addr) *rdmacm.ID { return newID(t, newChannel(t)) }, withoutDevice},
	{"bound to no device", func(t *testing.T, _ netip.Addr) *rdmacm.ID {
		id := newID(t, newChannel(t))
		require.NoError(t, id.BindAddr(netip.AddrPort{}))
		return id
	}, withoutDevice},
	{"bound", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		id := newID(t, newChannel(t))
		require.NoError(t, id.BindAddr(netip.AddrPortFrom(ip, 0)))
		return id
	}, with(unresolved, "Connect", stepRoute, "Disconnect", stepConnect, "Establish", stepConnect)},
	{"listening", func(t *testing.T, ip netip.Addr) *rdmacm.ID { return listening(t, ip).id }, unresolved},
	{"address resolved", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		ch := newChannel(t)
		id := newID(t, ch)
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(ip, 7), time.Second))
		next(t, ch, rdmacm.EventAddrResolved)
		return id
	}, with(notRequested, "Connect", stepRoute, "Disconnect", stepConnect, "Establish", stepConnect)},
	{"route resolved", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		e := newEnd(t)
		e.resolve(netip.AddrPortFrom(ip, 7))
		return e.id
	}, with(notRequested, "Disconnect", stepConnect, "Establish", stepConnect)},
	{"rejected", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		e := newEnd(t)
		e.resolve(netip.AddrPortFrom(ip, 7))
		require.NoError(t, e.id.Connect(rdmacm.ConnParam{QPNum: 1}))
		next(t, e.ch, rdmacm.EventRejected)
		return e.id
	}, notRequested},
	{"request", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		_, request := requested(t, ip)
		return request
	}, map[string]string{"Accept": stepQP}},
	{"closed", func(t *testing.T, ip netip.Addr) *rdmacm.ID {
		id := newID(t, newChannel(t))
		require.NoError(t, id.Close())
		return id
	}, nil},
}

// with returns the steps and more of them.
func with(steps map[string]string, more ...string) map[string]string {
	steps = maps.Clone(steps)
	for i := 0; i < len(more); i += 2 {
		steps[more[i]] = more[i+1]
	}
	return steps
}

// notRequested is what is refused of an id that no request has made.
var notRequested = map[string]string{
	"Accept": stepRequest, "Accept with QPNum": stepRequest, "Reject": stepRequest, "RejectECE": stepRequest,
}

// unresolved is what is refused besides while there is no address of a peer.
var unresolved = with(notRequested, "ResolveRoute", stepResolve, "JoinMulticast", "not for datagrams")

// withoutDevice is what is refused besides while there is no device.
var withoutDevice = with(unresolved, "Connect", stepRoute, "Establish", stepConnect, "Disconnect", stepConnect,
	"Notify", stepAccept, "JoinMulticast", stepBind, "JoinMulticastIB", stepBind, "Context", stepBind, "CreateQP", stepBind,
	"LeaveMulticast", "join first", "LeaveMulticastIB", "join first", "InitQPAttr", stepBind)

// requested returns an id that has asked for a connection, and the request.
func requested(t *testing.T, ip netip.Addr) (client *end, request *rdmacm.ID) {
	t.Helper()
	ln := listening(t, ip)
	client = newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1}))
	request = next(t, ln.ch, rdmacm.EventConnectRequest).ID
	t.Cleanup(func() { require.NoError(t, request.Close()) })
	return client, request
}

// Every call of an id in every state comes back, and where C would follow a
// null pointer the error names what is missing.
func TestIDGuards(t *testing.T) {
	d := needDevice(t)
	pd, cq := guardObjects(t, d.Name)
	for _, state := range guardStates {
		t.Run(state.name, func(t *testing.T) {
			for _, name := range sortedKeys(idCalls) {
				t.Run(name, func(t *testing.T) {
					other := newChannel(t)
					id := state.make(t, d.IPv4)
					t.Cleanup(func() { require.NoError(t, id.Close()) })
					err := idCalls[name](guarded{id, other, pd, cq, netip.AddrPortFrom(d.IPv4, 7)})
					t.Log(err)
					checkGuard(t, state.name, name, state.want[name], err)
				})
			}
		})
	}
	for name, id := range map[string]*rdmacm.ID{"nil": nil, "zero": {}} {
		for call, f := range idCalls {
			err := f(guarded{id, newChannel(t), pd, cq, netip.AddrPortFrom(d.IPv4, 7)})
			if call != "addresses" {
				require.Error(t, err, "%s of a %s id", call, name)
			}
		}
		require.ErrorIs(t, id.Close(), os.ErrInvalid)
	}
}

// checkGuard checks a call's error, in which "" stands for any.
func checkGuard(t *testing.T, state, call, want string, err error) {
	t.Helper()
	switch {
	case want != "":
		require.ErrorContains(t, err, want)
	case call == "addresses":
	case state == "closed":
		if !strings.HasPrefix(call, "Accept") && !strings.HasPrefix(call, "Reject") && call != "SetIBPaths" {
			require.ErrorIs(t, err, os.ErrClosed)
		}
		require.Error(t, err)
	}
	var failed *ibverbs.Error
	if errors.As(err, &failed) {
		require.NotEmpty(t, failed.Op)
		require.NotEmpty(t, failed.Object, "%v", err)
	}
}

// guardObjects returns what queue pairs need, closed with the test.
func guardObjects(t *testing.T, name string) (*ibverbs.PD, *ibverbs.CQ) {
	t.Helper()
	device := find(t, name)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	cq, err := device.CreateCQ(ibverbs.CQConfig{Entries: 2})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
	})
	return pd, cq
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// endpointCalls are all calls of an Endpoint that C could be crashed with, or
// that could wait.
var endpointCalls = map[string]func(ctx context.Context, ep *rdmacm.Endpoint, to netip.AddrPort) error{
	"BindAddr": func(_ context.Context, ep *rdmacm.Endpoint, to netip.AddrPort) error {
		return ep.ID().BindAddr(netip.AddrPortFrom(to.Addr(), 0))
	},
	"ResolveAddr": func(ctx context.Context, ep *rdmacm.Endpoint, to netip.AddrPort) error {
		return ep.ResolveAddr(ctx, netip.AddrPort{}, to)
	},
	"ResolveIB": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		return ep.ResolveIB(ctx, nil, rdmacm.IBAddr{GID: ibverbs.GID{1}})
	},
	"Resolve": func(ctx context.Context, ep *rdmacm.Endpoint, to netip.AddrPort) error {
		return ep.Resolve(ctx, rdmacm.AddrInfo{Dst: to})
	},
	"ResolveRoute": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.ResolveRoute(ctx) },
	"SetIBPaths":   func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.SetIBPaths(ctx) },
	"ResolveAddrInfo": func(ctx context.Context, ep *rdmacm.Endpoint, to netip.AddrPort) error {
		_, err := ep.ResolveAddrInfo(ctx, to.Addr().String(), "7", nil)
		return err
	},
	"Listen": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.Listen(1) },
	"GetRequest": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.GetRequest(ctx)
		return err
	},
	"Connect": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Connect(ctx, rdmacm.ConnParam{})
		return err
	},
	"Accept": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		return ep.Accept(ctx, rdmacm.ConnParam{})
	},
	"Reject":     func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.ID().Reject(nil) },
	"Disconnect": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.Disconnect(ctx) },
	"Next": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Next(ctx)
		return err
	},
	"JoinMulticast": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.JoinMulticast(ctx, someGroup, rdmacm.JoinFull)
		return err
	},
	"JoinMulticastIB": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.JoinMulticastIB(ctx, rdmacm.IBAddr{GID: ibverbs.GID{0xff}}, rdmacm.JoinFull)
		return err
	},
	"Migrate": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.Migrate(nil)
		return err
	},
	"CreateQP": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.CreateQP(nil, endpointQueues)
		return err
	},
	"CreateSRQ": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.CreateSRQ(nil, ibverbs.SRQConfig{MaxWR: 1})
		return err
	},
	"RegMsgs": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegMsgs(make([]byte, 8))
		return err
	},
	"RegRead": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegRead(make([]byte, 8))
		return err
	},
	"RegWrite": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RegWrite(make([]byte, 8))
		return err
	},
	"PostRecv": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.PostRecv(1) },
	"PostSend": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error { return ep.PostSend(1, 0) },
	"PostRead": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		return ep.PostRead(1, ibverbs.RemoteBuffer{}, 0)
	},
	"PostWrite": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		return ep.PostWrite(1, ibverbs.RemoteBuffer{}, 0)
	},
	"PostUDSend": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		return ep.PostUDSend(1, nil, 1, 0)
	},
	"SendComp": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.SendComp(ctx)
		return err
	},
	"RecvComp": func(ctx context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
		_, err := ep.RecvComp(ctx)
		return err
	},
	"accessors": func(_ context.Context, ep *rdmacm.Endpoint, _ netip.AddrPort) error {
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
	make func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint
	want map[string]string
}{
	{"unbound", func(t *testing.T, _ netip.Addr) *rdmacm.Endpoint { return newEndpoint(t, rdmacm.PortSpaceTCP) }, map[string]string{
		"ResolveRoute": stepResolve, "Connect": stepRoute, "Accept": stepRequest, "Reject": stepRequest, "Disconnect": stepConnect,
		"GetRequest": "listen first", "JoinMulticast": stepBind, "JoinMulticastIB": stepBind, "CreateQP": stepBind, "CreateSRQ": stepBind,
	}},
	{"bound", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		ep := newEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.ID().BindAddr(netip.AddrPortFrom(ip, 0)))
		return ep
	}, map[string]string{"GetRequest": "listen first", "Accept": stepRequest, "Reject": stepRequest, "Disconnect": stepConnect}},
	{"listening", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		return passiveEndpoint(t, rdmacm.PortSpaceTCP, ip)
	}, map[string]string{"Accept": stepRequest, "Reject": stepRequest, "Disconnect": stepConnect}},
	{"address resolved", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		ep := newEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.ResolveAddr(bounded(t), netip.AddrPort{}, netip.AddrPortFrom(ip, 7)))
		return ep
	}, map[string]string{"GetRequest": "listen first", "Accept": stepRequest, "Disconnect": stepConnect}},
	{"request", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		ln := newEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ln.ID().BindAddr(netip.AddrPortFrom(ip, 0)))
		require.NoError(t, ln.Listen(1))
		client := activeEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
		require.NoError(t, client.ID().Connect(rdmacm.ConnParam{}))
		return getRequest(t, ln)
	}, map[string]string{"Accept": stepQP, "GetRequest": "listen first", "Disconnect": stepConnect}},
	{"connected", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		client, _ := connectEndpoints(t, ip)
		return client
	}, map[string]string{"GetRequest": "listen first", "Accept": stepRequest, "CreateQP": "the id has a queue pair"}},
	{"accepted", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		_, server := connectEndpoints(t, ip)
		return server
	}, map[string]string{"GetRequest": "listen first", "CreateQP": "the id has a queue pair"}},
	{"disconnected", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		client, server := connectEndpoints(t, ip)
		require.NoError(t, server.Close())
		nextOf(t, client, rdmacm.EventDisconnected)
		return client
	}, map[string]string{"GetRequest": "listen first", "Accept": stepRequest}},
	{"closed", func(t *testing.T, ip netip.Addr) *rdmacm.Endpoint {
		ep := newEndpoint(t, rdmacm.PortSpaceTCP)
		require.NoError(t, ep.Close())
		return ep
	}, nil},
}

// Every call of an endpoint in every state comes back, also where there is
// nothing to wait for.
func TestEndpointGuards(t *testing.T) {
	d := needDevice(t)
	to := netip.AddrPortFrom(d.IPv4, 7)
	for _, state := range endpointStates {
		for _, name := range sortedKeys(endpointCalls) {
			t.Run(fmt.Sprint(state.name, "/", name), func(t *testing.T) {
				ep := state.make(t, d.IPv4)
				want := state.want[name]
				if slices.Contains(needQueues, name) && ep.QP() == nil && state.name != "closed" {
					want = stepQP
				}
				if state.name == "closed" && name == "Reject" {
					want = stepRequest
				}
				ctx := bounded(t)
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
				checkGuard(t, state.name, name, want, err)
			})
		}
	}
	for name, ep := range map[string]*rdmacm.Endpoint{"nil": nil, "zero": {}} {
		for call, f := range endpointCalls {
			if err := f(t.Context(), ep, to); call != "accessors" {
				require.Error(t, err, "%s of a %s endpoint", call, name)
			}
		}
		require.ErrorIs(t, ep.Close(), os.ErrInvalid)
	}
	nilContext := newEndpoint(t, rdmacm.PortSpaceTCP)
	var none context.Context
	_, err := nilContext.Next(none)
	require.ErrorContains(t, err, "ctx is nil")
	require.ErrorContains(t, nilContext.ResolveRoute(none), "ctx is nil")
}
