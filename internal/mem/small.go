// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"os"
	"sync"
)

// small is the number of bytes up to which Alloc uses a part of a shared page.
const small = 256

// free has the unused parts of shared pages.
var free struct {
	sync.Mutex
	pieces [][]byte
}

// Alloc returns n bytes of zeroed memory outside of Go's heap, aligned to 256
// bytes. Up to 256 bytes are a part of a shared page, which is never unmapped;
// more bytes are allocated by Map.
func Alloc(n int) ([]byte, error) {
	if n <= 0 || n > small {
		return Map(n)
	}
	free.Lock()
	defer free.Unlock()
	if len(free.pieces) == 0 {
		page, err := Map(os.Getpagesize())
		if err != nil {
			return nil, err
		}
		for ; len(page) > 0; page = page[small:] {
			free.pieces = append(free.pieces, page[:small:small])
		}
	}
	last := len(free.pieces) - 1
	b := free.pieces[last]
	free.pieces = free.pieces[:last]
	return b[:n], nil
}

// Free frees memory from Alloc.
func Free(b []byte) error {
	if len(b) > small {
		return Unmap(b)
	}
	b = b[:small]
	clear(b)
	free.Lock()
	defer free.Unlock()
	free.pieces = append(free.pieces, b)
	return nil
}
