// SPDX-License-Identifier: Apache-2.0

package caps_test

import (
	"encoding"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
)

func TestFlags(t *testing.T) {
	for flags, want := range map[caps.Flags]string{
		0:                              "0",
		1:                              "IBV_DEVICE_RESIZE_MAX_WR",
		caps.CCDMABounce:               "IBV_DEVICE_CC_DMA_BOUNCE",
		caps.PCIWriteEndPadding | 1:    "IBV_DEVICE_RESIZE_MAX_WR|IBV_DEVICE_PCI_WRITE_END_PADDING",
		caps.RawScatterFCS | 1<<63:     "IBV_DEVICE_RAW_SCATTER_FCS|0x8000000000000000",
		caps.RawScatterFCS | 1<<31:     "0x80000000|IBV_DEVICE_RAW_SCATTER_FCS",
		caps.RawScatterFCS | 1<<31 | 1: "IBV_DEVICE_RESIZE_MAX_WR|0x80000000|IBV_DEVICE_RAW_SCATTER_FCS",
	} {
		require.Equal(t, want, flags.String())
	}
}

func TestQPTypes(t *testing.T) {
	types := caps.QPTypes(1 << 8)
	require.Equal(t, "IBV_QPT_RAW_PACKET", types.String())
	require.True(t, types.Has(libibverbs.IBV_QPT_RAW_PACKET))
	require.False(t, types.Has(libibverbs.IBV_QPT_RC))
	require.False(t, caps.QPTypes(1<<31).Has(libibverbs.IBV_QPT_DRIVER))
}

// text checks that values come back from their text, and that others do not.
func text[T interface {
	comparable
	encoding.TextMarshaler
}, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, values []T, bad ...string) {
	t.Helper()
	for _, v := range values {
		b, err := v.MarshalText()
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
	text(t, []caps.Flags{
		0, 1, caps.RawScatterFCS, caps.CCDMABounce | 0x20000, 1 << 63, math.MaxUint64,
	}, "", "x", "IBV_DEVICE", "|")
	text(t, []caps.QPTypes{0, 1 << 2, 1<<2 | 1<<8, math.MaxUint32}, "", "RC", "IBV_QPT_DRIVER", "|")
}

func FuzzFlags(f *testing.F) {
	f.Add("IBV_DEVICE_XRC|IBV_DEVICE_RAW_SCATTER_FCS|0x8000000000000000")
	f.Fuzz(func(t *testing.T, s string) {
		var v, again caps.Flags
		if v.UnmarshalText([]byte(s)) == nil {
			require.NoError(t, again.UnmarshalText([]byte(v.String())))
			require.Equal(t, v, again)
		}
	})
}

func FuzzQPTypes(f *testing.F) {
	f.Add("IBV_QPT_RC|QpType(31)")
	f.Fuzz(func(t *testing.T, s string) {
		var q, again caps.QPTypes
		if q.UnmarshalText([]byte(s)) == nil {
			require.NoError(t, again.UnmarshalText([]byte(q.String())))
			require.Equal(t, q, again)
		}
	})
}
