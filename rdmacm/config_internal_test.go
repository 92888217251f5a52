// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigDefaults(t *testing.T) {
	defaults := Config{
		SendQueue: 16, RecvQueue: 16, Segments: 1, ReadDepth: 16,
		HandshakeTimeout: 30 * time.Second, KeepAlive: 30 * time.Second, Linger: 30 * time.Second,
		RetryCount: 6, PeerRNRRetryCount: 7, MinRNRTimer: 640 * time.Microsecond,
	}
	require.Equal(t, defaults, (*Config)(nil).withDefaults())
	require.Equal(t, defaults, new(Config).withDefaults())

	c := &Config{
		SendQueue: 1, RecvQueue: 2, Segments: 3, MaxInline: 4, ReadDepth: 5, RetryCount: 5, PeerRNRRetryCount: 1,
		MinRNRTimer: time.Millisecond, AckTimeout: time.Second,
		HandshakeTimeout: 1, KeepAlive: -1, Linger: 2, Queues: new(VerbsQP), MessageSize: 3, PrivateData: []byte("data"),
	}
	require.Equal(t, *c, c.withDefaults(), "what is set stays")

	out := (&Config{RetryCount: -1, PeerRNRRetryCount: -1, ReadDepth: -1}).withDefaults()
	require.Zero(t, out.RetryCount)
	require.Zero(t, out.PeerRNRRetryCount)
	require.Zero(t, out.ReadDepth)
	out = (&Config{RetryCount: 8, PeerRNRRetryCount: 99, ReadDepth: 1000}).withDefaults()
	require.Equal(t, 7, out.RetryCount)
	require.Equal(t, 7, out.PeerRNRRetryCount)
	require.Equal(t, 254, out.ReadDepth)
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int32{
		-time.Second: 1, 0: 1, time.Microsecond: 1, 1500 * time.Microsecond: 1,
		2 * time.Second: 2000, math.MaxInt64: math.MaxInt32,
	} {
		require.Equal(t, want, milliseconds(d), "%v", d)
	}
}

func TestSameFamily(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:1")
	both := func() []netip.AddrPort { return []netip.AddrPort{v4, v6} }
	require.Equal(t, []netip.AddrPort{v4}, sameFamily(both(), v4))
	require.Equal(t, []netip.AddrPort{v6}, sameFamily(both(), v6))
	require.Equal(t, both(), sameFamily(both(), netip.AddrPort{}))
}

func TestLookupLocal(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":           "192.0.2.1:0",
		"192.0.2.1:7":         "192.0.2.1:7",
		"2001:db8::1":         "[2001:db8::1]:0",
		"[2001:db8::1]":       "[2001:db8::1]:0",
		"[fe80::1%eth0]:7":    "[fe80::1%eth0]:7",
		"::ffff:192.0.2.1":    "192.0.2.1:0",
		"[::ffff:192.0.2.1]:": "192.0.2.1:0",
	} {
		got, err := lookupLocal(t.Context(), in)
		require.NoError(t, err)
		require.Equal(t, want, got.String(), in)
	}
	_, err := lookupLocal(t.Context(), "192.0.2.1:nosuchservice")
	require.ErrorContains(t, err, "look up the local address: ")
}
