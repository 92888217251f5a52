package rdmacm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// A connection goes on while its id moves from channel to channel, and events
// that nobody has read move with it.
func TestMigratedEvents(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	other := newChannel(t)
	a := ask(t, d.IPv4, plainRequest())
	require.NoError(t, a.server.id.Migrate(other)) // which it came for
	require.NoError(t, a.server.id.Accept(rdmacm.ConnParam{QPNum: newQP()}))
	next(t, a.client.ch, rdmacm.EventConnectResponse)
	require.NoError(t, a.client.id.Establish())
	require.Same(t, a.server.id, next(t, other, rdmacm.EventEstablished).ID)

	require.NoError(t, a.client.id.Migrate(a.client.ch), "where it is")
	require.NoError(t, a.server.id.Disconnect())
	awaitKernelID(t, "state DISCONNECT") // the event is there, or about to be
	require.NoError(t, a.client.id.Migrate(other))
	ev, ok, err := a.client.ch.Poll()
	require.NoError(t, err)
	require.False(t, ok, "%v", ev)
	ended := map[*rdmacm.ID]bool{}
	require.NoError(t, a.client.id.Disconnect())
	for range 2 {
		ended[next(t, other, rdmacm.EventDisconnected).ID] = true
	}
	require.Equal(t, map[*rdmacm.ID]bool{a.client.id: true, a.server.id: true}, ended)
}
