// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The guide to trouble has every hint that errors end with.
func TestHintsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/guide/troubleshooting.md")
	require.NoError(t, err)
	for op, errnos := range hints {
		for errno, hint := range errnos {
			for _, part := range strings.Split(strings.TrimSuffix(hint, Doctor), ", or the port") { // the page has this apart
				require.True(t, strings.Contains(string(page), part), "%s: %v: the page lacks %q", op, errno, part)
			}
		}
	}
}
