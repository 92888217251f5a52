// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/hex"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The bytes are those of C's structs ds_header and ds_udp_header.
func TestDatagramWire(t *testing.T) {
	for _, test := range []struct{ addr, header, data, answer string }{
		{
			"192.0.2.1:7174", "0408" + "1c06" + "c0000201",
			"55555555" + "04001000" + "00abcdef" + "c0000201", "55555555" + "04071000" + "00abcdef" + "c0000201",
		},
		{
			"[2001:db8::1]:1", "0618" + "0001" + "00000000" + "20010db8000000000000000000000001",
			"55555555" + "06001c00" + "00abcdef" + "20010db8000000000000000000000001",
			"55555555" + "06071c00" + "00abcdef" + "20010db8000000000000000000000001",
		},
	} {
		at := netip.MustParseAddrPort(test.addr)
		header := AppendHeader(nil, at)
		require.Equal(t, test.header, hex.EncodeToString(header))
		require.Len(t, header, HeaderLen(at.Addr()))
		from, data, err := ParseDatagram(append(header, "hello"...))
		require.NoError(t, err)
		require.Equal(t, at, from)
		require.Equal(t, "hello", string(data))

		for _, g := range []Greeting{{0xabcdef, at.Addr(), true}, {0xabcdef, at.Addr(), false}} {
			want, tail := test.answer, ""
			if g.Data {
				want, tail = test.data, "hello"
			}
			b := g.Append(nil)
			require.Equal(t, want, hex.EncodeToString(b))
			require.Equal(t, DatagramLen, len(b)+MaxDatagram(at.Addr()))
			got, data, err := ParseGreeting(append(b, tail...), at.Addr())
			require.NoError(t, err)
			require.Equal(t, g, got)
			require.Equal(t, tail, string(data))
		}
	}
}

func TestDatagramRefused(t *testing.T) {
	for name, s := range map[string]string{
		"empty":                            "",
		"short":                            "0408 1c06 c00002",
		"version":                          "0508 1c06 c0000201",
		"length":                           "0409 1c06 c0000201 00",
		"length of the other version":      "0418 1c06 c0000201 000000000000000000000000000000000000",
		"short, IPv6":                      "0618 0001 00000000 20010db80000000000000000000000",
		"unspecified":                      "0408 1c06 00000000",
		"multicast":                        "0408 1c06 e0000001",
		"unspecified, IPv6":                "0618 0001 00000000 00000000000000000000000000000000",
		"port 0":                           "0408 0000 c0000201",
		"unspecified, IPv4 mapped":         "0618 0001 00000000 00000000000000000000ffff00000000",
		"length 0":                         "0400 1c06 c0000201",
		"length beyond the datagram, IPv4": "04ff 1c06 c0000201",
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := ParseDatagram(unhex(t, s))
			require.ErrorIs(t, err, ErrViolation)
		})
	}
	for name, s := range map[string]string{
		"empty":                 "",
		"short":                 "55555555 04001000 00abcdef c00002",
		"tag":                   "55555556 04001000 00abcdef c0000201",
		"version":               "55555555 06001000 00abcdef c0000201",
		"length":                "55555555 04001c00 00abcdef c0000201",
		"operation":             "55555555 04011000 00abcdef c0000201",
		"management":            "55555555 04001000 00000001 c0000201",
		"multicast":             "55555555 04001000 00ffffff c0000201",
		"an answer with a tail": "55555555 04071000 00abcdef c0000201 00",
	} {
		t.Run("greeting, "+name, func(t *testing.T) {
			_, _, err := ParseGreeting(unhex(t, s), netip.MustParseAddr("192.0.2.1"))
			require.ErrorIs(t, err, ErrViolation)
		})
	}
	_, _, err := ParseGreeting(Greeting{7, netip.MustParseAddr("192.0.2.1"), true}.Append(nil), netip.IPv6Loopback())
	require.ErrorIs(t, err, ErrViolation)
}

func FuzzDatagram(f *testing.F) {
	for _, addr := range []string{"192.0.2.1:7174", "[2001:db8::1]:1"} {
		at := netip.MustParseAddrPort(addr)
		f.Add(AppendHeader(nil, at), at.Addr().Is4())
		f.Add(append(Greeting{77, at.Addr(), true}.Append(nil), "hello"...), at.Addr().Is4())
		f.Add(Greeting{77, at.Addr(), false}.Append(nil), at.Addr().Is4())
	}
	f.Fuzz(func(t *testing.T, b []byte, is4 bool) {
		if from, data, err := ParseDatagram(b); err != nil {
			require.ErrorIs(t, err, syscall.EPROTO)
		} else {
			again, more, err := ParseDatagram(append(AppendHeader(nil, from), data...))
			require.NoError(t, err)
			require.Equal(t, from, again)
			require.Equal(t, string(data), string(more))
		}
		ip := netip.IPv6Loopback()
		if is4 {
			ip = netip.AddrFrom4([4]byte{192, 0, 2, 1})
		}
		if g, data, err := ParseGreeting(b, ip); err != nil {
			require.ErrorIs(t, err, syscall.EPROTO)
		} else {
			again, more, err := ParseGreeting(append(g.Append(nil), data...), ip)
			require.NoError(t, err)
			require.Equal(t, g, again)
			require.Equal(t, string(data), string(more))
		}
	})
}
