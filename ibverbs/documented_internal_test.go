// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The guide to trouble has the hint of each status.
func TestStatusHintsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/guide/troubleshooting.md")
	require.NoError(t, err)
	hints := 0
	for s := range WCStatus(32) {
		if hint := s.Hint(); hint != "" {
			hints++
			require.True(t, strings.Contains(string(page), "`"+hint+"`"), "%s: %s", s, hint)
		}
	}
	require.Greater(t, hints, 5)
}
