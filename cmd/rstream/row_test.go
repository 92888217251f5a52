// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The texts are those that C's program prints.
func TestTexts(t *testing.T) {
	for bytes, want := range map[int64]string{
		1: "1", 64: "64", 1000: "1000", 1023: "1023", 1 << 10: "1k", 1<<10 + 1: "1k", 1<<10 + 1<<9: "1.5k", 5000: "4.8k", 10_000: "9.7k",
		10<<10 + 512: "10k", 70_000: "68k", 600_000: "585k", 1 << 20: "1m", 14_000_000: "13m", 2_000_000: "1.9m", 1 << 30: "1g", 3 << 29: "1.5g",
		1 << 40: "1024g",
	} {
		require.Equal(t, want, sizeText(bytes), bytes)
	}
	for n, want := range map[int]string{1: "1", 999: "999", 1000: "1k", 1999: "1k", 100_000: "100k", 2_500_000: "2m", 2_000_000_000: "2b"} {
		require.Equal(t, want, countText(n), n)
	}
	require.Equal(t, "custom    4.8k    3       20      585k        0.01s      0.44      91.29\n",
		row{"custom", 5000, 3, 20}.line(10955*time.Microsecond))
	require.Len(t, header, len("custom    4.8k    3       20      585k        0.01s      0.44      91.29\n")+2, "as in C")
}

// Both ends choose the tests, and must agree: so these are C's.
func TestRows(t *testing.T) {
	require.Equal(t, []int{64, 4096, 65536, 1 << 20}, sizes(false))
	all := sizes(true)
	require.Len(t, all, 33)
	require.Equal(t, []int{64, 128, 192, 256, 384}, all[:5])
	require.Equal(t, []int{2 << 20, 3 << 20, 4 << 20, 6 << 20}, all[29:])
	for _, tt := range []struct {
		size, repeat int
		name         string
	}{
		{64, 100_000, "64"},
		{768, 100_000, "768"},
		{1024, 10_000, "1k"},
		{49152, 10_000, "48k"},
		{65536, 1000, "64k"},
		{1 << 20, 100, "1m"},
		{6 << 20, 100, "6m"},
	} {
		require.Equal(t, row{tt.name + "_lat", tt.size, 1, tt.repeat}, latency(tt.size))
		require.Equal(t, row{tt.name + "_bw", tt.size, tt.repeat, 1}, bandwidth(tt.size))
	}
}
