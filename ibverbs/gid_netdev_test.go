package ibverbs

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A GID belongs to the interface that has the address which it is made from.
func TestNetDevHasGID(t *testing.T) {
	d := netDev{
		name: "eth0", index: 3, mac: net.HardwareAddr{0x02, 0x42, 0xac, 0x11, 0x00, 0x02},
		addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::7")},
	}
	iWARP := GID{0x02, 0x42, 0xac, 0x11, 0x00, 0x02}
	longer := iWARP
	longer[15] = 1
	for name, tt := range map[string]struct {
		gid  GID
		want bool
	}{
		"IPv4":                           {gidOf("192.0.2.1"), true},
		"IPv6":                           {gidOf("2001:db8::1"), true},
		"link-local":                     {gidOf("fe80::7"), true},
		"default":                        {gidOf("fe80::42:acff:fe11:2"), true},
		"default of another":             {gidOf("fe80::42:acff:fe11:3"), false},
		"global with the MAC":            {gidOf("2001:db8::42:acff:fe11:2"), false},
		"IPv4 of another":                {gidOf("192.0.2.2"), false},
		"IPv6 of another":                {gidOf("2001:db8::2"), false},
		"iWARP":                          {iWARP, true},
		"begins as iWARP's, but is none": {longer, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, d.has(tt.gid))
			require.False(t, netDev{}.has(tt.gid), "no interface")
			e := GIDEntry{GID: tt.gid, NetDev: "eth0", NetDevIndex: 3}
			e.setNetDev(d)
			want := GIDEntry{GID: tt.gid}
			if tt.want {
				want.NetDev, want.NetDevIndex = "eth0", 3
			}
			require.Equal(t, want, e)
		})
	}
	require.False(t, netDev{name: "tun0", index: 4}.has(gidOf("fe80::42:acff:fe11:2")), "without a MAC")
}
