package rdmacm

import (
	"context"
	"os"
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
