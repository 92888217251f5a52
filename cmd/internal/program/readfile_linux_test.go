// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pipe without a writer holds up no program longer than its context.
func TestReadPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ReadFile(ctx, pipe, 4)
	require.ErrorIs(t, err, context.Canceled)

	// The reader that the call above left has this writer, too.
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, w.Close())
}
