// SPDX-License-Identifier: Apache-2.0

package program

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWritable(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	require.NoError(t, Writable(file))
	require.NoFileExists(t, file)
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	require.NoError(t, Writable(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
	require.NoError(t, Writable(os.DevNull))
	require.Error(t, Writable(folder))
	require.ErrorIs(t, Writable(filepath.Join(folder, "none", "file")), fs.ErrNotExist)
}
