// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// With the files of a GPU's driver and library, the report says what the device
// can do with the memory; Soft-RoCE can do nothing.
func TestGPUMemory(t *testing.T) {
	needGuest(t)
	program := public(t, "verbena")
	ofGPU := func(f finding) bool { return f.Check == "GPU memory" }
	require.False(t, slices.ContainsFunc(examine(t, program, nil, "").Findings, ofGPU), "there is no GPU")

	withGPU := []string{
		"unshare", "-m", "sh", "-ec", `mount -t tmpfs none /proc/driver; mkdir /proc/driver/nvidia
		echo 'NVRM version: NVIDIA UNIX Open Kernel Module' >/proc/driver/nvidia/version
		mount -t tmpfs none /usr/local/lib; touch /usr/local/lib/libcuda.so.1; exec "$@"`, "sh",
	}
	findings := examine(t, program, withGPU, "").Findings
	i := slices.IndexFunc(findings, ofGPU)
	require.GreaterOrEqual(t, i, 0)
	t.Logf("%+v", findings[i])
	require.Equal(t, "warn", findings[i].Status)
	require.Contains(t, findings[i].Found, "NVIDIA: the GPU's memory cannot be registered, not as a DMA buffer: rxe0 cannot do it; ")
}
