// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mem_test

import (
	"bytes"
	"math"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/mem"
)

func TestRegion(t *testing.T) {
	for _, n := range []int{1, os.Getpagesize(), 3*os.Getpagesize() + 1, 64 << 20, 64<<20 + 1} {
		b, free, err := mem.Region(n)
		require.NoError(t, err)
		require.Len(t, b, n)
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%uintptr(os.Getpagesize()), "aligned to a page")
		require.True(t, bytes.Equal(make([]byte, n), b), "zeroed")
		b[0], b[n-1] = 1, 2
		free()
	}
	for _, n := range []int{-1, 0, math.MaxInt} {
		_, _, err := mem.Region(n)
		require.Error(t, err, n)
	}
}
