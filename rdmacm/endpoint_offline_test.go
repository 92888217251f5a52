package rdmacm

import (
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
