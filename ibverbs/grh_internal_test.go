// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"bytes"
	"encoding/hex"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// An IPv4 header as RFC 1071's checksum has it right.
	ipv4Header = "4506003c 1c464000 4011b1d5 ac100a63 ac100a0c"
	ipv6Header = "6a2abcde 0048 1b 3f fe80000000000000025056fffe000001 20010db8000000000000000000000002"
)

func bytesOfHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

func mustGID(t testing.TB, s string) GID {
	t.Helper()
	g, err := ParseGID(s)
	require.NoError(t, err)
	return g
}

func TestParseGRH(t *testing.T) {
	v4 := GRH{
		Version: 4, TrafficClass: 6, PayloadLen: 40, NextHeader: 17, HopLimit: 64,
		SGID: mustGID(t, "172.16.10.99"), DGID: mustGID(t, "172.16.10.12"),
	}
	v6 := GRH{
		Version: 6, TrafficClass: 0xa2, FlowLabel: 0xabcde, PayloadLen: 72, NextHeader: 27, HopLimit: 63,
		SGID: mustGID(t, "fe80::250:56ff:fe00:1"), DGID: mustGID(t, "2001:db8::2"),
	}
	zeros := strings.Repeat("00", 20)
	wrongSum := strings.Replace(ipv4Header, "b1d5", "0000", 1)
	for name, tt := range map[string]struct {
		bytes string
		want  GRH
	}{
		"IPv6":                             {ipv6Header, v6},
		"IPv6 and the message":             {ipv6Header + "68656c6c6f", v6},
		"IPv4":                             {zeros + ipv4Header, v4},
		"IPv4 without a checksum":          {zeros + wrongSum, v4}, // as a loopback has it
		"IPv4 behind what looks like IPv6": {"60" + zeros[2:] + ipv4Header, v4},
		"IPv6 with what looks like IPv4 in it": {"60000000 0000 00 00" + zeros[:24] + wrongSum, GRH{
			Version: 6, SGID: GID(bytesOfHex(t, zeros[:24]+wrongSum[:8])), DGID: GID(bytesOfHex(t, wrongSum[8:])),
		}},
	} {
		got, err := ParseGRH(bytesOfHex(t, tt.bytes))
		require.NoError(t, err, name)
		require.Equal(t, tt.want, got, name)
	}
	require.Equal(t, "172.16.10.99", v4.SGID.Addr().String())

	_, err := ParseGRH(bytesOfHex(t, ipv6Header)[:39])
	require.ErrorIs(t, err, syscall.EINVAL)
	for name, s := range map[string]string{
		"nothing":        strings.Repeat("00", 40),
		"options":        zeros + strings.Replace(ipv4Header, "45", "46", 1),
		"shorter than 0": zeros + strings.Replace(wrongSum, "003c", "0013", 1),
	} {
		_, err := ParseGRH(bytesOfHex(t, s))
		require.ErrorIs(t, err, syscall.EPROTONOSUPPORT, name)
	}
}

// Whatever was received, reading it says what is there: the addresses are those
// in the bytes, and nothing is out of its range.
func FuzzParseGRH(f *testing.F) {
	f.Add(bytesOfHex(f, ipv6Header))
	f.Add(bytesOfHex(f, strings.Repeat("00", 20)+ipv4Header))
	f.Add(bytesOfHex(f, "60"+strings.Repeat("00", 19)+ipv4Header))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		g, err := ParseGRH(b)
		require.Equal(t, before, b)
		if err != nil {
			require.Zero(t, g)
			return
		}
		require.LessOrEqual(t, g.FlowLabel, uint32(maxFlowLabel))
		require.GreaterOrEqual(t, g.PayloadLen, 0)
		if g.Version == 6 {
			require.Equal(t, b[8:40], append(g.SGID[:], g.DGID[:]...))
			return
		}
		require.Equal(t, 4, g.Version)
		require.True(t, g.SGID.Addr().Is4() && g.DGID.Addr().Is4())
		require.Equal(t, b[32:40], append(g.SGID[12:], g.DGID[12:]...))
	})
}
