// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"os"
	"sync"
)

// small is the size up to which Alloc uses a piece of a shared page.
const small = 256

// free holds the unused pieces of shared pages.
var free struct {
	sync.Mutex
	pieces [][]byte
}

// Alloc returns n bytes of zeroed memory, aligned to 256 bytes. If n is small
// enough, it uses a piece of a shared page, which stays mapped; otherwise it
// uses Map.
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

// Free releases memory from Alloc.
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
