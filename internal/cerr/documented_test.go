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
	for _, hint := range []string{noModule, noDevice, noAccess, noDMABuf, oldKernel, notMapped, notReadable, notWritable, sharedFile, ofDevice} {
		require.True(t, strings.Contains(string(page), strings.TrimSuffix(hint, Doctor)), "the page lacks %q", hint)
	}
}
