// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadLayout(t *testing.T) {
	dir := t.TempDir()
	common := "struct a size 40 align 8\nstruct a.m offset 0 size 40\nunion b size 4 align 4\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lib.layout"), []byte(common), 0o600))
	own := "struct a size 48 align 8\nstruct a.m offset 0 size 48\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lib.arm64.layout"), []byte(own), 0o600))

	require.Equal(t, common, readLayout(t, dir, "lib", "amd64"))
	require.Equal(t, own+"union b size 4 align 4\n", readLayout(t, dir, "lib", "arm64"))
}
