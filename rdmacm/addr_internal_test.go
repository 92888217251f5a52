// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// bytesOf returns the bytes of an address as they lie in memory.
func bytesOf(s *sockaddr) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
}

func TestSockaddr(t *testing.T) {
	loopback, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	family := func(n uint16) string { return string(binary.NativeEndian.AppendUint16(nil, n)) }
	zeros := func(n int) string { return string(make([]byte, n)) }
	scope := func(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }
	for _, tt := range []struct {
		name string
		addr netip.AddrPort
		want string
		back netip.AddrPort // the zero value stands for addr
	}{
		{
			name: "IPv4", addr: netip.MustParseAddrPort("192.0.2.1:7471"),
			want: family(2) + "\x1d\x2f\xc0\x00\x02\x01",
		},
		{
			name: "IPv4 in IPv6", addr: netip.MustParseAddrPort("[::ffff:192.0.2.1]:7471"),
			want: family(2) + "\x1d\x2f\xc0\x00\x02\x01", back: netip.MustParseAddrPort("192.0.2.1:7471"),
		},
		{
			name: "IPv6", addr: netip.MustParseAddrPort("[2001:db8::1]:1"),
			want: family(10) + "\x00\x01" + zeros(4) + "\x20\x01\x0d\xb8" + zeros(11) + "\x01" + zeros(4),
		},
		{
			name: "zone by number", addr: netip.MustParseAddrPort("[fe80::1%7]:258"),
			want: family(10) + "\x01\x02" + zeros(4) + "\xfe\x80" + zeros(13) + "\x01" + scope(7),
		},
		{
			name: "zone by name", addr: netip.MustParseAddrPort("[fe80::1%lo]:258"),
			want: family(10) + "\x01\x02" + zeros(4) + "\xfe\x80" + zeros(13) + "\x01" + scope(uint32(loopback.Index)),
		},
		{
			name: "zone of an interface's number", addr: netip.MustParseAddrPort("[fe80::1%" + strconv.Itoa(loopback.Index) + "]:258"),
			want: family(10) + "\x01\x02" + zeros(4) + "\xfe\x80" + zeros(13) + "\x01" + scope(uint32(loopback.Index)),
			back: netip.MustParseAddrPort("[fe80::1%lo]:258"),
		},
		{
			name: "multicast group of a link", addr: netip.MustParseAddrPort("[ff02::1%lo]:0"),
			want: family(10) + zeros(6) + "\xff\x02" + zeros(13) + "\x01" + scope(uint32(loopback.Index)),
		},
		{
			name: "everywhere", addr: netip.AddrPortFrom(netip.Addr{}, 80),
			want: family(10) + "\x00\x50", back: netip.MustParseAddrPort("[::]:80"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := newSockaddr(tt.addr)
			require.NoError(t, err)
			require.Len(t, bytesOf(s), 128)
			require.Equal(t, tt.want+zeros(128-len(tt.want)), string(bytesOf(s)))
			if !tt.back.IsValid() {
				tt.back = tt.addr
			}
			require.Equal(t, tt.back, addrPort(s.ptr()))
		})
	}
}

func TestSockaddrOfUnknownZone(t *testing.T) {
	for _, zone := range []string{"no such zone", "99999999999", "-1"} {
		_, err := newSockaddr(netip.AddrPortFrom(netip.MustParseAddr("fe80::1").WithZone(zone), 1))
		require.ErrorContains(t, err, "IPv6 zone")
	}
}

func TestAddrPortOfOtherFamilies(t *testing.T) {
	for _, family := range []uint16{0, 1, 27} { // none, Unix, InfiniBand
		require.False(t, addrPort(&librdmacm.Sockaddr{SaFamily: family}).IsValid())
	}
}

func FuzzSockaddr(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, uint16(7471), uint32(0))
	f.Add(netip.MustParseAddr("fe80::1").AsSlice(), uint16(1), uint32(3))
	f.Add(netip.MustParseAddr("::ffff:10.0.0.1").AsSlice(), uint16(65535), uint32(0))
	f.Fuzz(func(t *testing.T, ip []byte, port uint16, zone uint32) {
		addr, ok := netip.AddrFromSlice(ip)
		if !ok {
			return
		}
		if zone != 0 && needsZone(addr) {
			addr = addr.WithZone(zoneName(zone))
		}
		s, err := newSockaddr(netip.AddrPortFrom(addr, port))
		require.NoError(t, err)
		require.Equal(t, netip.AddrPortFrom(addr.Unmap(), port), addrPort(s.ptr()))
	})
}
