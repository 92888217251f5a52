// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// LimitedTo runs the calling test alone in a process whose device in user space
// has limits, and reports whether this is that process. The test must return if
// not.
func LimitedTo(t *testing.T, limits string) bool {
	t.Helper()
	if os.Getenv("VERBENA_LIMITS") == limits {
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "VERBENA_DEVICE=soft", "VERBENA_REQUIRE_DEVICE=1", "VERBENA_LIMITS="+limits, "VERBENA_NETWORK="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}
