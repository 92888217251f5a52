package rdmacm

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// offlineEndpoint returns an endpoint without anything of C's, which crashes
// whoever follows its id there.
func offlineEndpoint(t *testing.T) *Endpoint {
	t.Helper()
	ep := &Endpoint{id: new(ID)}
	ep.id.object.InitUnlisted("an id")
	ep.inbox.changed = make(chan struct{})
	return ep
}

// What C has of an id is freed with it.
func TestClosedEndpointLeavesCAlone(t *testing.T) {
	ep := offlineEndpoint(t)
	require.NoError(t, ep.id.object.Close(nil, func() error { return nil }))
	require.ErrorIs(t, ep.Accept(t.Context(), ConnParam{}), os.ErrClosed)
	require.ErrorIs(t, ep.Disconnect(t.Context()), os.ErrClosed)
}

// A group that is left does not answer any more, so nothing waits for it.
func TestCanceledJoin(t *testing.T) {
	ep := offlineEndpoint(t)
	ep.id.mu.Lock() // as C would be, leaving; so errors do without addresses
	ctx, cancel := context.WithCancel(t.Context())
	left := 0
	join := func(any) error { cancel(); return nil }
	_, err := ep.joinGroup(ctx, join, func() error { left++; return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, left)
	require.Zero(t, EndpointCalls(ep))
}

// A look-up whose context has ended goes on with what it was given, and has its
// answer for itself when that comes.
func TestAbandonedLookup(t *testing.T) {
	ep := offlineEndpoint(t)
	ep.id.mu.Lock() // as C would be, asking DNS
	ctx, cancel := context.WithCancel(t.Context())
	hints := &AddrInfo{Family: FamilyIB, Flags: AddrFamily | AddrNumericHost}
	result := make(chan error)
	go func() {
		_, err := ep.ResolveAddrInfo(ctx, "no GID", "7471", hints)
		result <- err
	}()
	for EndpointCalls(ep) == 0 {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	hints.Flags = 0

	first, second := &Event{Type: EventAddrInfoResolved}, &Event{Type: EventAddrInfoResolved}
	c := ep.inbox.expect(anyOf(EventAddrInfoResolved))
	ep.inbox.put(first)
	require.Nil(t, c.event)
	ep.inbox.put(second)
	require.Same(t, second, c.event)
	ep.id.mu.Unlock()
	require.NoError(t, ep.id.object.Close(nil, func() error { return nil }), "when the look-up is done")
}

// One that could not be started takes no answer away from others.
func TestLookupThatFails(t *testing.T) {
	ep := offlineEndpoint(t)
	ep.id.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := ep.ResolveAddrInfo(ctx, "a name with a \x00", "7471", nil)
		result <- err
	}()
	for EndpointCalls(ep) == 0 {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	ep.id.mu.Unlock()
	for EndpointCalls(ep) > 0 {
		runtime.Gosched()
	}
}
