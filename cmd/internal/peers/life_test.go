// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// A flushed request does not hide the end of the connection, whose event may be
// read later, and the end does not hide an error of another kind, whose event
// may be read earlier.
func TestCause(t *testing.T) {
	ended := errors.New("disconnected")
	flushed := &ibverbs.WCError{Status: ibverbs.WCFlushed}
	refused := &ibverbs.WCError{Status: ibverbs.WCRemoteAccess}
	const never, before = -1, 0
	for name, tt := range map[string]struct {
		err  error
		ends time.Duration // time until the connection ends
		want error
	}{
		"no error":                              {nil, before, nil},
		"flushed, then ended":                   {flushed, time.Second, ended},
		"ended, then flushed":                   {flushed, before, ended},
		"flushed without an end":                {flushed, never, flushed},
		"an error of its own, then ended":       {refused, time.Second, refused},
		"ended, then an error of its own":       {refused, before, refused},
		"a wait that the end has ended":         {context.Canceled, before, ended},
		"an error of another function, no wait": {errors.ErrUnsupported, time.Second, errors.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				life, end := context.WithCancelCause(t.Context())
				defer end(nil)
				switch {
				case tt.ends == before:
					end(ended)
				case tt.ends > before:
					time.AfterFunc(tt.ends, func() { end(ended) })
				}
				require.Equal(t, tt.want, Cause(life, tt.err))
			})
		})
	}
}

// A completion that came before the end counts, even if the wait for it noticed
// the end first.
func TestCompleted(t *testing.T) {
	life, end := context.WithCancelCause(t.Context())
	end(errors.New("disconnected"))
	calls := 0
	require.NoError(t, completed(life, func(context.Context) (ibverbs.WC, error) {
		calls++
		if calls == 1 {
			return ibverbs.WC{}, context.Canceled
		}
		return ibverbs.WC{}, nil
	}))
}

// Each event that no other follows ends the connection.
func TestEnded(t *testing.T) {
	for event, ends := range map[rdmacm.EventType]bool{
		rdmacm.EventDisconnected: true, rdmacm.EventDeviceRemoval: true, rdmacm.EventConnectError: true,
		rdmacm.EventRejected: true, rdmacm.EventTimewaitExit: false, rdmacm.EventAddrChange: false,
	} {
		require.Equal(t, ends, Ended(&rdmacm.Event{Type: event}) != nil, event)
	}
}
