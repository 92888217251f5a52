package rdmacm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

func TestHandledIDThatNobodyHasMade(t *testing.T) {
	none := func(*HandledID, *Event) error { return nil }
	_, err := NewHandledID(PortSpaceTCP, nil)
	require.ErrorContains(t, err, "handler")
	for _, h := range []*HandledID{nil, new(HandledID)} {
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

// A dispatcher that has failed tells handlers too, whose error ends the ID.
func TestFailedDispatcherTellsHandlers(t *testing.T) {
	d := &dispatcher{handlers: map[*ID]func(*Event){}}
	var got []*Event
	handler := func(_ *HandledID, ev *Event) error {
		got = append(got, ev)
		return ev.Err()
	}
	h := handleID(d, new(ID), handler)
	d.failAll(fmt.Errorf("read: %w", syscall.ENOMEM))
	<-h.Done()
	require.Len(t, got, 1)
	require.Equal(t, EventConnectError, got[0].Type)
	require.ErrorIs(t, h.Err(), syscall.ENOMEM)
}

// What comes to an id that is over is dropped, and requests are refused.
func TestHandledIDThatIsOver(t *testing.T) {
	d := &dispatcher{handlers: map[*ID]func(*Event){}}
	h := handleID(d, new(ID), func(*HandledID, *Event) error { return nil })
	h.cause = errors.New("over")
	request := new(ID)
	h.dispatch(d, &Event{Type: EventConnectRequest, ID: request, ListenID: h.id})
	d.refusals.wait()
	require.NotContains(t, d.handlers, request)
	h.dispatch(d, &Event{Type: EventDisconnected, ID: h.id}) // dropped without its handler
	require.Eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return !h.working }, time.Minute, time.Millisecond)
	require.Empty(t, h.events)
}
