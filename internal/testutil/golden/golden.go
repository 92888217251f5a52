// SPDX-License-Identifier: Apache-2.0

// Package golden compares what the Go side says with what C said, which is
// kept in tests/golden.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update rewrites golden files instead of comparing.
var Update = flag.Bool("update", false, "rewrite the golden files")

// Compare compares text with a golden file, or rewrites it.
func Compare(t *testing.T, path, text string) {
	t.Helper()
	if *Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s differs; -update rewrites it", path)
}
