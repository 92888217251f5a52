// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"os"
	"unsafe"
)

// Pages returns size bytes of page-aligned memory in Go's heap. Unlike mapped
// memory, it stays valid as long as a slice of it exists, also after a device
// has stopped using it.
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

// allocUnit is the page size of Go's heap. If the system's pages are not
// larger, blocks whose size is a multiple of a system page happen to start at a
// system page, so that Pages needs no room for alignment. Go does not guarantee
// this.
const allocUnit = 8 << 10
