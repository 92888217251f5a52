package doctor

import (
	"encoding/json"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// makePod makes the network namespace pod with an interface that has the name
// and the number of the device's interface, which stays outside. It returns
// what starts a program in there.
func makePod(t *testing.T, netDev string) []string {
	t.Helper()
	nic, err := net.InterfaceByName(netDev)
	require.NoError(t, err)
	system(t, "ip netns add pod")
	t.Cleanup(func() { system(t, "ip netns delete pod") })
	system(t, fmt.Sprintf("ip -n pod link add %s index %d type dummy", netDev, nic.Index))
	system(t, fmt.Sprintf("ip -n pod link set lo up; ip -n pod link set %s up; ip -n pod address add 203.0.113.2/24 dev %[1]s", netDev))
	return []string{"ip", "netns", "exec", "pod"}
}

// In another network namespace the number of the device's interface is that of
// another one, which has nothing to do with the device.
func TestInterfaceOfAnotherNamespace(t *testing.T) {
	d := needGuest(t)
	pod := makePod(t, d.NetDev)
	status, stdout, stderr := run(t, "rdmadevices", append(pod, self(t), "-g", "-j")...)
	require.Zero(t, status, stderr)
	var gids []ibverbs.GIDEntry
	require.NoError(t, json.Unmarshal([]byte(stdout), &gids))
	require.NotEmpty(t, gids)
	for _, g := range gids {
		require.Empty(t, g.NetDev, g)
		require.Zero(t, g.NetDevIndex, g)
	}
	status, stdout, stderr = run(t, "rdmadevices", append(pod, self(t), "-j")...)
	require.Zero(t, status, stderr)
	var devices []ibverbs.DeviceInfo
	require.NoError(t, json.Unmarshal([]byte(stdout), &devices))
	require.Len(t, devices, 1)
	require.Empty(t, devices[0].Ports[0].NetDev)
}
