// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"os"
	"unsafe"
)

// Pages returns page-aligned memory of Go's heap. Slices of it stay valid after
// the device has been told to forget it.
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

// allocUnit is the size of the pages of Go's heap. Whole pages of the system that are no larger begin at one, as Go has places of just their
// size, and so need no room to be aligned in. Nothing promises that.
const allocUnit = 8 << 10
