// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"encoding"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
	"github.com/verbena-go/verbena/ibverbs/link"
)

func TestPortRate(t *testing.T) {
	for _, tt := range []struct {
		old  uint8
		ex   uint32
		wide uint8
		want float64
		name link.LaneSpeed
	}{
		{old: 1, wide: 1, want: 2.5, name: link.SDR},
		{old: 32, wide: 2, want: 100, name: link.EDR},
		{old: 64, ex: 64, wide: 16, want: 100, name: link.HDR},
		{old: 128, ex: 256, wide: 2, want: 800, name: link.XDR}, // the old member has no bit for it
		{old: 16, wide: 8, want: 168, name: link.FDR},
		{old: 3, wide: 8, name: 3},
		{old: 1, wide: 3, name: link.SDR},
	} {
		p := portAttr(&libibverbs.PortAttr{ActiveSpeed: tt.old, ActiveSpeedEx: tt.ex, ActiveWidth: tt.wide})
		require.InDelta(t, tt.want, float64(p.Rate()), 0)
		require.Equal(t, tt.name, p.ActiveSpeed)
	}
}

func TestPortAttr(t *testing.T) {
	require.Equal(t, PortAttr{
		State: link.Active, PhysicalState: link.PhysLinkUp, LinkLayer: link.InfiniBand, MaxMTU: 5, ActiveMTU: 3,
		ActiveWidth: link.Width4X, ActiveSpeed: link.HDR, GIDTableLen: 8, PKeyTableLen: 128, MaxMessageSize: 1 << 30,
		LID: 7, SMLID: 1, SMSL: 2, LMC: 3, MaxVLs: 15, SubnetTimeout: 18, InitTypeReply: 4, GRHRequired: true,
		BadPKeys: 5, QKeyViolations: 6, Capabilities: libibverbs.IBV_PORT_SM, Capabilities2: libibverbs.IBV_PORT_VIRT_SUP,
	}, portAttr(&libibverbs.PortAttr{
		State: 4, PhysState: 5, LinkLayer: 1, MaxMtu: 5, ActiveMtu: 3, ActiveWidth: 2, ActiveSpeed: 64, GidTblLen: 8,
		PkeyTblLen: 128, MaxMsgSz: 1 << 30, Lid: 7, SmLid: 1, SmSl: 2, Lmc: 3, MaxVlNum: 5, SubnetTimeout: 18,
		InitTypeReply: 4, Flags: 1, BadPkeyCntr: 5, QkeyViolCntr: 6, PortCapFlags: 2, PortCapFlags2: 4,
	}))
	for n, lanes := range map[uint8]int{0: 0, 1: 1, 2: 2, 3: 4, 4: 8, 5: 15, 6: 0, 255: 0} {
		require.Equal(t, lanes, portAttr(&libibverbs.PortAttr{MaxVlNum: n}).MaxVLs)
	}
}

// text checks that values come back from their text, and that others do not.
func text[T comparable, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, values []T, bad ...string) {
	t.Helper()
	for _, v := range values {
		b, err := any(v).(encoding.TextMarshaler).MarshalText()
		require.NoError(t, err)
		var back T
		require.NoError(t, P(&back).UnmarshalText(b), "%s", b)
		require.Equal(t, v, back)
	}
	for _, s := range bad {
		var zero, back T
		require.Error(t, P(&back).UnmarshalText([]byte(s)), "%q", s)
		require.Equal(t, zero, back)
	}
}

func TestTexts(t *testing.T) {
	text[MTU](t, []MTU{0, 1, 2, 3, 4, 5}, "", "255", "8192", "-256", "1024 ", "x")
	text[GIDType](t, []GIDType{0, 1, 2, 3, math.MaxUint32}, "", "RoCE", "v2")
	text[GID](t, []GID{{}, {0xfe, 0x80, 15: 1}, {10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 1}},
		"", "192.0.2", "fe80::1%eth0", "1:2:3", "192.0.2.1/24")
	text[GUID](t, []GUID{0, 1, 0x0002c90300014aef, math.MaxUint64}, "", "1:2:3", "1", "0x1", "g:0:0:0", "10002:c903:0001:4aef", "0:0:0:-1")
}

func TestParseGID(t *testing.T) {
	g, err := ParseGID("192.0.2.1")
	require.NoError(t, err)
	require.Equal(t, "0000:0000:0000:0000:0000:ffff:c000:0201", g.String())
	g, err = ParseGID("2001:db8::1")
	require.NoError(t, err)
	require.Equal(t, "2001:0db8:0000:0000:0000:0000:0000:0001", g.String())
}

func TestParseGUID(t *testing.T) {
	for s, want := range map[string]GUID{
		"0002:c903:0001:4aef": 0x0002c90300014aef, "2:c903:1:4aef": 0x0002c90300014aef,
		"0002c90300014aef": 0x0002c90300014aef, "0x0002c90300014AEF": 0x0002c90300014aef,
	} {
		got, err := ParseGUID(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestPortInfoJSON(t *testing.T) {
	want := DeviceInfo{
		Device: DeviceEntry{Name: "mlx5_0", GUID: 0x0002c90300014aef, NodeType: libibverbs.IBV_NODE_CA, Index: 3},
		Attr: DeviceAttr{
			FirmwareVersion: "16.35", MaxQP: 9, Capabilities: caps.XRC | caps.RawScatterFCS, AtomicCap: 2,
			ODP: caps.ODP{RC: libibverbs.IBV_ODP_SUPPORT_READ}, TSO: caps.TSO{QPTypes: 1 << 8},
		},
		Ports: []PortInfo{{
			Port: 1, PortAttr: PortAttr{State: 9, PhysicalState: link.PhysLinkUp, ActiveMTU: 5, ActiveWidth: link.Width4X, ActiveSpeed: link.HDR},
			Rate: 200, NetDev: "eth0",
			GIDs: []GIDEntry{{Port: 1, Index: 2, GID: GID{0xfe, 0x80, 15: 1}, Type: GIDTypeRoCEv2, NetDev: "eth0", NetDevIndex: 4}},
		}},
	}
	b, err := json.Marshal(want)
	require.NoError(t, err)
	for _, part := range []string{
		`"GUID":"0002:c903:0001:4aef"`, `"NodeType":"InfiniBand channel adapter"`, `"MaxQP":9`, `"RC":"IBV_ODP_SUPPORT_READ"`,
		`"QPTypes":"IBV_QPT_RAW_PACKET"`, `"State":"PortState(9)"`, `"PhysicalState":"LinkUp"`, `"ActiveMTU":"4096"`,
		`"ActiveWidth":"4X"`, `"ActiveSpeed":"HDR"`, `"Rate":200`, `"Type":"RoCE v2"`, `"GID":"fe80:0000:0000:0000:0000:0000:0000:0001"`,
		`"Capabilities":"IBV_DEVICE_XRC|IBV_DEVICE_RAW_SCATTER_FCS"`,
	} {
		require.Contains(t, string(b), part)
	}
	var got DeviceInfo
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, want, got)
}

func FuzzParseGUID(f *testing.F) {
	f.Add("0002:c903:0001:4aef")
	f.Add("0x0002c90300014aef")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGUID(s); err == nil {
			again, err := ParseGUID(g.String())
			require.NoError(t, err)
			require.Equal(t, g, again)
		}
	})
}

func FuzzParseGID(f *testing.F) {
	f.Add("192.0.2.1")
	f.Add("fe80::1%eth0")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGID(s); err == nil {
			again, err := ParseGID(g.String())
			require.NoError(t, err)
			require.Equal(t, g, again)
		}
	})
}
