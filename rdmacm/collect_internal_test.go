// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// collecting are operations without a completion queue: each attempt to collect
// from it fails.
func collecting() *operations {
	o := offlineOperations()
	o.collector = newCollector(nil, func([]ibverbs.WC) {})
	return o
}

// A leader collects only while there is something to come: a wait for
// completions has no end if its goroutine has missed the last one, which the
// leader before it has taken.
func TestLeaderCollectsNothingInVain(t *testing.T) {
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
				require.Empty(t, o.lead, "the goroutine still leads")
				if tt.collects {
					require.Error(t, err, "the leader does not collect, and so nobody does")
				} else {
					require.NoError(t, err, "the leader waits for a completion, although none need be under way")
				}
			}
		})
	}
}

// waitAsFirst waits for room as the first of those who do.
func waitAsFirst(o *operations, _ *operation) error {
	turn := o.sends.wait()
	return o.waitForTurn(context.Background(), turn, true, 1)
}

func takeTurnFor(o *operations, op *operation) error {
	o.lead <- struct{}{}
	return o.takeTurn(context.Background(), op)
}

func parkFor(o *operations, op *operation) error { return o.park(context.Background(), op) }
