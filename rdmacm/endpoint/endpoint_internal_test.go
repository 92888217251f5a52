// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// offlineEndpoint returns an endpoint of an ID that C does not know.
func offlineEndpoint() *Endpoint {
	id := new(rdmacm.ID)
	objectOf(id).InitUnlisted("an id")
	return unstarted(id)
}

// What C has of an id is freed with it.
func TestClosedEndpointLeavesCAlone(t *testing.T) {
	ep := offlineEndpoint()
	require.NoError(t, objectOf(ep.id).Close(nil, func() error { return nil }))
	require.ErrorIs(t, ep.Accept(t.Context(), rdmacm.ConnParam{}), os.ErrClosed)
	require.ErrorIs(t, ep.Disconnect(t.Context()), os.ErrClosed)
}

// A group that is left does not answer any more, so nothing waits for it.
func TestCanceledJoin(t *testing.T) {
	ep := offlineEndpoint()
	ctx, cancel := context.WithCancel(t.Context())
	left := 0
	join := func(*int) error { cancel(); return nil }
	_, err := ep.joinGroup(ctx, join, func() error { left++; return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, left)
	require.Zero(t, Calls(ep))
}

// lookUpAndCancel begins a look-up that blocks until resume is called, and ends
// its context. start is what the look-up returns then.
func lookUpAndCancel(t *testing.T, ep *Endpoint, start error) (resume func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resumed, result := make(chan struct{}), make(chan error)
	go func() {
		result <- ep.lookUp(ctx, "look up", func() error {
			<-resumed // as C would be, asking DNS
			return start
		})
	}()
	for Calls(ep) == 0 {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	return func() { close(resumed) }
}

// A look-up whose context has ended goes on, and has its answer for itself when
// that comes.
func TestAbandonedLookup(t *testing.T) {
	ep := offlineEndpoint()
	resume := lookUpAndCancel(t, ep, nil)
	first, second := &rdmacm.Event{Type: rdmacm.EventAddrInfoResolved}, &rdmacm.Event{Type: rdmacm.EventAddrInfoResolved}
	c := ep.inbox.expect(anyOf(rdmacm.EventAddrInfoResolved))
	ep.inbox.put(first)
	require.Nil(t, c.event)
	ep.inbox.put(second)
	require.Same(t, second, c.event)
	resume()
}

// One that could not be started takes no answer away from others.
func TestLookupThatFails(t *testing.T) {
	ep := offlineEndpoint()
	resume := lookUpAndCancel(t, ep, errors.New("no such name"))
	resume()
	for Calls(ep) > 0 {
		runtime.Gosched()
	}
}
