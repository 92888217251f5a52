// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mem

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{1, 48, 256, 257, 512, 1024, 3072, 4096, 10000} {
		var all [][]byte
		for range 300 { // more than a block has
			b, err := Alloc(n)
			require.NoError(t, err)
			require.Len(t, b, n)
			require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%256)
			require.Equal(t, make([]byte, n), b, "zeroed")
			copy(b, bytes.Repeat([]byte{0xff}, n))
			all = append(all, b)
		}
		for _, b := range all {
			require.Equal(t, bytes.Repeat([]byte{0xff}, n), b, "shared with another piece")
			require.NoError(t, Free(b))
		}
	}
	for class, blocks := range pieces.partial {
		require.Len(t, blocks, 1, "blocks of pieces of %d bytes that serve again", sizes[class])
		require.Len(t, blocks[0].free, blockSize/sizes[class])
	}
	require.Len(t, pieces.blocks, len(sizes)*blockSize/unit, "units of unmapped blocks are known")
	_, err := Alloc(0)
	require.Error(t, err)
}

// Of blocks with used pieces in any order, each address leads to its own.
func TestAllocSome(t *testing.T) {
	const n = 1024
	used := map[int][]byte{}
	for i := range 2000 {
		k := i * 37 % 300
		if b := used[k]; b != nil {
			require.Equal(t, bytes.Repeat([]byte{byte(k)}, n), b, "shared with another piece")
			require.NoError(t, Free(b))
			delete(used, k)
			continue
		}
		b, err := Alloc(n)
		require.NoError(t, err)
		require.Equal(t, make([]byte, n), b, "zeroed")
		copy(b, bytes.Repeat([]byte{byte(k)}, n))
		used[k] = b
	}
	for _, b := range used {
		require.NoError(t, Free(b))
	}
	require.Len(t, pieces.partial[classOf(n)], 1)
}
