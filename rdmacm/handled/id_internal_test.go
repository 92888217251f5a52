// SPDX-License-Identifier: Apache-2.0

package handled

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestIDNotMade(t *testing.T) {
	none := func(*ID, *rdmacm.Event) error { return nil }
	_, err := New(rdmacm.PortSpaceTCP, nil)
	require.ErrorContains(t, err, "handler")
	for _, h := range []*ID{nil, new(ID)} {
		_, createErr := h.CreateQP(nil, ibverbs.QPConfig{})
		for what, err := range map[string]error{
			"Close": h.Close(), "Shutdown": h.Shutdown(t.Context()), "Listen": h.Listen(1),
			"SetHandler": h.SetHandler(none), "Err": h.Err(), "CreateQP": createErr,
			"a call of its ID": h.ID().SetTOS(1),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, what)
		}
		require.Nil(t, h.Done())
	}
}

// The last event of an id whose events cannot be read goes to the handler,
// whose error ends the id.
func TestFailedEventEndsID(t *testing.T) {
	var got []*rdmacm.Event
	h := unstarted(new(rdmacm.ID), func(_ *ID, ev *rdmacm.Event) error {
		got = append(got, ev)
		return ev.Err()
	})
	failed := &rdmacm.Event{ID: h.id, Type: rdmacm.EventConnectError, Status: -int(syscall.ENOMEM)}
	sink{h}.Put(failed)
	<-h.Done()
	require.Equal(t, []*rdmacm.Event{failed}, got)
	require.ErrorIs(t, h.Err(), syscall.ENOMEM)
}

// What comes to an id that is over is dropped, and requests are refused.
func TestIDThatIsOver(t *testing.T) {
	h := unstarted(new(rdmacm.ID), func(*ID, *rdmacm.Event) error { return nil })
	require.True(t, sink{h}.HasRoom(1))
	h.cause = errors.New("over")
	require.False(t, sink{h}.HasRoom(1))
	sink{h}.Put(&rdmacm.Event{Type: rdmacm.EventDisconnected, ID: h.id}) // dropped without its handler
	require.Eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return !h.working }, time.Minute, time.Millisecond)
	require.Empty(t, h.events)
}
