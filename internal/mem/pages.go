// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"os"
	"unsafe"
)

// Pages returns page-aligned memory of Go's heap. Slices of it stay valid after
// its registration with a device has ended.
func Pages(size int) []byte {
	page := os.Getpagesize()
	past := func(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % uintptr(page)) }
	if page <= allocUnit {
		b := make([]byte, (size+page-1)/page*page)
		if past(b) == 0 {
			return b[:size:size]
		}
	}
	b := make([]byte, size+page-1)
	first := (page - past(b)) % page
	return b[first : first+size : first+size]
}

// allocUnit is the size of the pages of Go's heap. A block of whole system
// pages that is no larger starts at a page: Go has size classes for exactly
// these sizes. So it needs no extra room for alignment. This is not guaranteed.
const allocUnit = 8 << 10
