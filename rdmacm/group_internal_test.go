// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// The headers are those of devices, for datagrams to a group and to one end.
func TestGroupSender(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		require.Len(t, b, ibverbs.GRHLen)
		return b
	}
	path := func(group string) ibverbs.AHAttr {
		return ibverbs.AHAttr{Port: 1, SGIDIndex: 3, DGID: ibverbs.GIDFromAddr(netip.MustParseAddr(group))}
	}
	v4 := "0000000000000000000000000000000000000000" + "45b8001c0000400040110000" + "c0000201"
	v6 := "6a512345001c1140" + "20010db8000000000000000000000001"
	for name, tt := range map[string]struct {
		group  string
		header string
		want   ibverbs.AHAttr
		ok     bool
	}{
		"IPv4": {"239.86.69.66", v4 + "ef564542", ibverbs.AHAttr{
			Port: 1, SGIDIndex: 3, HopLimit: 64, TrafficClass: 0xb8, DGID: ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.1")),
		}, true},
		"IPv4, to one":         {group: "239.86.69.66", header: v4 + "c0000202"},
		"IPv4, to other group": {group: "239.86.69.66", header: v4 + "ef564543"},
		"IPv6": {"ff1e::5642", v6 + "ff1e0000000000000000000000005642", ibverbs.AHAttr{
			Port: 1, SGIDIndex: 3, HopLimit: 64, TrafficClass: 0xa5, FlowLabel: 0x12345,
			DGID: ibverbs.GIDFromAddr(netip.MustParseAddr("2001:db8::1")),
		}, true},
		"IPv6, to one": {group: "ff1e::5642", header: v6 + "20010db8000000000000000000000002"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := groupSender(path(tt.group), new(ibverbs.WC), unhex(tt.header))
			require.Equal(t, tt.ok, ok)
			require.Equal(t, tt.want, got)
		})
	}
}
