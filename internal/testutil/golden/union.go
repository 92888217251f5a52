// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Memory returns the bytes of *p.
func Memory[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// UnionView is a member of a union, as the Go code sees it.
type UnionView struct {
	name  string
	bytes []byte
	align uintptr
	size  int // size in C
}

// Distance returns the number of bytes from the beginning of *from to *to.
func Distance[T, E any](from *T, to *E) uintptr {
	return uintptr(unsafe.Pointer(to)) - uintptr(unsafe.Pointer(from))
}

// View returns the view of the union member called name at p. size is its size
// in C.
func View[T any](name string, p *T, size int) UnionView {
	return UnionView{name: name, bytes: Memory(p), align: unsafe.Alignof(*p), size: size}
}

// Union requires that each view of a union begins at the union's beginning, and
// that what is written through it is seen through all other views and changes
// nothing else in memory. The union takes size bytes of memory from offset on.
func Union(t *testing.T, name string, memory []byte, offset, size, align int, views ...UnionView) {
	t.Helper()
	require.NotEmpty(t, views, name)
	require.Zero(t, address(memory[offset:])%uintptr(align), "%s is not aligned", name)
	largest := 0
	for _, v := range views {
		path := name + "." + v.name
		require.Len(t, v.bytes, v.size, path)
		require.LessOrEqual(t, v.align, uintptr(align), path)
		require.Zero(t, address(v.bytes)%v.align, "%s is not aligned", path)
		largest = max(largest, v.size)

		clear(memory)
		want := make([]byte, len(memory))
		for i := range v.bytes {
			v.bytes[i] = byte(i + 1)
			want[offset+i] = byte(i + 1)
		}
		require.Equal(t, want, memory, path)
		for _, other := range views {
			require.True(t, bytes.Equal(want[offset:offset+other.size], other.bytes), "%s does not show what %s holds", other.name, path)
		}
		clear(memory)
	}
	require.Equal(t, size, (largest+align-1)/align*align, name)
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
