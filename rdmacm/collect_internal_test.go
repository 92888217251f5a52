// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"sync"
	"testing"
	"time"
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
				require.EqualValues(t, unpolled, o.polling.Load(), "the goroutine is still the poller")
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
	o.polling.Store(polled)
	return o.takeTurn(context.Background(), op)
}

func parkFor(o *operations, op *operation) error { return o.park(context.Background(), op) }

// A wait that ends with its context leaves nothing behind that a completion
// would wake. The next wait reuses what it has parked with.
func TestParkingEndsWithTheContext(t *testing.T) {
	o := collecting()
	o.polling.Store(polled) // another goroutine is the poller
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
	require.EqualValues(t, polled, o.polling.Load(), "the other one is not the poller any more")
	require.Zero(t, o.wanting.Load())
}

// When requests are posted together, the first failure is the failure of all,
// whatever completes after it.
func TestFirstFailureCounts(t *testing.T) {
	o := offlineOperations()
	var op operation
	finished := 0
	place := uint64(o.under(&op, 2, func() { finished++ }))
	first := completion(place)
	setStatus(&first, ibverbs.WCRemoteAccess)
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

func setStatus(wc *ibverbs.WC, status ibverbs.WCStatus) {
	*(*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(wc)) + 8)) = uint32(status)
}

// Each turn as poller is counted.
func TestTurnsAreCounted(t *testing.T) {
	o := collecting()
	var op operation
	op.state.Store(over)
	for turn := range uint(2 * turnsPerLook) {
		require.Equal(t, turn, o.turns)
		require.NoError(t, takeTurnFor(o, &op))
	}
}

// The poller lets others run once in yieldAfter.
func TestPollerYields(t *testing.T) {
	c := newCollector(nil, nil)
	yields := 0
	for now := time.Hour; now < time.Hour+10*yieldAfter; now += yieldAfter / 5 {
		if c.mustYield(now) {
			yields++
		}
	}
	require.Equal(t, 10, yields)
}

// One goroutine at a time is the poller, and each goroutine that waits becomes
// the poller some time.
func TestPollersTakeTurns(t *testing.T) {
	const goroutines, turns = 8, 2000
	c := newCollector(nil, nil)
	taken := 0 // not atomic: the race detector notices two pollers at a time
	var all sync.WaitGroup
	turn := func() {
		taken++
		c.endTurn()
	}
	for i := range goroutines {
		all.Go(func() {
			for range turns {
				if i%2 == 0 && c.becomePoller() { // as transfer does, without a wait
					turn()
					continue
				}
				for waiting := true; waiting; c.unwant() {
					if c.want() {
						turn()
						waiting = false
						continue
					}
					<-c.vacant
					if c.becomePoller() {
						turn()
						waiting = false
					}
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, goroutines*turns, taken)
	require.EqualValues(t, goroutines*turns, c.turns)
	require.Zero(t, c.wanting.Load())
	require.EqualValues(t, unpolled, c.polling.Load())
}

// A completion that came with the post ends its operation at once, only if the
// post was successful and nothing else completed.
func TestCompleteAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		n      int
		change func(o *operations, wc *ibverbs.WC)
		done   bool
	}{
		"its own":   {1, func(*operations, *ibverbs.WC) {}, true},
		"none":      {0, func(*operations, *ibverbs.WC) {}, false},
		"two":       {2, func(*operations, *ibverbs.WC) {}, false},
		"a failure": {1, func(_ *operations, wc *ibverbs.WC) { setStatus(wc, ibverbs.WCRemoteAccess) }, false},
		"another operation's": {1, func(o *operations, wc *ibverbs.WC) {
			*wc = completion(uint64(o.under(&operation{}, 1, nil)) | lastRequest)
		}, false},
		"not the last request": {1, func(_ *operations, wc *ibverbs.WC) { *wc = completion(wc.ID() &^ lastRequest) }, false},
		"the program's":        {1, func(_ *operations, wc *ibverbs.WC) { *wc = completion(userRequest) }, false},
		"of shared queues":     {1, func(o *operations, _ *ibverbs.WC) { o.cq = new(ibverbs.CQ) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := collecting()
			var op operation
			o.wcs[0] = completion(uint64(o.under(&op, 1, nil)) | lastRequest)
			tt.change(o, &o.wcs[0])
			require.Equal(t, tt.done, o.completeAtOnce(&op, tt.n))
			require.Equal(t, tt.done, op.isOver())
		})
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
