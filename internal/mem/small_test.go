// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mem

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{1, 48, 256, 257, 10000} {
		var all [][]byte
		for range 40 { // more than a page has
			b, err := Alloc(n)
			require.NoError(t, err)
			require.Len(t, b, n)
			require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%small)
			for i := range b {
				require.Zero(t, b[i])
				b[i] = 0xff
			}
			all = append(all, b)
		}
		for _, b := range all {
			for _, x := range b {
				require.EqualValues(t, 0xff, x, "shared with another block")
			}
			require.NoError(t, Free(b))
		}
	}
	_, err := Alloc(0)
	require.Error(t, err)
}
