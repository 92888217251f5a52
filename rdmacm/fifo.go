// SPDX-License-Identifier: Apache-2.0

package rdmacm

// fifo is a queue that keeps its memory.
type fifo[T any] struct {
	ring        []T // its length is a power of 2
	first, size int
}

func (f *fifo[T]) len() int { return f.size }

func (f *fifo[T]) push(v T) {
	if f.size == len(f.ring) {
		ring := make([]T, max(2*len(f.ring), 1))
		for i := range f.size {
			ring[i] = f.ring[(f.first+i)&(len(f.ring)-1)]
		}
		f.ring, f.first = ring, 0
	}
	f.ring[(f.first+f.size)&(len(f.ring)-1)] = v
	f.size++
}

// pop removes and returns the first element. There must be one.
func (f *fifo[T]) pop() T {
	var zero T
	v := f.ring[f.first]
	f.ring[f.first] = zero
	f.first = (f.first + 1) & (len(f.ring) - 1)
	f.size--
	return v
}
