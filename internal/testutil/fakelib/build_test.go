// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNewest has versions that are not in the order of their letters.
func TestNewest(t *testing.T) {
	dir := t.TempDir()
	_, err := newest(dir)
	require.EqualError(t, err, "no snapshot in "+dir)
	for _, name := range []string{"9.0", "65.0", "100.0", "99.2", "notes"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), nil, 0o600))
	}
	path, err := newest(dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "100.0.json"), path)
}
