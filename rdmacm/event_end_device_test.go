package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

func requireRejected(t *testing.T, ev *rdmacm.Event, id *rdmacm.ID, reason rdmacm.Reason, data string) {
	t.Helper()
	padding := padded([]byte(data), maxRejectData)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventRejected, ID: id, Status: int(reason), PrivateData: padding}, ev)
	require.Equal(t, &rdmacm.RejectedError{Reason: reason, PrivateData: padding}, ev.Err())
	require.ErrorIs(t, ev.Err(), syscall.ECONNREFUSED)
}

func TestEventRejected(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	t.Run("by nobody", func(t *testing.T) {
		client := newEnd(t)
		client.resolve(netip.AddrPortFrom(d.IPv4, 7))
		require.NoError(t, client.id.Connect(plainRequest()))
		ev := next(t, client.ch, rdmacm.EventRejected)
		requireRejected(t, ev, client.id, rdmacm.ReasonNoListener, "")
		require.EqualError(t, ev.Err(), "connection rejected: nobody listens on the port")
	})
	t.Run("by the program", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Reject([]byte("not you")))
		requireRejected(t, next(t, a.client.ch, rdmacm.EventRejected), a.client.id, rdmacm.ReasonConsumer, "not you")
	})
	t.Run("by the program that closes", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Close())
		requireRejected(t, next(t, a.client.ch, rdmacm.EventRejected), a.client.id, rdmacm.ReasonConsumer, "")
	})
	t.Run("by the dialer that closes", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		require.NoError(t, a.server.id.Accept(rdmacm.ConnParam{QPNum: newQP()}))
		next(t, a.client.ch, rdmacm.EventConnectResponse)
		require.NoError(t, a.client.id.Close())
		requireRejected(t, next(t, a.server.ch, rdmacm.EventRejected), a.server.id, rdmacm.ReasonConsumer, "")
	})
	// A new connection of a queue pair that has one already, as a host asks for
	// that has forgotten it: the kernel refuses the new one and ends the old.
	t.Run("stale", func(t *testing.T) {
		old := ask(t, d.IPv4, plainRequest())
		old.up(t)
		client := newEnd(t)
		client.resolve(old.ln.id.LocalAddr())
		require.NoError(t, client.id.Connect(old.param)) // the same queue pair
		requireRejected(t, next(t, client.ch, rdmacm.EventRejected), client.id, rdmacm.ReasonStale, "")
		requireDisconnected(t, old.client)
		// Its own system has sent the peer away.
	})
}

func requireDisconnected(t *testing.T, e *end) {
	t.Helper()
	ev := next(t, e.ch, rdmacm.EventDisconnected)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventDisconnected, ID: e.id}, ev)
	require.ErrorIs(t, ev.Err(), syscall.ECONNRESET)
	require.EqualError(t, ev.Err(), "disconnected")
}

func requireTimewaitExit(t *testing.T, e *end) {
	t.Helper()
	ev := next(t, e.ch, rdmacm.EventTimewaitExit)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventTimewaitExit, ID: e.id}, ev)
	require.NoError(t, ev.Err())
}

// Whichever end begins, both hear the same, and hear when the connection's
// number may be used again.
func TestEventsOfTheEnd(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	for _, tt := range []struct {
		name string
		by   func(asked) (first, second *end)
	}{
		{"client", func(a asked) (first, second *end) { return a.client, a.server }},
		{"server", func(a asked) (first, second *end) { return a.server, a.client }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t, d.IPv4, plainRequest())
			a.up(t)
			first, second := tt.by(a)
			require.NoError(t, first.id.Disconnect())
			requireDisconnected(t, second)
			require.NoError(t, second.id.Disconnect())
			requireDisconnected(t, first)
			requireTimewaitExit(t, first)
			requireTimewaitExit(t, second)
		})
	}
	t.Run("id closed", func(t *testing.T) {
		a := ask(t, d.IPv4, plainRequest())
		a.up(t)
		require.NoError(t, a.client.id.Close())
		requireDisconnected(t, a.server)
	})
}
