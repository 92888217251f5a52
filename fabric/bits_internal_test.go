// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every field of every width comes back where it was set, and nothing else
// changes.
func TestFields(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for width := 1; width <= 64; width++ {
		for offset := range 80 {
			var before attribute
			for i := range before {
				before[i] = byte(rng.Uint32())
			}
			v := rng.Uint64() >> (64 - width)
			after := before
			after.setField(offset, width, v)
			require.Equal(t, v, after.field(offset, width), "%d bits at %d", width, offset)
			for bit := range 160 {
				if bit < offset || bit >= offset+width {
					require.Equal(t, before.field(bit, 1), after.field(bit, 1))
				}
			}
		}
	}
}

// What a field is too narrow for is cut off.
func TestFieldIsNarrow(t *testing.T) {
	var a attribute
	a.setField(4, 4, 0x1f)
	require.Equal(t, attribute{0: 0x0f}, a)
}

func TestBitsByHand(t *testing.T) {
	a := &attribute{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0}
	require.EqualValues(t, 0x1, a.field(0, 4))
	require.EqualValues(t, 0x3456, a.u16(8))
	require.EqualValues(t, 0x2345, a.u16(4))
	require.Equal(t, uint64(0x123456789abcdef0), a.u64(0))
	require.True(t, a.flag(3))
	require.False(t, a.flag(2))
}
