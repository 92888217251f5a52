// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// In another network namespace the number of the device's interface is that of
// another one, which has nothing to do with the device.
func TestInterfaceOfAnotherNamespace(t *testing.T) {
	needGuest(t)
	t.Cleanup(func() { system(t, "ip netns delete pod") })
	system(t, "ip netns add pod; "+sameInterface)
	status, stdout, stderr := run(t, append(inPod, process.CmdPath(t, "verbena"), "devices", "-g", "-j")...)
	require.Zero(t, status, stderr)
	var gids []struct {
		NetDev      *string `json:"netdev"`
		NetDevIndex *int    `json:"netdev_index"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &gids))
	require.NotEmpty(t, gids)
	for _, g := range gids {
		require.Empty(t, *g.NetDev)
		require.Zero(t, *g.NetDevIndex)
	}
	status, stdout, stderr = run(t, append(inPod, process.CmdPath(t, "verbena"), "devices", "-j")...)
	require.Zero(t, status, stderr)
	var devices []struct {
		Ports []struct{ NetDev *string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &devices))
	require.Len(t, devices, 1)
	require.Empty(t, *devices[0].Ports[0].NetDev)
}
