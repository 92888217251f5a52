// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/mem"
)

func TestPages(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 128, page - 1, page, page + 1, 3 * page, 5*page + 128, 8 * page, 8*page + 128, 64*page + 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			for range 20 {
				b := mem.Pages(size)
				require.Len(t, b, size)
				require.Equal(t, size, cap(b))
				require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%uintptr(page))
				require.Equal(t, make([]byte, size), b)
				b[0], b[size-1] = 1, 1
			}
		})
	}
}

// BenchmarkPages tells how much memory is taken for it.
func BenchmarkPages(b *testing.B) {
	for _, size := range []int{128, 4 << 10, 16<<10 + 128, 32<<10 + 128} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mem.Pages(size)
			}
		})
	}
}
