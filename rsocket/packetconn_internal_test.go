// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"encoding/hex"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Destinations that are the same have one form.
func TestDestination(t *testing.T) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	name, number := all[0].Name, strconv.Itoa(all[0].Index)
	anywhere, there := &PacketConn{local: Addr{netip.MustParseAddrPort("[::]:1")}}, &PacketConn{local: Addr{netip.MustParseAddrPort("[fe80::7%there]:1")}}
	for _, test := range []struct {
		c        *PacketConn
		to, want string
	}{
		{anywhere, "[::ffff:192.0.2.1]:7", "192.0.2.1:7"},
		{anywhere, "[fe80::1%" + number + "]:7", "[fe80::1%" + name + "]:7"},
		{anywhere, "[fe80::1%" + name + "]:7", "[fe80::1%" + name + "]:7"},
		{anywhere, "[fe80::1%4294967]:7", "[fe80::1%4294967]:7"},
		{anywhere, "[fe80::1]:7", "[fe80::1]:7"},
		{there, "[fe80::1]:7", "[fe80::1%there]:7"},
		{there, "[2001:db8::1%" + number + "]:7", "[2001:db8::1]:7"},
	} {
		got, err := test.c.destination(netip.MustParseAddrPort(test.to))
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddrPort(test.want), got)
	}
	for _, to := range []string{"[::%1]:7", "0.0.0.0:7", "[::ffff:0.0.0.0]:7", "[ff02::1%1]:7", "192.0.2.1:0"} {
		_, err := anywhere.destination(netip.MustParseAddrPort(to))
		require.ErrorIs(t, err, syscall.EINVAL, to)
	}
	_, err = anywhere.destination(netip.AddrPort{})
	require.ErrorIs(t, err, syscall.EDESTADDRREQ)
}

// Linux reports a bit of the peer's MAC address above the flow label.
func TestPathHasFlowLabel(t *testing.T) {
	rec := libibverbs.SaPathRec{FlowLabel: libibverbs.NewBe32(0x812345), HopLimit: 64, TrafficClass: 7}
	p := &packetPort{isRoCE: true, gid: ibverbs.GIDEntry{Index: 3}}
	require.Equal(t, ibverbs.AHAttr{SGIDIndex: 3, FlowLabel: 0x12345, HopLimit: 64, TrafficClass: 7}, p.ahAttr(&rec))
}

// The sender counts, also where a device leaves the 20 bytes before an IPv4
// header as they were.
func TestIsFrom(t *testing.T) {
	const ipv4 = "4500001c000040004011b6cdc0000201c0000202"
	for name, test := range map[string]struct{ header, from string }{
		"IPv4":                 {strings.Repeat("00", 20) + ipv4, "192.0.2.1"},
		"IPv4 after leftovers": {"60000000" + strings.Repeat("aa", 16) + ipv4, "192.0.2.1"},
		"IPv6":                 {"6000000000001b40" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002", "2001:db8::1"},
		"IPv4 in IPv6":         {"6000000000001b40" + "00000000000000000000ffffc0000201" + "00000000000000000000ffffc0000202", "192.0.2.1"},
		"link-local":           {"6000000000001b40" + "fe800000000000000000000000000001" + "fe800000000000000000000000000002", "fe80::9"},
		"neither":              {strings.Repeat("00", 40), ""},
	} {
		t.Run(name, func(t *testing.T) {
			grh, err := hex.DecodeString(test.header)
			require.NoError(t, err)
			for _, ip := range []string{"192.0.2.1", "2001:db8::1", "fe80::9", "::", "192.0.2.3"} {
				require.Equal(t, ip == test.from, isFrom(netip.MustParseAddr(ip), grh), ip)
			}
		})
	}
}
