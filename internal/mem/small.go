// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"sync"
	"unsafe"
)

// sizes are the lengths of pieces. Alloc uses the shortest that is long enough.
// Each divides unit.
var sizes = [...]int{256, 512, 1024, unit}

const (
	// unit is the number of bytes up to which Alloc uses a piece of a block.
	unit = 4096
	// blockSize is the number of bytes that are mapped at a time for pieces.
	blockSize = 64 << 10
)

// block is memory that is divided into pieces of the same size.
type block struct {
	memory []byte
	free   [][]byte // unused pieces
	class  int      // index of their size
	at     int      // index in pieces.partial, if free is not empty
}

// pieces has the blocks.
var pieces struct {
	sync.Mutex
	blocks  map[uintptr]*block   // by the address of each unit of their memory
	partial [len(sizes)][]*block // blocks with unused pieces, for each size
}

// Alloc returns n bytes of zeroed memory outside of Go's heap, aligned to 256
// bytes. Up to 4096 bytes are a piece of a larger block, which is unmapped when
// none of its pieces is used and another block has unused ones. More bytes are
// allocated by Map.
func Alloc(n int) ([]byte, error) {
	if n <= 0 || n > unit {
		return Map(n)
	}
	class := classOf(n)
	pieces.Lock()
	defer pieces.Unlock()
	if len(pieces.partial[class]) == 0 {
		if err := addBlock(class); err != nil {
			return nil, err
		}
	}
	b := last(pieces.partial[class])
	piece := last(b.free)
	b.free = b.free[:len(b.free)-1]
	if len(b.free) == 0 {
		b.leavePartial()
	}
	return piece[:n], nil
}

// Free frees memory from Alloc.
func Free(memory []byte) error {
	if len(memory) > unit {
		return Unmap(memory)
	}
	class := classOf(len(memory))
	piece := memory[:sizes[class]]
	clear(piece)
	pieces.Lock()
	defer pieces.Unlock()
	b := pieces.blocks[uintptr(unsafe.Pointer(unsafe.SliceData(piece)))&^(unit-1)]
	b.free = append(b.free, piece)
	if len(b.free) == 1 {
		b.joinPartial()
	}
	if len(b.free)*sizes[class] < blockSize || len(pieces.partial[class]) == 1 {
		return nil
	}
	b.leavePartial()
	for _, unit := range b.units() {
		delete(pieces.blocks, unit)
	}
	return Unmap(b.memory)
}

// classOf returns the index of the size of pieces for n bytes.
func classOf(n int) int {
	class := 0
	for n > sizes[class] {
		class++
	}
	return class
}

// addBlock adds a block of unused pieces.
func addBlock(class int) error {
	memory, err := Map(blockSize)
	if err != nil {
		return err
	}
	b := &block{memory: memory, class: class}
	for size := sizes[class]; len(memory) > 0; memory = memory[size:] {
		b.free = append(b.free, memory[:size:size])
	}
	if pieces.blocks == nil {
		pieces.blocks = map[uintptr]*block{}
	}
	for _, unit := range b.units() {
		pieces.blocks[unit] = b
	}
	b.joinPartial()
	return nil
}

// units returns the address of each unit of the block's memory.
func (b *block) units() []uintptr {
	var addresses []uintptr
	for offset := 0; offset < blockSize; offset += unit {
		addresses = append(addresses, uintptr(unsafe.Pointer(&b.memory[offset])))
	}
	return addresses
}

func (b *block) joinPartial() {
	blocks := &pieces.partial[b.class]
	b.at = len(*blocks)
	*blocks = append(*blocks, b)
}

func (b *block) leavePartial() {
	blocks := &pieces.partial[b.class]
	moved := last(*blocks)
	(*blocks)[b.at], moved.at = moved, b.at
	(*blocks)[len(*blocks)-1] = nil
	*blocks = (*blocks)[:len(*blocks)-1]
}

func last[T any](s []T) T { return s[len(s)-1] }
