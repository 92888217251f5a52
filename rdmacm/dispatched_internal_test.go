// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeSink calls functions of the test and notes what it adopts.
type fakeSink struct {
	sync.Mutex
	put     func(*Event)
	hasRoom func(backlog int) bool
	request *ID
	event   *Event
}

func (s *fakeSink) Put(ev *Event)                { s.put(ev) }
func (s *fakeSink) HasRoom(backlog int) bool     { return s.hasRoom(backlog) }
func (s *fakeSink) Adopt(request *ID, ev *Event) { s.request, s.event = request, ev }

// A dispatcher that has failed tells every sink of an id's events, including
// sinks that start later.
func TestFailedDispatcherTellsSinks(t *testing.T) {
	d := &dispatcher{handlers: map[*ID]func(*Event){}}
	var got []*Event
	to := &fakeSink{put: func(ev *Event) { got = append(got, ev) }}
	before, after := new(ID), new(ID)
	(&dispatched{id: before, dispatcher: d}).start(to)
	d.failAll(fmt.Errorf("read: %w", syscall.ENOMEM))
	(&dispatched{id: after, dispatcher: d}).start(to)
	require.Len(t, got, 2)
	for i, id := range []*ID{before, after} {
		require.Same(t, id, got[i].ID)
		require.Equal(t, EventConnectError, got[i].Type)
		require.ErrorIs(t, got[i].Err(), syscall.ENOMEM)
	}
}

// A request goes to a sink that has room for it. Otherwise it is refused.
func TestDispatchedRequests(t *testing.T) {
	for _, hasRoom := range []bool{true, false} {
		d := &dispatcher{handlers: map[*ID]func(*Event){}}
		listener, request := new(ID), new(ID)
		listener.backlog.Store(7)
		ev := &Event{Type: EventConnectRequest, ID: request, ListenID: listener}
		to := &fakeSink{
			put: func(*Event) { t.Error("is no other event") },
			hasRoom: func(backlog int) bool {
				require.Equal(t, 7, backlog)
				return hasRoom
			},
		}
		(&dispatched{id: listener, dispatcher: d}).start(to)
		d.dispatch(ev)
		d.refusals.wait()
		if hasRoom {
			require.Same(t, request, to.request)
			require.Same(t, ev, to.event)
			require.NotNil(t, request.dispatched.Load())
			require.Equal(t, 1, d.users)
			continue
		}
		require.Nil(t, to.request)
		require.Zero(t, d.users)
		require.NotContains(t, d.handlers, request)
	}
}

// An id that another package uses is not taken over, not even between its move
// to a program's channel and Release.
func TestTakenOnce(t *testing.T) {
	ch := &EventChannel{}
	id := new(ID)
	id.object.InitUnlisted("an id")
	id.channel.Store(ch)
	id.mu.Lock() // as C would be; so the error does without addresses
	d := &dispatcher{handlers: map[*ID]func(*Event){}, users: 2}
	first := &dispatched{id: id, dispatcher: d}
	id.dispatched.Store(first)
	first.start(&fakeSink{})
	err := id.takeOver(&fakeSink{})
	require.ErrorContains(t, err, "the id already belongs to an endpoint.Endpoint")
	require.Contains(t, d.handlers, id)
	require.NoError(t, first.release())
	require.Nil(t, id.dispatched.Load())
	require.NotContains(t, d.handlers, id)
}
