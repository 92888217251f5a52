// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
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

// guarded is an id in some state, with the arguments of its calls.
type guarded struct {
	id *rdmacm.ID
	ch *rdmacm.EventChannel // another one than the id's
	pd *ibverbs.PD          // of the id's device
	cq *ibverbs.CQ
	to netip.AddrPort // where no program listens
}

// idCalls are all calls of an ID that could crash C.
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
		qp, err := g.id.CreateQP(g.pd, ibverbs.QPConfig{SendCQ: g.cq, RecvCQ: g.cq, SendQueue: 1, RecvQueue: 1})
		if err == nil {
			err = qp.Close()
		}
		return err
	},
	"Endpoint": func(g guarded) error {
		ep, err := endpoint.FromID(g.id)
		if err == nil {
			_, err = ep.Migrate(g.ch)
		}
		return err
	},
	// These calls return no error. They must not crash.
	"addresses": func(g guarded) error {
		_, _, _, _ = g.id.LocalAddr(), g.id.RemoteAddr(), g.id.LocalIBAddr(), g.id.RemoteIBAddr()
		_, _, _, _, _ = g.id.PortNum(), g.id.PortSpace(), g.id.Raw(), g.id.QP(), g.id.Request()
		g.id.SetValue(1)
		_ = g.id.Value()
		return nil
	},
}

var someGroup = netip.MustParseAddr("239.1.2.3")

// These are the steps that errors name.
const (
	stepBind    = cmtest.StepBind
	stepResolve = cmtest.StepResolve
	stepRoute   = cmtest.StepRoute
	stepRequest = cmtest.StepRequest
	stepConnect = cmtest.StepConnect
	stepQP      = cmtest.StepQP
	stepAccept  = "accept first"
)

// guardStates are ids in each state, with the errors of calls that come too
// early or too late. C decides about the other calls, which must return.
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

// with returns the steps and the additional ones.
func with(steps map[string]string, more ...string) map[string]string {
	steps = maps.Clone(steps)
	for i := 0; i < len(more); i += 2 {
		steps[more[i]] = more[i+1]
	}
	return steps
}

// notRequested holds the errors of calls that need a request's id.
var notRequested = map[string]string{
	"Accept": stepRequest, "Accept with QPNum": stepRequest, "Reject": stepRequest, "RejectECE": stepRequest,
}

// unresolved adds the errors of calls that need the peer's address.
var unresolved = with(notRequested, "ResolveRoute", stepResolve, "JoinMulticast", "not for datagrams")

// withoutDevice adds the errors of calls that need a device.
var withoutDevice = with(unresolved, "Connect", stepRoute, "Establish", stepConnect, "Disconnect", stepConnect,
	"Notify", stepAccept, "JoinMulticast", stepBind, "JoinMulticastIB", stepBind, "Context", stepBind, "CreateQP", stepBind,
	"LeaveMulticast", "join first", "LeaveMulticastIB", "join first", "InitQPAttr", stepBind)

// requested returns an id that has asked for a connection, and the id of the
// request.
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

// Every call of an id in every state returns. Where C would follow a null
// pointer, the error names the missing step.
func TestIDGuards(t *testing.T) {
	d := needDevice(t)
	pd, cq := cmtest.GuardObjects(t, d.Name)
	for _, state := range guardStates {
		t.Run(state.name, func(t *testing.T) {
			for _, name := range sortedKeys(idCalls) {
				t.Run(name, func(t *testing.T) {
					other := newChannel(t)
					id := state.make(t, d.IPv4)
					t.Cleanup(func() { require.NoError(t, id.Close()) })
					err := idCalls[name](guarded{id, other, pd, cq, netip.AddrPortFrom(d.IPv4, 7)})
					t.Log(err)
					cmtest.CheckGuard(t, state.name, name, state.want[name], err)
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

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
