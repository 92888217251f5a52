// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/link"
)

func TestGUIDString(t *testing.T) {
	require.Equal(t, "0002:c903:0001:4aef", GUID(0x0002c90300014aef).String())
	require.Equal(t, "0000:0000:0000:0000", GUID(0).String())
}

func TestGID(t *testing.T) {
	for _, tt := range []struct {
		text, addr string
		gid        GID
	}{
		{"0000:0000:0000:0000:0000:ffff:c000:0201", "192.0.2.1", GID(netip.MustParseAddr("::ffff:192.0.2.1").As16())},
		{"2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1", GID(netip.MustParseAddr("2001:db8::1").As16())},
		{"fe80:0000:0000:0000:5054:00ff:fe12:3456", "fe80::5054:ff:fe12:3456", GID(netip.MustParseAddr("fe80::5054:ff:fe12:3456").As16())},
		{"0000:0000:0000:0000:0000:0000:0000:0000", "::", GID{}},
	} {
		require.Equal(t, tt.text, tt.gid.String())
		require.Equal(t, tt.addr, tt.gid.Addr().String())
		require.Equal(t, tt.gid == GID{}, tt.gid.IsZero())
	}
}

func TestMTU(t *testing.T) {
	for m, bytes := range map[MTU]int{0: 0, 1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 6: 0, 1<<32 - 1: 0} {
		require.Equal(t, bytes, m.Bytes())
	}
	require.Equal(t, "4096", MTU(5).String())
	require.Equal(t, "0", MTU(0).String())
	require.Equal(t, "MTU(6)", MTU(6).String())
}

func TestNamedValues(t *testing.T) {
	require.Equal(t, "active", link.Active.String())
	require.Equal(t, "IBV_QPT_RC", QPTypeRC.String())
	require.Equal(t, "IBV_QPS_RTS", QPStateRTS.String())
	require.Equal(t, "IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ", (AccessLocalWrite | AccessRemoteRead).String())
	require.Equal(t, "IBV_SEND_SIGNALED|IBV_SEND_INLINE", (SendSignaled | SendInline).String())
}

func TestCString(t *testing.T) {
	require.Equal(t, "rxe0", cString([]byte("rxe0\x00garbage")))
	require.Equal(t, "full", cString([]byte("full")))
	require.Empty(t, cString(nil))
}

func TestGUIDParts(t *testing.T) {
	require.EqualValues(t, 0x0002c9, GUID(0x0002c90300014aef).OUI())
	require.False(t, GUID(0x0002c90300014aef).IsReserved())
	require.True(t, GUID(0).IsReserved())
}
