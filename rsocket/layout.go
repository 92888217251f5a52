// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"sync"

	"github.com/verbena-go/verbena/internal/mem"
)

// layout is how the memory of a connection is divided: lengths in bytes of what
// comes before the receive buffer, of that, and of the send buffer after it.
type layout struct{ head, receive, send int }

// spares has, for each layout, a pool of *[]byte: memory of closed connections,
// which new ones use again. Its head and receive buffer are zeroed, because a
// peer may claim to have written what it has not. The garbage collector frees
// what is not used.
var spares struct {
	sync.Mutex
	pools map[layout]*sync.Pool
}

// size returns the length of the memory.
func (l layout) size() int { return l.head + l.receive + l.send }

// pool returns the pool of the layout.
func (l layout) pool() *sync.Pool {
	spares.Lock()
	defer spares.Unlock()
	pool := spares.pools[l]
	if pool == nil {
		if spares.pools == nil {
			spares.pools = map[layout]*sync.Pool{}
		}
		pool = new(sync.Pool)
		spares.pools[l] = pool
	}
	return pool
}

// take returns memory for a connection. The send buffer need not be zeroed.
func (l layout) take(size int) []byte {
	if b, ok := l.pool().Get().(*[]byte); ok {
		return *b
	}
	return mem.Pages(size)
}

// give takes back memory that nothing uses any more.
func (l layout) give(b []byte) {
	clear(b[:l.head+l.receive])
	l.pool().Put(&b)
}
