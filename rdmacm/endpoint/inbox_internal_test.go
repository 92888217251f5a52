// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// newInbox returns an inbox in which these calls wait.
func newInbox(answers ...func(*rdmacm.Event) bool) (*inbox, []*call) {
	in := &inbox{changed: make(chan struct{})}
	var calls []*call
	for _, f := range answers {
		calls = append(calls, in.expect(f))
	}
	return in, calls
}

func TestInbox(t *testing.T) {
	over := anyOf(rdmacm.EventDisconnected)
	join := anyOf(rdmacm.EventMulticastJoin, rdmacm.EventMulticastError)
	for _, tt := range []struct {
		name   string
		calls  []func(*rdmacm.Event) bool
		events []rdmacm.EventType
		want   []rdmacm.EventType // that answer each call
		kept   []rdmacm.EventType
	}{
		{"no call waits", nil, []rdmacm.EventType{rdmacm.EventUser, rdmacm.EventTimewaitExit}, nil, []rdmacm.EventType{rdmacm.EventUser, rdmacm.EventTimewaitExit}},
		{"the first of two", []func(*rdmacm.Event) bool{join, join}, []rdmacm.EventType{rdmacm.EventMulticastError}, []rdmacm.EventType{rdmacm.EventMulticastError, 99}, nil},
		{
			"each its own",
			[]func(*rdmacm.Event) bool{join, join},
			[]rdmacm.EventType{rdmacm.EventMulticastJoin, rdmacm.EventAddrChange, rdmacm.EventMulticastError},
			[]rdmacm.EventType{rdmacm.EventMulticastJoin, rdmacm.EventMulticastError},
			[]rdmacm.EventType{rdmacm.EventAddrChange},
		},
		{"the end of a connection answers all", []func(*rdmacm.Event) bool{over, join, over}, []rdmacm.EventType{rdmacm.EventDisconnected}, []rdmacm.EventType{rdmacm.EventDisconnected, 99, rdmacm.EventDisconnected}, nil},
		{"the last event answers everything", []func(*rdmacm.Event) bool{over, join}, []rdmacm.EventType{rdmacm.EventConnectError}, []rdmacm.EventType{rdmacm.EventConnectError, rdmacm.EventConnectError}, nil},
		{"a removal is kept as well", []func(*rdmacm.Event) bool{join}, []rdmacm.EventType{rdmacm.EventDeviceRemoval}, []rdmacm.EventType{rdmacm.EventDeviceRemoval}, []rdmacm.EventType{rdmacm.EventDeviceRemoval}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, calls := newInbox(tt.calls...)
			for _, typ := range tt.events {
				in.put(&rdmacm.Event{Type: typ})
			}
			for i, c := range calls {
				if tt.want[i] == 99 {
					require.Nil(t, c.event)
					continue
				}
				require.Equal(t, tt.want[i], c.event.Type)
			}
			var kept []rdmacm.EventType
			for _, ev := range in.events {
				kept = append(kept, ev.Type)
			}
			require.Equal(t, tt.kept, kept)
		})
	}
}

// Calls of one kind are answered in order, also those that have given up.
func TestInboxAbandoned(t *testing.T) {
	join := anyOf(rdmacm.EventMulticastJoin)
	in, calls := newInbox(join, join)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := in.await(ctx, calls[0])
	require.ErrorIs(t, err, context.Canceled)
	first, second := &rdmacm.Event{Type: rdmacm.EventMulticastJoin}, &rdmacm.Event{Type: rdmacm.EventMulticastJoin}
	in.put(first)
	in.put(second)
	got, err := in.await(ctx, calls[1]) // what is there wins
	require.NoError(t, err)
	require.Same(t, second, got)
	got, err = in.next(ctx)
	require.NoError(t, err)
	require.Same(t, first, got)
	_, err = in.next(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// What has come is handed out before the reason why no more will.
func TestInboxEnds(t *testing.T) {
	in, _ := newInbox()
	removal := &rdmacm.Event{Type: rdmacm.EventDeviceRemoval}
	in.put(removal)
	got, err := in.next(t.Context())
	require.NoError(t, err)
	require.Same(t, removal, got)
	_, err = in.next(t.Context())
	require.ErrorIs(t, err, syscall.ENODEV)
	_, err = in.nextRequest(t.Context())
	require.ErrorIs(t, err, syscall.ENODEV)

	in, calls := newInbox(anyOf(rdmacm.EventUser), anyOf(rdmacm.EventUser))
	in.put(&rdmacm.Event{Type: rdmacm.EventUser})
	require.True(t, in.hasRoom(1))
	in.add(new(Endpoint))
	require.False(t, in.hasRoom(1))
	require.True(t, in.hasRoom(2))
	waiting := make(chan error)
	go func() {
		_, err := in.await(t.Context(), calls[1])
		waiting <- err
	}()
	closed := errors.New("first")
	events, requests := in.end(closed)
	require.Empty(t, events)
	require.Len(t, requests, 1)
	require.ErrorIs(t, <-waiting, closed)
	in.end(os.ErrClosed)
	require.ErrorIs(t, in.err(), closed)
	got, err = in.await(t.Context(), calls[0])
	require.NoError(t, err, "its answer was there before")
	require.Equal(t, rdmacm.EventUser, got.Type)
	require.False(t, in.hasRoom(9), "it is over")
}
