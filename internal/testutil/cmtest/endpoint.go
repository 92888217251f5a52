// SPDX-License-Identifier: Apache-2.0

package cmtest

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// EndpointQueues configures the queue pairs of endpoints in tests.
var EndpointQueues = ibverbs.QPConfig{SendQueue: 4, RecvQueue: 4, SendSegments: 1, RecvSegments: 1, SignalAll: true}

// NewEndpoint returns an endpoint, which is closed at the end of the test.
func NewEndpoint(t testing.TB, ps rdmacm.PortSpace) *endpoint.Endpoint {
	t.Helper()
	ep, err := endpoint.New(ps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// PassiveEndpoint returns an endpoint that listens. The endpoints of connection
// requests to it have queue pairs.
func PassiveEndpoint(t testing.TB, ps rdmacm.PortSpace, ip netip.Addr) *endpoint.Endpoint {
	t.Helper()
	return passive(t, ps, ip, EndpointQueues)
}

func passive(t testing.TB, ps rdmacm.PortSpace, ip netip.Addr, queues ibverbs.QPConfig) *endpoint.Endpoint {
	t.Helper()
	info := rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: ps, Src: netip.AddrPortFrom(ip, 0)}
	ep, err := endpoint.Create(Bounded(t), info, nil, &queues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	require.NoError(t, ep.Listen(0))
	return ep
}

// ActiveEndpoint returns an endpoint that is ready to connect to the address
// to.
func ActiveEndpoint(t testing.TB, ps rdmacm.PortSpace, to netip.AddrPort) *endpoint.Endpoint {
	t.Helper()
	return active(t, ps, to, EndpointQueues)
}

func active(t testing.TB, ps rdmacm.PortSpace, to netip.AddrPort, queues ibverbs.QPConfig) *endpoint.Endpoint {
	t.Helper()
	ep, err := endpoint.Create(Bounded(t), rdmacm.AddrInfo{PortSpace: ps, Dst: to}, nil, &queues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// GetRequest returns the endpoint of the next connection request, which is
// closed at the end of the test.
func GetRequest(t testing.TB, ln *endpoint.Endpoint) *endpoint.Endpoint {
	t.Helper()
	request, err := ln.GetRequest(Bounded(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, request.Close()) })
	return request
}

// ConnectEndpoints returns the two ends of a connection, which are closed at
// the end of the test.
func ConnectEndpoints(t testing.TB, ip netip.Addr) (client, server *endpoint.Endpoint) {
	t.Helper()
	return ConnectEndpointsWith(t, ip, EndpointQueues)
}

// ConnectEndpointsWith is ConnectEndpoints with queue pairs of the test's own.
func ConnectEndpointsWith(t testing.TB, ip netip.Addr, queues ibverbs.QPConfig) (client, server *endpoint.Endpoint) {
	t.Helper()
	ctx := Bounded(t)
	ln := passive(t, rdmacm.PortSpaceTCP, ip, queues)
	client = active(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr(), queues)
	connected := InBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server = GetRequest(t, ln)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	require.NoError(t, ln.Close())
	return client, server
}

// NextOf returns the next event of the endpoint, which must have the type want.
func NextOf(t testing.TB, ep *endpoint.Endpoint, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ev, err := ep.Next(Bounded(t))
	require.NoError(t, err)
	require.Equal(t, want, ev.Type, "%v, status %d", ev.Type, ev.Status)
	return ev
}
