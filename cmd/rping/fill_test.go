// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// fillAsC writes the text step by step, with a start that moves on with each
// ping and both letters going round from z to A.
func fillAsC(b []byte, ping int) {
	start := 'A'
	for range ping {
		if start++; start > 'z' {
			start = 'A'
		}
	}
	head := copy(b, fmt.Sprintf("rdma-ping-%d: ", ping))
	c := start
	for i := head; i < len(b); i++ {
		b[i] = byte(c)
		if c++; c > 'z' {
			c = 'A'
		}
	}
	b[len(b)-1] = 0
}

func TestFill(t *testing.T) {
	for _, size := range []int{minSize, 24, 64, 4096, maxSize} {
		for _, ping := range []int{0, 1, 9, 10, 57, 58, 59, 1000, 123456} {
			want, got := make([]byte, size), bytes.Repeat([]byte{0xff}, size)
			fillAsC(want, ping)
			fill(got, ping)
			require.Equal(t, string(want), string(got), "ping %d of %d bytes", ping, size)
		}
	}
	b := make([]byte, 64)
	fill(b, 0)
	require.Equal(t, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00", string(b))
	b = make([]byte, minSize)
	fill(b, math.MaxInt32)
	require.Equal(t, "rdma-ping-2147483647: \x00", string(b))
}
