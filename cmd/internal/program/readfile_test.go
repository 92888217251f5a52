// SPDX-License-Identifier: Apache-2.0

package program

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	text, err := ReadFile(t.Context(), file, 4)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
	_, err = ReadFile(t.Context(), file, 3)
	require.EqualError(t, err, file+" has more than 3 bytes")
	_, err = ReadFile(t.Context(), file+"none", 4)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadFile(t.Context(), filepath.Dir(file), 4)
	require.Error(t, err)
}
