// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// No client of many waits for long while the others are served: when they have
// made a number of requests together, each has made at least half of the mean.
func TestClientsAreServedFairly(t *testing.T) {
	const n, each = 50, 1000
	d := testdevice.Require(t)
	if !testdevice.Soft() {
		t.Skip("an emulated guest takes too long")
	}
	for _, w := range ways {
		if w.network == "tcp" || w.protocol != "64 B" {
			continue
		}
		t.Run(w.network, func(t *testing.T) {
			got, err := converseAll(w, d.IPv4.String(), n, n*each)
			require.NoError(t, err)
			t.Logf("the slowest client made %.2f of the mean", got.Slowest)
			require.GreaterOrEqual(t, got.Slowest, 0.5)
		})
	}
}
