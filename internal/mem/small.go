package mem

import (
	"os"
	"sync"
)

// small is how many bytes Alloc takes from a page that it shares.
const small = 256

// free are the pieces of such pages that nobody has.
var free struct {
	sync.Mutex
	pieces [][]byte
}

// Alloc returns n bytes of zeroed memory, aligned to 256 bytes: of a page that
// is shared with others if that is enough, which stays mapped then, or as Map
// does.
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

// Free gives memory from Alloc back.
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
