// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(Commands)

func TestMisused(t *testing.T) {
	for _, line := range []string{"", "fly", "run", "run -l", "run -x", "libs", "libs a b", "libs -x", "stat a", "stat -x"} {
		status, stdout, stderr := tested.Run(line)
		require.Equal(t, 2, status, line)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "softroce")
	}
	for _, line := range []string{"-h", "run -h", "libs -h", "stat -h"} {
		status, stdout, stderr := tested.Run(line)
		require.Zero(t, status, line)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "softroce ")
	}
	for _, line := range []string{"run no-such-program", "run /dev", "run -l /nowhere true"} {
		status, stdout, stderr := tested.Run(line)
		require.Equal(t, 1, status, line)
		require.Empty(t, stdout)
		require.NotEmpty(t, stderr)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "/before")
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("ASAN_OPTIONS", "")
	t.Setenv("VERBENA_DEVICE", "other")
	got := strings.Join(environment("/ours"), "\n") + "\n"
	require.Contains(t, got, "LD_LIBRARY_PATH=/ours:/before\n")
	require.Contains(t, got, "LD_PRELOAD=/ours/libverbena-files.so\n")
	require.NotContains(t, got, "LD_PRELOAD=\n")
	require.Contains(t, got, "ASAN_OPTIONS=verify_asan_link_order=0\n")
	require.Contains(t, got, "VERBENA_DEVICE=soft\n")
	require.NotContains(t, got, "VERBENA_DEVICE=other")

	t.Setenv("LD_PRELOAD", "libother.so")
	t.Setenv("ASAN_OPTIONS", "halt_on_error=0")
	t.Setenv("VERBENA_DEVICE", "soft:udp=127.0.0.2") // the network is the caller's choice
	got = strings.Join(environment("/ours"), "\n") + "\n"
	require.Contains(t, got, "VERBENA_DEVICE=soft:udp=127.0.0.2\n")
	require.NotContains(t, got, "VERBENA_DEVICE=soft\n")
	require.Contains(t, got, "LD_PRELOAD=/ours/libverbena-files.so:libother.so\n")
	require.Contains(t, got, "ASAN_OPTIONS=verify_asan_link_order=0:halt_on_error=0\n")
}

// The loader splits its variables at spaces, colons and semicolons.
func TestFolderThatTheLoaderCannotName(t *testing.T) {
	for _, name := range []string{"a b", "a:b", "a;b"} {
		folder := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.MkdirAll(folder, 0o755))
		for _, path := range names(folder) {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}
		require.NoError(t, writeFiles(folder, usual))
		err := (&run{folder: folder, args: []string{"true"}}).run(t.Context(), program.Output{})
		require.ErrorContains(t, err, fmt.Sprintf("the system's loader takes no libraries from %q", folder))
	}
}
