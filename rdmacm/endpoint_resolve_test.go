package rdmacm

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

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
