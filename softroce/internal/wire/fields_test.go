// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func TestGID(t *testing.T) {
	for _, c := range []struct {
		addr string
		gid  wire.GID
		is4  bool
	}{
		{"192.0.2.9", wire.GID{10: 0xFF, 11: 0xFF, 12: 192, 14: 2, 15: 9}, true},
		{"2001:db8::9", wire.GID{0: 0x20, 1: 0x01, 2: 0x0D, 3: 0xB8, 15: 9}, false},
		{"::", wire.GID{}, false},
	} {
		addr := netip.MustParseAddr(c.addr)
		require.Equal(t, c.gid, wire.GIDOf(addr))
		require.Equal(t, addr, c.gid.Addr())
		require.Equal(t, c.is4, c.gid.Is4())
		require.Equal(t, c.addr, c.gid.String())
	}
	require.Equal(t, wire.GIDOf(netip.MustParseAddr("192.0.2.9")), wire.GIDOf(netip.MustParseAddr("::ffff:192.0.2.9")))
	require.Equal(t, "fe80::1", wire.GIDOf(netip.MustParseAddr("fe80::1%eth0")).String())
	require.Equal(t, wire.GID{}, wire.GIDOf(netip.Addr{}))
}

func TestPSN(t *testing.T) {
	const top = 1<<24 - 1
	for _, c := range []struct {
		p, q wire.PSN
		diff int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, top, 1},
		{top, 0, -1},
		{5, top - 4, 10},
		{top, top, 0},
		{1<<23 - 1, 0, 1<<23 - 1},
		{1 << 23, 0, -1 << 23},
		{1<<23 + 1, 0, -1<<23 + 1},
	} {
		require.Equal(t, c.diff, c.p.Diff(c.q), "%d - %d", c.p, c.q)
		require.Equal(t, c.diff < 0, c.p.Before(c.q), "%d before %d", c.p, c.q)
		require.Equal(t, c.diff > 0, c.p.After(c.q), "%d after %d", c.p, c.q)
		require.Equal(t, c.p, c.q.Add(c.diff), "%d + %d", c.q, c.diff)
	}
	require.Equal(t, wire.PSN(4), wire.PSN(5).Add(-1+1<<24))
	require.Equal(t, wire.PSN(2), wire.PSN(top).Add(3))
	require.Equal(t, wire.PSN(top), wire.PSN(0).Add(-1))
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s             wire.Syndrome
		ack, rnr, nak bool
		text          string
	}{
		{wire.Ack, true, false, false, "ACK"},
		{0x1F, true, false, false, "ACK"},
		{0x00, true, false, false, "ACK (0 receives)"},
		{wire.AckCredits(100), true, false, false, "ACK (96 receives)"},
		{wire.RNRNak(0), false, true, false, "RNR NAK (655.36ms)"},
		{wire.RNRNak(12), false, true, false, "RNR NAK (640µs)"},
		{0x3F, false, true, false, "RNR NAK (491.52ms)"},
		{0x60, false, false, true, "NAK (PSN sequence error)"},
		{0x61, false, false, true, "NAK (invalid request)"},
		{0x62, false, false, true, "NAK (remote access error)"},
		{0x63, false, false, true, "NAK (remote operational error)"},
		{0x64, false, false, true, "NAK (invalid RD request)"},
		{0x65, false, false, true, "syndrome 0x65"},
		{0x40, false, false, false, "syndrome 0x40"},
		{0x80, false, false, false, "syndrome 0x80"},
		{0xE0, false, false, false, "syndrome 0xe0"},
	} {
		require.Equal(t, c.text, c.s.String())
		require.Equal(t, c.ack, c.s.IsAck(), c.text)
		require.Equal(t, c.rnr, c.s.IsRNR(), c.text)
		require.Equal(t, c.nak, c.s.IsNak(), c.text)
	}
	require.Equal(t, []wire.Syndrome{0x60, 0x61, 0x62, 0x63, 0x64}, []wire.Syndrome{
		wire.NakSequence, wire.NakInvalidRequest, wire.NakRemoteAccess, wire.NakRemoteOperation, wire.NakInvalidRD,
	})
	require.Equal(t, wire.Syndrome(0x2C), wire.RNRNak(12))
	require.Equal(t, uint8(12), wire.RNRNak(12).RNRTimer())
}

func TestCredits(t *testing.T) {
	// Each code above 2 is twice that of two codes below it; they end at 32768.
	before := []int{0, 1, 2, 3}
	for s := range wire.Ack {
		n, ok := s.Credits()
		require.True(t, ok)
		if s < 4 {
			require.Equal(t, before[s], n)
		} else {
			a, _ := (s - 2).Credits()
			require.Equal(t, 2*a, n)
		}
		require.Equal(t, s, wire.AckCredits(n))
		if s > 0 {
			require.Equal(t, s-1, wire.AckCredits(n-1))
		}
	}
	n, _ := wire.Syndrome(30).Credits()
	require.Equal(t, 32768, n)
	require.Equal(t, wire.Syndrome(30), wire.AckCredits(1<<30))
	require.Equal(t, wire.Syndrome(0), wire.AckCredits(-1))
	for _, s := range []wire.Syndrome{wire.Ack, wire.RNRNak(1), wire.NakSequence} {
		_, ok := s.Credits()
		require.False(t, ok)
	}
}

func TestRNRTimer(t *testing.T) {
	codes := []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68,
		10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	require.Len(t, codes, 32)
	for code, ms := range codes {
		d := wire.RNRDelay(uint8(code))
		require.InDelta(t, ms*1e6, float64(d), 1)
		require.Equal(t, uint8(code), wire.RNRTimer(d))
		require.Equal(t, uint8(code), wire.RNRTimer(d-1))
	}
	require.Equal(t, uint8(1), wire.RNRTimer(0))
	require.Equal(t, uint8(2), wire.RNRTimer(10*time.Microsecond+1))
	require.Equal(t, uint8(0), wire.RNRTimer(time.Hour))
}

func TestTimeouts(t *testing.T) {
	for code, want := range map[uint8]struct{ ack, cm, linux time.Duration }{
		0:  {0, 4096, time.Millisecond},
		1:  {8192, 8192, time.Millisecond},
		8:  {1048576, 1048576, time.Millisecond},
		14: {67108864, 67108864, 64 * time.Millisecond},
		18: {1073741824, 1073741824, 1024 * time.Millisecond},
		19: {2147483648, 2147483648, 2048 * time.Millisecond},
		20: {4294967296, 4294967296, 4096 * time.Millisecond},
		24: {68719476736, 68719476736, 65536 * time.Millisecond},
		31: {8796093022208, 8796093022208, 8388608 * time.Millisecond},
	} {
		require.Equal(t, want.ack, wire.AckTimeout(code), "code %d", code)
		require.Equal(t, want.cm, wire.CMTimeout(code), "code %d", code)
		require.Equal(t, want.linux, wire.LinuxCMTimeout(code), "code %d", code)
		require.Equal(t, code, wire.AckTimeoutCode(want.ack), "code %d", code)
	}
	require.Equal(t, uint8(1), wire.AckTimeoutCode(1))
	require.Equal(t, uint8(2), wire.AckTimeoutCode(8193))
	require.Equal(t, uint8(31), wire.AckTimeoutCode(1<<62))
	require.Equal(t, uint8(0), wire.AckTimeoutCode(-1))
}
