// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMisused(t *testing.T) {
	for _, line := range []string{"", "fly", "run", "run -l", "run -x", "libs", "libs a b", "libs -x", "stat a", "stat -x"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, Main(strings.Fields(line), &stdout, &stderr), line)
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), "softroce")
	}
	for _, line := range []string{"-h", "run -h", "libs -h", "stat -h"} {
		var stdout, stderr bytes.Buffer
		require.Zero(t, Main(strings.Fields(line), &stdout, &stderr), line)
		require.Empty(t, stderr.String())
		require.Contains(t, stdout.String(), "softroce ")
	}
	for _, line := range []string{"run no-such-program", "run /dev", "run -l /nowhere true"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 1, Main(strings.Fields(line), &stdout, &stderr), line)
		require.Empty(t, stdout.String())
		require.NotEmpty(t, stderr.String())
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
