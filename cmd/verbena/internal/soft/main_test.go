// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	t.Setenv("VERBENA_DEVICE", "other")
	got := strings.Join(environment("/ours"), "\n") + "\n"
	require.Contains(t, got, "LD_LIBRARY_PATH=/ours:/before\n")
	require.Contains(t, got, "VERBENA_DEVICE=soft\n")
	require.NotContains(t, got, "VERBENA_DEVICE=other")

	t.Setenv("VERBENA_DEVICE", "soft:udp=127.0.0.2") // the network is the caller's choice
	got = strings.Join(environment("/ours"), "\n") + "\n"
	require.Contains(t, got, "VERBENA_DEVICE=soft:udp=127.0.0.2\n")
	require.NotContains(t, got, "VERBENA_DEVICE=soft\n")
}
