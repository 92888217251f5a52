// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"encoding"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/link"
)

func TestLaneSpeed(t *testing.T) {
	for speed, want := range map[link.LaneSpeed]struct {
		name string
		rate float64
	}{
		1: {"SDR", 2.5}, 2: {"DDR", 5}, 4: {"QDR", 10}, 8: {"FDR10", 10}, 16: {"FDR", 14}, 32: {"EDR", 25},
		64: {"HDR", 50}, 128: {"NDR", 100}, 256: {"XDR", 200}, 0: {"Speed(0)", 0}, 3: {"Speed(3)", 0},
	} {
		require.Equal(t, want.name, speed.String())
		require.InDelta(t, want.rate, float64(speed.Rate()), 0)
	}
}

func TestSpeed(t *testing.T) {
	require.Equal(t, "123.4 Gb/s", link.Speed(123.4).String())
	require.Equal(t, "0 Gb/s", link.Speed(0).String())
	require.Equal(t, "2.5", fmt.Sprintf("%g", link.SDR.Rate()))
}

// The rates are those of InfiniBand's tables.
func TestLaneRates(t *testing.T) {
	for speed, want := range map[link.LaneSpeed]struct{ signaling, throughput float64 }{
		link.SDR: {2.5, 2}, link.DDR: {5, 4}, link.QDR: {10, 8}, link.FDR10: {10.3125, 10}, link.FDR: {14.0625, 13.636},
		link.EDR: {25.78125, 25}, link.HDR: {53.125, 50}, link.NDR: {106.25, 100}, link.XDR: {212.5, 200}, 0: {0, 0},
	} {
		require.InDelta(t, want.signaling, float64(speed.SignalingRate()), 0, speed)
		require.InDelta(t, want.throughput, float64(speed.Throughput()), 0.001, speed)
	}
}

func TestWidth(t *testing.T) {
	for width, lanes := range map[link.Width]int{1: 1, 16: 2, 2: 4, 4: 8, 8: 12, 0: 0, 3: 0, 255: 0} {
		require.Equal(t, lanes, width.Lanes())
	}
	require.Equal(t, "2X", link.Width2X.String())
	require.Equal(t, "Width(3)", link.Width(3).String())
}

// text checks that values come back from their text, and that others do not.
func text[T comparable, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, values []T, bad ...string) {
	t.Helper()
	for _, v := range values {
		b, err := any(v).(encoding.TextMarshaler).MarshalText()
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
	text(t, []link.LaneSpeed{0, 1, 256, 3, math.MaxUint32}, "", "SSDR", "Speed(-1)", "2.5")
	text(t, []link.Width{0, 1, 16, 255}, "", "3X", "Width(256)")
	text(t, []link.PhysState{0, 1, 5, 7, 8, 255}, "", "linkup", "PhysState(256)")
	text(t, []link.State{link.Down, link.Active, 77}, "", "up")
	text(t, []link.Layer{link.Unspecified, link.Ethernet, 77}, "", "ethernet")
}
