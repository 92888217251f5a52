// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"bytes"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var tested = programtest.Of(Program)

// madeUp are a card with two ports of InfiniBand, and one of Ethernet.
func madeUp() []ibverbs.DeviceInfo {
	fabric := ibverbs.PortInfo{
		Port: 1, Rate: 200, NetDev: "ib0",
		PortAttr: ibverbs.PortAttr{
			State: link.Active, LinkLayer: link.InfiniBand,
			ActiveMTU: 5, MaxMTU: 5, ActiveWidth: link.Width4X, ActiveSpeed: link.HDR,
		},
		GIDs: []ibverbs.GIDEntry{{Port: 1, GID: ibverbs.GID{0xfe, 0x80, 8: 0x24, 15: 1}, Type: ibverbs.GIDTypeIB}},
	}
	down := ibverbs.PortInfo{Port: 2, PortAttr: ibverbs.PortAttr{State: link.Down, LinkLayer: link.InfiniBand, MaxMTU: 5}}
	roce := ibverbs.PortInfo{
		Port: 1, Rate: 100, NetDev: "eth0",
		PortAttr: ibverbs.PortAttr{
			State: link.Active, LinkLayer: link.Ethernet, PhysicalState: link.PhysLinkUp,
			ActiveMTU: 3, MaxMTU: 5, ActiveWidth: link.Width4X, ActiveSpeed: link.EDR,
		},
		GIDs: []ibverbs.GIDEntry{{
			Port: 1, Index: 3, GID: ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.1")),
			Type: ibverbs.GIDTypeRoCEv2, NetDev: "eth0", NetDevIndex: 2,
		}},
	}
	first := ibverbs.DeviceInfo{
		Device: ibverbs.DeviceEntry{Name: "mlx5_0", GUID: 0x2400000000000001}, BoardID: "MT_1", Ports: []ibverbs.PortInfo{fabric, down},
	}
	first.Attr.FirmwareVersion = "20.1"
	first.Attr.MaxQP = 7
	return []ibverbs.DeviceInfo{first, {Device: ibverbs.DeviceEntry{Name: "rxe0", GUID: 2}, Ports: []ibverbs.PortInfo{roce}}}
}

const portTable = `
DEVICE  NODE GUID            FIRMWARE  PORT  PORT GUID            STATE   LINK        MTU           SPEED         INTERFACE
mlx5_0  2400:0000:0000:0001  20.1      1     2400:0000:0000:0001  active  infiniband  4096 of 4096  200 (4X HDR)  ib0
mlx5_0  2400:0000:0000:0001  20.1      2     -                    down    infiniband  0 of 4096     -             -
rxe0    0000:0000:0000:0002  -         1     -                    active  ethernet    1024 of 4096  100 (4X EDR)  eth0
`

const gidTable = `
DEVICE  PORT  INDEX  GID                                      IPV4       TYPE     INTERFACE
mlx5_0  1     0      fe80:0000:0000:0000:2400:0000:0000:0001  -          IB       -
rxe0    1     3      0000:0000:0000:0000:0000:ffff:c000:0201  192.0.2.1  RoCE v2  eth0
`

func printed(t *testing.T, o options, devices []ibverbs.DeviceInfo) string {
	t.Helper()
	var stdout bytes.Buffer
	require.NoError(t, o.print(program.Output{Stdout: &stdout}, devices))
	return stdout.String()
}

func TestTables(t *testing.T) {
	require.Equal(t, strings.TrimSpace(portTable), strings.TrimSpace(printed(t, options{}, madeUp())))
	require.Equal(t, strings.TrimSpace(gidTable), strings.TrimSpace(printed(t, options{gids: true}, madeUp())))
}

func TestAll(t *testing.T) {
	text := printed(t, options{all: true}, madeUp())
	for _, line := range []string{
		"Device\n  Name                      mlx5_0\n", "\nBoardID                     MT_1\n", "\n  MaxQP                     7\n",
		"\n\nDevice\n  Name                      rxe0\n", "\n  LinkLayer                 IBV_LINK_LAYER_ETHERNET\n", "\n  Rate                      100 Gb/s\n",
		"\n  GID                       port 1 index 3: 0000:0000:0000:0000:0000:ffff:c000:0201 (RoCE v2, eth0)\n",
		"\n  TSO\n    MaxPayload              0\n",
	} {
		require.Contains(t, text, line)
	}
	require.Equal(t, 3, strings.Count(text, "Port\n"))
}

func TestJSON(t *testing.T) {
	devices := madeUp()
	devices[0].Attr.MaxMRSize, devices[0].Attr.PageSizeCap = math.MaxUint64, math.MaxUint64-4095
	golden.Compare(t, "testdata/devices.json", printed(t, options{asJSON: true}, devices))
	golden.Compare(t, "testdata/gids.json", printed(t, options{asJSON: true, gids: true}, devices))
	require.Equal(t, "[]\n", printed(t, options{asJSON: true}, nil))
	require.Equal(t, "[]\n", printed(t, options{asJSON: true, gids: true}, nil))
}

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"-v -g": "-v and -g exclude each other",
		"more":  `unexpected argument "more"`,
	} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 2, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
}
