// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/bridge"
)

// A dispatcher that has failed says so to whoever takes an id's events, also if
// that begins later.
func TestFailedDispatcherTellsSinks(t *testing.T) {
	d := &dispatcher{handlers: map[*ID]func(*Event){}}
	var got []*Event
	sink := bridge.Sink{Put: func(ev any) { got = append(got, ev.(*Event)) }}
	before, after := new(ID), new(ID)
	(&dispatched{id: before, dispatcher: d}).Start(sink)
	d.failAll(fmt.Errorf("read: %w", syscall.ENOMEM))
	(&dispatched{id: after, dispatcher: d}).Start(sink)
	require.Len(t, got, 2)
	for i, id := range []*ID{before, after} {
		require.Same(t, id, got[i].ID)
		require.Equal(t, EventConnectError, got[i].Type)
		require.ErrorIs(t, got[i].Err(), syscall.ENOMEM)
	}
}

// A request goes to whoever has room for it, and is refused otherwise.
func TestDispatchedRequests(t *testing.T) {
	for _, hasRoom := range []bool{true, false} {
		d := &dispatcher{handlers: map[*ID]func(*Event){}}
		listener, request := new(ID), new(ID)
		listener.backlog.Store(7)
		ev := &Event{Type: EventConnectRequest, ID: request, ListenID: listener}
		var adopted []any
		(&dispatched{id: listener, dispatcher: d}).Start(bridge.Sink{
			Put:  func(any) { t.Error("is no other event") },
			Lock: new(sync.Mutex),
			HasRoom: func(backlog int) bool {
				require.Equal(t, 7, backlog)
				return hasRoom
			},
			Adopt: func(id bridge.DispatchedID, ev any) { adopted = append(adopted, id.ID(), ev) },
		})
		d.dispatch(ev)
		d.refusals.wait()
		if hasRoom {
			require.Equal(t, []any{request, ev}, adopted)
			require.Equal(t, 1, d.users)
			continue
		}
		require.Empty(t, adopted)
		require.Zero(t, d.users)
		require.NotContains(t, d.handlers, request)
	}
}

// An id that another package has is not taken over, not even between its move
// to a program's channel and Release.
func TestTakenOnce(t *testing.T) {
	ch := &EventChannel{}
	id := new(ID)
	id.object.InitUnlisted("an id")
	id.channel.Store(ch)
	id.mu.Lock() // as C would be; so the error does without addresses
	d := &dispatcher{handlers: map[*ID]func(*Event){}, users: 2}
	first := &dispatched{id: id, dispatcher: d}
	first.Start(bridge.Sink{})
	_, err := takeOver(id, bridge.Sink{})
	require.ErrorContains(t, err, "the id has an endpoint already")
	require.Contains(t, d.handlers, id)
	require.NoError(t, first.Release())
	require.False(t, id.taken.Load())
	require.NotContains(t, d.handlers, id)
}
