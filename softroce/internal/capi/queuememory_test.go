// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Memory of a destroyed queue serves the next one of its size, and no other.
func TestQueueMemoryIsReused(t *testing.T) {
	take := func(n, size uint64) unsafe.Pointer {
		p, from, err := allocQueue(nil, n, size, resourceCQ)
		require.NotNil(t, p, err)
		require.Nil(t, from)
		b := unsafe.Slice((*byte)(p), n*size)
		b[0], b[len(b)-1] = 1, 1
		return p
	}
	give := func(p unsafe.Pointer) { freeQueue(nil, p, resourceCQ) }
	const odd = 104 // bytes, of elements that no queue of another test has
	for n, kept := range map[uint64]bool{1: false, 39: false, 40: true, 1000: true, 1260: true, 1261: false, 1 << 20: false} {
		p := take(n, odd)
		give(p)
		other := take(n, odd+64)
		if kept {
			require.Equal(t, p, take(n, odd), n)
			require.NotEqual(t, p, other, n)
			give(p)
		}
		give(other)
	}
	give(nil)
}

func TestQueueMemoryIsLimited(t *testing.T) {
	for _, n := range []uint64{math.MaxUint64, math.MaxUint64 / 96, math.MaxUint64/96 + 1, 1 << 55} {
		p, _, err := allocQueue(nil, n, 96, resourceCQ)
		require.Nil(t, p, n)
		require.Equal(t, syscall.ENOMEM, err, n)
	}
}
