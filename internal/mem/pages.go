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
	b := make([]byte, size+page-1)
	past := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % uintptr(page))
	first := (page - past) % page
	return b[first : first+size : first+size]
}
