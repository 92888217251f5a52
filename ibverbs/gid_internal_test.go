// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/link"
)

func gidOf(addr string) GID { return GIDFromAddr(netip.MustParseAddr(addr)) }

// roce is the table of a port with an IPv4 and an IPv6 address and a VLAN.
var roce = []GIDEntry{
	{Port: 1, Index: 0, GID: gidOf("fe80::1"), Type: GIDTypeRoCEv1, NetDev: "eth0"},
	{Port: 1, Index: 1, GID: gidOf("fe80::1"), Type: GIDTypeRoCEv2, NetDev: "eth0"},
	{Port: 1, Index: 2, GID: gidOf("192.0.2.1"), Type: GIDTypeRoCEv1, NetDev: "eth0"},
	{Port: 1, Index: 3, GID: gidOf("192.0.2.1"), Type: GIDTypeRoCEv2, NetDev: "eth0"},
	{Port: 1, Index: 4, GID: gidOf("2001:db8::1"), Type: GIDTypeRoCEv2, NetDev: "eth0"},
	{Port: 1, Index: 5, GID: gidOf("198.51.100.1"), Type: GIDTypeRoCEv2, NetDev: "eth0.7"},
}

func TestBestGID(t *testing.T) {
	loopback := []GIDEntry{
		{Port: 1, Index: 0, GID: gidOf("127.0.0.1"), Type: GIDTypeRoCEv2, NetDev: "lo"},
		{Port: 1, Index: 1, GID: gidOf("192.0.2.1"), Type: GIDTypeRoCEv2, NetDev: "eth0"},
	}
	shared := append(roce[2:4:4], GIDEntry{Port: 1, Index: 6, GID: gidOf("203.0.113.1"), Type: GIDTypeRoCEv2, NetDev: elsewhere})
	twins := []GIDEntry{
		{Port: 1, Index: 0, GID: gidOf("fe80::1"), Type: GIDTypeRoCEv2, NetDev: "eth0", NetDevIndex: 2},
		{Port: 1, Index: 1, GID: gidOf("fe80::1"), Type: GIDTypeRoCEv2, NetDev: "eth0.7", NetDevIndex: 5},
	}
	ib := []GIDEntry{{Index: 0, GID: gidOf("fe80::2:c903:1:4aef")}, {Index: 1, GID: gidOf("2001:db8::1")}}
	for name, tt := range map[string]struct {
		entries []GIDEntry
		options GIDConfig
		want    int // index, -1 for none
	}{
		"v2 of an address":            {entries: roce, want: 3},
		"v1 if that is wanted":        {entries: roce, options: GIDConfig{Types: []GIDType{GIDTypeRoCEv1}}, want: 2},
		"an IPv6 address":             {entries: roce, options: GIDConfig{Addr: netip.MustParseAddr("2001:db8::1")}, want: 4},
		"an IPv4 address":             {entries: roce, options: GIDConfig{Addr: netip.MustParseAddr("192.0.2.1")}, want: 3},
		"an IPv4 address, mapped":     {entries: roce, options: GIDConfig{Addr: netip.MustParseAddr("::ffff:192.0.2.1")}, want: 3},
		"link-local if it is wanted":  {entries: roce, options: GIDConfig{Addr: netip.MustParseAddr("fe80::1%eth0")}, want: 1},
		"an interface":                {entries: roce, options: GIDConfig{NetDev: "eth0.7"}, want: 5},
		"global v1 before link-local": {entries: roce[:3], want: 2},
		"link-local if all are":       {entries: roce[:2], want: 1},
		"global IPv6 as good as IPv4": {entries: roce[4:], want: 4},
		"InfiniBand takes the first":  {entries: ib, want: 0},
		"no such address":             {entries: roce, options: GIDConfig{Addr: netip.MustParseAddr("192.0.2.9")}, want: -1},
		"no such interface":           {entries: roce, options: GIDConfig{NetDev: "eth1"}, want: -1},
		"no type is allowed":          {entries: roce, options: GIDConfig{Types: []GIDType{}}, want: -1},
		"loopback if it is alone":     {entries: loopback[:1], want: 0},
		"another before loopback":     {entries: loopback, want: 1},
		"another namespace's, first":  {entries: append([]GIDEntry{{Index: 9, GID: gidOf("203.0.113.1"), Type: GIDTypeRoCEv2, NetDev: elsewhere}}, roce...), want: 3},
		"another namespace's, wanted": {entries: shared, options: GIDConfig{Addr: netip.MustParseAddr("203.0.113.1")}, want: -1},
		"another namespace's alone":   {entries: shared[2:], want: -1},
		"address of no interface":     {entries: []GIDEntry{{GID: gidOf("203.0.113.1"), Type: GIDTypeRoCEv2}}, want: 0},
		"a zone":                      {entries: twins, options: GIDConfig{Addr: netip.MustParseAddr("fe80::1%eth0.7")}, want: 1},
		"a zone's number":             {entries: twins, options: GIDConfig{Addr: netip.MustParseAddr("fe80::1%5")}, want: 1},
		"a zone without it":           {entries: twins, options: GIDConfig{Addr: netip.MustParseAddr("fe80::1%eth1")}, want: -1},
		"a zone on InfiniBand":        {entries: ib, options: GIDConfig{Addr: netip.MustParseAddr("fe80::2:c903:1:4aef%ib0")}, want: 0},
		"nothing there":               {want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := bestGID(table(tt.entries), tt.options)
			require.Equal(t, tt.want >= 0, ok)
			if ok {
				require.Equal(t, tt.want, got.Index)
			}
		})
	}
}

func TestNoGIDText(t *testing.T) {
	require.EqualError(t, noGID("rxe0 port 1", nil), "rxe0 port 1: no such GID: the GID table is empty; verbena doctor says more")
	err := noGID("rxe0 port 1", table(roce[:2]))
	require.ErrorIs(t, err, ErrNoGID)
	require.EqualError(t, err, "rxe0 port 1: no such GID: there are "+
		"port 1 index 0: fe80:0000:0000:0000:0000:0000:0000:0001 (RoCE v1, eth0); "+
		"port 1 index 1: fe80:0000:0000:0000:0000:0000:0000:0001 (RoCE v2, eth0)")
	err = noGID("rxe0 port 1", table(append(roce[:6:6], roce...)))
	require.True(t, strings.HasSuffix(err.Error(), "; and 4 more"), err.Error())
	host := GIDEntry{Port: 1, GID: gidOf("203.0.113.1"), Type: GIDTypeRoCEv2, NetDev: elsewhere}
	err = noGID("rxe0 port 1", table([]GIDEntry{host, roce[3]}))
	require.EqualError(t, err, "rxe0 port 1: no such GID: there are "+
		"port 1 index 3: 0000:0000:0000:0000:0000:ffff:c000:0201 (RoCE v2, eth0); and 1 in other network namespaces")
	err = noGID("rxe0 port 1", table([]GIDEntry{host}))
	require.ErrorIs(t, err, ErrNoGID)
	require.ErrorContains(t, err, "all GIDs are of network interfaces in other network namespaces")
}

// elsewhere stands for the interface of an entry in another network namespace.
const elsewhere = "elsewhere"

// table returns entries as the kernel has them.
func table(entries []GIDEntry) (all []tableEntry) {
	for _, e := range entries {
		all = append(all, e.on(netDev{name: e.NetDev, index: e.NetDevIndex, addrs: []netip.Addr{e.GID.Addr()}}, e.NetDev != ""))
		if last := &all[len(all)-1]; e.NetDev == elsewhere {
			*last = e.on(netDev{}, true)
		}
	}
	return all
}

// folder writes files below a new folder, which stands for /sys.
func folder(t *testing.T, files map[string]string) sysfs {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return sysfs(dir)
}

func TestSysfsGIDs(t *testing.T) {
	const zero = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	s := folder(t, map[string]string{
		"dev0/ports/1/gids/0":            "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		"dev0/ports/1/gids/1":            "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		"dev0/ports/1/gids/2":            zero,
		"dev0/ports/1/gids/10":           "0000:0000:0000:0000:0000:ffff:c000:0201\n",
		"dev0/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
		"dev0/ports/1/gid_attrs/types/1": "RoCE v2\n", "dev0/ports/1/gid_attrs/types/10": "RoCE v2\n",
		"dev0/ports/1/gid_attrs/ndevs/0": "eth0\n", "dev0/ports/1/gid_attrs/ndevs/1": "eth0\n",
		"dev0/ports/1/gids/3": zero, "dev0/ports/1/gids/4": zero, "dev0/ports/1/gids/5": zero, "dev0/ports/1/gids/6": zero,
		"dev0/ports/1/gids/7": zero, "dev0/ports/1/gids/8": zero, "dev0/ports/1/gids/9": zero,
	})
	local := gidOf("fe80::1")
	got, err := s.gids("dev0", 1, link.Ethernet)
	require.NoError(t, err)
	require.Equal(t, []GIDEntry{
		{Port: 1, Index: 0, GID: local, Type: GIDTypeRoCEv1, NetDev: "eth0"},
		{Port: 1, Index: 1, GID: local, Type: GIDTypeRoCEv2, NetDev: "eth0"},
		{Port: 1, Index: 10, GID: gidOf("192.0.2.1"), Type: GIDTypeRoCEv2},
	}, got)
	got, err = s.gids("dev0", 1, link.InfiniBand)
	require.NoError(t, err)
	require.Equal(t, GIDTypeIB, got[0].Type)

	_, err = s.gid("dev0", 1, 2, link.Ethernet)
	require.ErrorIs(t, err, ErrNoGID)
	require.ErrorContains(t, err, "dev0 port 1: no such GID at index 2")
	for _, missing := range []struct {
		device      string
		port, index int
	}{{"dev0", 1, 11}, {"dev0", 2, 0}, {"dev1", 1, 0}} {
		_, err = s.gid(missing.device, missing.port, missing.index, link.Ethernet)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err = s.gids("dev0", 2, link.Ethernet)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestSysfsGIDsThatAreWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no GID":       {map[string]string{"d/ports/1/gids/0": "hello"}, `ports/1/gids/0: "hello" is not a GID`},
		"empty":        {map[string]string{"d/ports/1/gids/0": ""}, `"" is not a GID`},
		"no index":     {map[string]string{"d/ports/1/gids/x": "::1"}, "gids/x: unexpected file name in a GID table of 1 entries"},
		"large index":  {map[string]string{"d/ports/1/gids/9": "::1"}, "gids/9: unexpected file name in a GID table of 1 entries"},
		"unknown type": {map[string]string{"d/ports/1/gids/0": "::1", "d/ports/1/gid_attrs/types/0": "RoCE v9"}, `gids/0: unknown GID type "RoCE v9"`},
		"type is a folder": {
			map[string]string{"d/ports/1/gids/0": "::1", "d/ports/1/gid_attrs/types/0/x": ""}, "types/0: is a directory",
		},
		"interface is a folder": {
			map[string]string{"d/ports/1/gids/0": "::1", "d/ports/1/gid_attrs/ndevs/0/x": ""}, "ndevs/0: is a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := folder(t, tt.files).gids("d", 1, link.Ethernet)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestGIDEntryAddr(t *testing.T) {
	for text, want := range map[string]string{"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::1", "fe80::1": "fe80::1%eth0", "169.254.0.1": "169.254.0.1"} {
		e := GIDEntry{GID: GIDFromAddr(netip.MustParseAddr(text)), NetDev: "eth0"}
		require.Equal(t, want, e.Addr().String())
	}
}

func TestSysfsBoardID(t *testing.T) {
	s := folder(t, map[string]string{"card/board_id": "MT_0000000008\n", "virtual/x": "", "broken/board_id/x": ""})
	for device, want := range map[string]string{"card": "MT_0000000008", "virtual": "", "none": ""} {
		got, err := s.boardID(device)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := s.boardID("broken")
	require.ErrorContains(t, err, "broken/board_id")
}

func TestSysfsNetDev(t *testing.T) {
	s := folder(t, map[string]string{
		"ib/device/net/ib1/dev_port": "1\n", "ib/device/net/ib0/dev_port": "0\n",
		"ib/device/net/ib0.8001/dev_port": "0\n", "ib/device/net/gone/other": "",
		"virtual/ports/1/state": "", "broken/device/net": "a file",
	})
	for _, tt := range []struct {
		device string
		port   int
		want   string
	}{{"ib", 1, "ib0"}, {"ib", 2, "ib1"}, {"ib", 3, ""}, {"virtual", 1, ""}, {"none", 1, ""}} {
		got, err := s.netDev(tt.device, tt.port)
		require.NoError(t, err)
		require.Equal(t, tt.want, got)
	}
	_, err := s.netDev("broken", 1)
	require.ErrorContains(t, err, "broken/device/net")
}

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
			e.Type = GIDTypeRoCEv2
			want := tableEntry{GIDEntry: GIDEntry{GID: tt.gid, Type: e.Type}, elsewhere: !tt.want}
			if tt.want {
				want.NetDev, want.NetDevIndex = "eth0", 3
			}
			require.Equal(t, want, e.on(d, true))
			require.False(t, e.on(netDev{}, false).elsewhere, "the kernel names none")
		})
	}
	require.False(t, netDev{name: "tun0", index: 4}.has(gidOf("fe80::42:acff:fe11:2")), "without a MAC")
}
