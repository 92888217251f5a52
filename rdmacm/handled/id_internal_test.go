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
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestIDThatNobodyHasMade(t *testing.T) {
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

// offline is an id without anything of C's, whose events come from the test.
type offline struct {
	bridge.DispatchedID
	id   *rdmacm.ID
	sink bridge.Sink
}

func (o *offline) ID() any              { return o.id }
func (o *offline) Start(to bridge.Sink) { o.sink = to }

// The last event of an id whose events cannot be read goes to the handler, whose
// error ends the id.
func TestFailedEventEndsID(t *testing.T) {
	o := &offline{id: new(rdmacm.ID)}
	var got []*rdmacm.Event
	h := newID(o, func(_ *ID, ev *rdmacm.Event) error {
		got = append(got, ev)
		return ev.Err()
	})
	failed := &rdmacm.Event{ID: o.id, Type: rdmacm.EventConnectError, Status: -int(syscall.ENOMEM)}
	o.sink.Put(failed)
	<-h.Done()
	require.Equal(t, []*rdmacm.Event{failed}, got)
	require.ErrorIs(t, h.Err(), syscall.ENOMEM)
}

// What comes to an id that is over is dropped, and requests are refused.
func TestIDThatIsOver(t *testing.T) {
	o := &offline{id: new(rdmacm.ID)}
	h := newID(o, func(*ID, *rdmacm.Event) error { return nil })
	require.True(t, o.sink.HasRoom(1))
	h.cause = errors.New("over")
	require.False(t, o.sink.HasRoom(1))
	o.sink.Put(&rdmacm.Event{Type: rdmacm.EventDisconnected, ID: o.id}) // dropped without its handler
	require.Eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return !h.working }, time.Minute, time.Millisecond)
	require.Empty(t, h.events)
}
