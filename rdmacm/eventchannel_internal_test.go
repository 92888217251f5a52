// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestWakeups(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name   string
		wakes  int // before the wait
		ends   bool
		result func(call int) (bool, error)
		calls  int
		want   error
	}{
		{"an event is there", 0, false, func(int) (bool, error) { return true, nil }, 1, nil},
		{"woken", 1, false, func(call int) (bool, error) { return call == 2, nil }, 2, nil},
		{"woken twice", 2, false, func(call int) (bool, error) { return call == 2, nil }, 2, nil},
		{"no reading", 0, false, func(int) (bool, error) { return false, failed }, 1, failed},
		{"ended before", 1, true, func(int) (bool, error) { return true, nil }, 0, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := make(wakeups, 1)
			for i := range tt.wakes {
				require.Equal(t, i == 0, w.wake())
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.ends {
				cancel()
			}
			calls := 0
			err := w.Wait(ctx, nil, func() (bool, error) {
				calls++
				return tt.result(calls)
			})
			require.ErrorIs(t, err, tt.want)
			require.Equal(t, tt.calls, calls)
		})
	}
	t.Run("ends while it waits", func(t *testing.T) {
		w := make(wakeups, 1)
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := w.Wait(ctx, nil, func() (bool, error) {
			if calls++; calls == 2 { // the first call is before the wait
				cancel()
			}
			w.Kick()
			return false, nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, calls)
		require.NoError(t, w.Close())
	})
}

// A dispatcher has a descriptor only where the device is not in this process. A
// program's channel always has one.
func TestDispatchersDescriptor(t *testing.T) {
	testdevice.Require(t)
	d, err := ownDispatcher()
	require.NoError(t, err)
	if testdevice.Soft() {
		require.Negative(t, d.channel.raw.Fd)
		require.Equal(t, "event channel", d.channel.object.Name())
	} else {
		require.GreaterOrEqual(t, d.channel.raw.Fd, int32(0))
	}
	require.NoError(t, d.release())
	ch, err := NewEventChannel()
	require.NoError(t, err)
	require.GreaterOrEqual(t, ch.raw.Fd, int32(0))
	require.NoError(t, ch.Close())
}
