package rdmacm_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// endpointQueues is what the queue pairs of endpoints in tests hold.
var endpointQueues = ibverbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, SignalAll: true}

func newEndpoint(t testing.TB, ps rdmacm.PortSpace) *rdmacm.Endpoint {
	t.Helper()
	ep, err := rdmacm.NewEndpoint(ps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// passiveEndpoint returns an endpoint that listens. Its requests get queue
// pairs.
func passiveEndpoint(t testing.TB, ps rdmacm.PortSpace, ip netip.Addr) *rdmacm.Endpoint {
	t.Helper()
	info := rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: ps, Src: netip.AddrPortFrom(ip, 0)}
	ep, err := rdmacm.CreateEndpoint(bounded(t), info, nil, &endpointQueues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	require.NoError(t, ep.Listen(0))
	return ep
}

// activeEndpoint returns an endpoint that can connect.
func activeEndpoint(t testing.TB, ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.Endpoint {
	t.Helper()
	ep, err := rdmacm.CreateEndpoint(bounded(t), rdmacm.AddrInfo{PortSpace: ps, Dst: to}, nil, &endpointQueues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// getRequest returns the endpoint of the next request, closed with the test.
func getRequest(t testing.TB, ln *rdmacm.Endpoint) *rdmacm.Endpoint {
	t.Helper()
	request, err := ln.GetRequest(bounded(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, request.Close()) })
	return request
}

// inBackground runs f, whose error comes on the channel.
func inBackground(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// connectEndpoints returns the two ends of a connection.
func connectEndpoints(t testing.TB, ip netip.Addr) (client, server *rdmacm.Endpoint) {
	t.Helper()
	ctx := bounded(t)
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, ip)
	client = activeEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server = getRequest(t, ln)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	require.NoError(t, ln.Close())
	return client, server
}

// nextOf returns the endpoint's next event, which must be of the type.
func nextOf(t testing.TB, ep *rdmacm.Endpoint, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ev, err := ep.Next(bounded(t))
	require.NoError(t, err)
	require.Equal(t, want, ev.Type, "%v, status %d", ev.Type, ev.Status)
	return ev
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
