// SPDX-License-Identifier: Apache-2.0

//go:build linux

package softroce

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The libraries are built once, and again when something has changed.
func TestBuild(t *testing.T) {
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	folder, err := build(t.Context())
	require.NoError(t, err)
	times := func() (all []int64) {
		for _, name := range names(folder) {
			info, err := os.Stat(name)
			require.NoError(t, err)
			all = append(all, info.ModTime().UnixNano())
		}
		return all[1:] // go build may touch its own
	}
	first := times()
	again, err := find(t.Context())
	require.NoError(t, err)
	require.Equal(t, folder, again)
	require.Equal(t, first, times())
	require.NoError(t, os.Remove(filepath.Join(folder, "libefa.so.1")))
	_, err = build(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, first, times())

	to := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, install(folder, to))
	whole, err := whole(to)
	require.NoError(t, err)
	require.Equal(t, to, whole)

	t.Setenv("CC", "/no/such/compiler")
	_, err = build(t.Context())
	require.ErrorContains(t, err, "which needs Go and a C compiler: ")
	t.Setenv("PATH", "")
	_, err = build(t.Context())
	require.ErrorContains(t, err, `"go": executable file not found`)
}
