package rdmacm

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFailedDispatcherTellsEveryID(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want syscall.Errno
	}{
		{"errno", fmt.Errorf("read: %w", syscall.ENOMEM), syscall.ENOMEM},
		{"no errno", errors.New("read"), syscall.EIO},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &dispatcher{handlers: map[*ID]func(*Event){}}
			var got []*Event
			keep := func(ev *Event) { got = append(got, ev) }
			before, after, gone := new(ID), new(ID), new(ID)
			d.handle(before, keep)
			d.handle(gone, keep)
			d.forget(gone)
			d.failAll(tt.err)
			d.handle(after, keep) // is told too: it would wait for ever
			require.Len(t, got, 2)
			require.Same(t, before, got[0].ID)
			require.Same(t, after, got[1].ID)
			for _, ev := range got {
				require.Equal(t, EventConnectError, ev.Type)
				require.ErrorIs(t, ev.Err(), tt.want)
			}
		})
	}
}

func TestFailedDispatcherEndsListener(t *testing.T) {
	ln := &Listener{requests: make(chan *Request, 1), closed: make(chan struct{})}
	ln.handle(&Event{Type: EventConnectError, Status: -int(syscall.EIO)})
	ln.handle(&Event{Type: EventDeviceRemoval}) // the first cause stays
	_, err := ln.Accept(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "connection failed")
}
