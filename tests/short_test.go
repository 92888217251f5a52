// SPDX-License-Identifier: Apache-2.0

package tests

import "testing"

// notShort leaves a test out of go test -short, for a reason. CI runs it.
func notShort(t *testing.T, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: %s; CI runs it", reason)
	}
}
