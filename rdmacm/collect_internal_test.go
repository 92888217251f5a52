// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// collecting returns operations without a completion queue. Every attempt to
// collect completions fails.
func collecting() *operations {
	o := offlineOperations()
	o.collector = newCollector(nil, func([]ibverbs.WC) {})
	return o
}

// A poller collects only while completions are due. The last completion may
// have been taken by the poller before it; then a wait for completions would
// not end.
func TestPollerCollectsNothingInVain(t *testing.T) {
	const rounds = 100 // select chooses at random
	for name, tt := range map[string]struct {
		used     int
		op       int32
		wait     func(o *operations, op *operation) error
		collects bool
	}{
		"room":         {1, idle, waitAsFirst, false},
		"no room":      {2, idle, waitAsFirst, true},
		"over":         {1, over, takeTurnFor, false},
		"in flight":    {1, inFlight, takeTurnFor, true},
		"parked, over": {1, over, parkFor, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range rounds {
				o := collecting()
				o.sends.used = tt.used
				var op operation
				op.state.Store(tt.op)
				err := tt.wait(o, &op)
				require.Empty(t, o.polling, "the goroutine is still the poller")
				if tt.collects {
					require.Error(t, err, "the poller does not collect, and no other goroutine does")
				} else {
					require.NoError(t, err, "the poller waits for a completion, although none need be under way")
				}
			}
		})
	}
}

// waitAsFirst waits for room as the first goroutine of the queue.
func waitAsFirst(o *operations, _ *operation) error {
	turn := o.sends.wait()
	return o.waitForTurn(context.Background(), turn, true, 1)
}

func takeTurnFor(o *operations, op *operation) error {
	o.polling <- struct{}{}
	return o.takeTurn(context.Background(), op)
}

func parkFor(o *operations, op *operation) error { return o.park(context.Background(), op) }

// A wait that ends with its context leaves nothing behind that a completion
// would wake. The next wait reuses what it has parked with.
func TestParkingEndsWithTheContext(t *testing.T) {
	o := collecting()
	o.polling <- struct{}{} // another goroutine is the poller
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	op := &operation{}
	op.state.Store(inFlight)
	for range 2 {
		require.ErrorIs(t, o.park(ctx, op), context.Canceled)
		require.Empty(t, op.waiters)
		require.Len(t, o.parked, 1)
		require.Empty(t, o.parked[0])
	}
	require.Len(t, o.polling, 1, "the other one is not the poller any more")
}

// When requests are posted together, the first failure is the failure of all,
// whatever completes after it.
func TestFirstFailureCounts(t *testing.T) {
	o := offlineOperations()
	var op operation
	finished := 0
	place := uint64(o.under(&op, 2, func() { finished++ }))
	first := completion(place)
	*(*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(&first)) + 8)) = uint32(ibverbs.WCRemoteAccess)
	require.Equal(t, ibverbs.WCRemoteAccess, first.Status())
	o.complete(&first)
	require.False(t, op.isOver())
	last := completion(place | lastRequest)
	o.complete(&last)
	require.True(t, op.isOver())
	require.True(t, op.failed)
	require.Equal(t, ibverbs.WCRemoteAccess, op.wc.Status())
	require.Equal(t, 1, finished)
	o.end(&op) // as abort might
	require.Equal(t, 1, finished, "finish is called once")
}

// Each turn as poller is counted. The poller gives way every yieldEvery turns.
func TestTurnsAreCounted(t *testing.T) {
	o := collecting()
	var op operation
	op.state.Store(over)
	for turn := range uint(2 * yieldEvery) {
		require.Equal(t, turn, o.turns)
		require.NoError(t, takeTurnFor(o, &op))
	}
}

// An object that is no longer in use is reused by one goroutine only.
func TestRecycledIsTakenOnce(t *testing.T) {
	o := offlineOperations()
	transfer, receive := o.takeTransfer(), o.takeReceive()
	o.recycle(transfer)
	receive.conn = new(DatagramConn)
	o.recycleReceive(receive)
	require.Nil(t, receive.conn, "it keeps no connection")
	require.Same(t, transfer, o.takeTransfer())
	require.NotSame(t, transfer, o.takeTransfer())
	require.Same(t, receive, o.takeReceive())
	require.NotSame(t, receive, o.takeReceive())
	transfer.giveBack()
	require.Same(t, transfer, o.takeTransfer())
}

// An operation that was not posted frees its place and can be posted again.
func TestWithdraw(t *testing.T) {
	o := offlineOperations()
	var op operation
	places := len(o.places)
	require.True(t, op.claim())
	op.begin(1, &work{}, func() { require.Fail(t, "it has not ended") })
	place, _ := o.place(&op)
	require.False(t, op.claim(), "it is in flight")
	require.Len(t, o.places, places-1)
	o.withdraw(&op, place)
	require.Nil(t, o.inFlight[place])
	require.Len(t, o.places, places)
	require.Nil(t, op.finish)
	require.True(t, op.claim())
}
