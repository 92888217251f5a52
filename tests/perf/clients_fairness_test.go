// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// No client of many waits for long while the others are served: when they have
// made a number of requests together, each has made at least half of the mean.
// In a short time, a busy machine may let some of them run little, so that more
// requests decide then.
func TestClientsAreServedFairly(t *testing.T) {
	const n, each, least = 50, 1000, 0.5
	d := testdevice.Require(t)
	if !testdevice.Soft() {
		t.Skip("an emulated guest takes too long")
	}
	for _, w := range ways {
		if w.network == "tcp" || w.protocol != "64 B" {
			continue
		}
		t.Run(w.network, func(t *testing.T) {
			slowest := 0.0
			for tries, requests := 0, n*each; tries < 3 && slowest < least; tries, requests = tries+1, 3*requests {
				got, err := converseAll(w, d.IPv4.String(), n, requests)
				require.NoError(t, err)
				slowest = got.Slowest
				t.Logf("of %d requests, the slowest client made %.2f of the mean", requests, slowest)
			}
			require.GreaterOrEqual(t, slowest, least)
		})
	}
}
