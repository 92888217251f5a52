// SPDX-License-Identifier: Apache-2.0

// Package racing says whether the tests were built with the race detector.
package racing

import "testing"

// NeedsDirectCalls skips a test that measures what posting and polling
// allocate. In programs that are built with -race, C may call Go meanwhile, so
// the arguments of such calls are allocated.
func NeedsDirectCalls(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("under the race detector, posting and polling allocate")
	}
}
