// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestMap(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("for Linux")
	}
	for _, n := range []int{1, os.Getpagesize(), os.Getpagesize() + 1, 1 << 20} {
		b, err := Map(n)
		require.NoError(t, err)
		require.Len(t, b, n)
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%uintptr(os.Getpagesize()), "aligned to a page")
		require.True(t, bytes.Equal(make([]byte, n), b), "zeroed")
		b[0], b[n-1] = 1, 2
		require.NoError(t, Unmap(b))
	}
}

func TestMapFails(t *testing.T) {
	for _, n := range []int{-1, 0, math.MaxInt} {
		_, err := Map(n)
		require.Error(t, err, n)
	}
}
