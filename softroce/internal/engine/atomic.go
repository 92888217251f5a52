// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"

	"github.com/verbena-go/verbena/softroce/internal/detector"
)

// wordOf returns the first 8 bytes of b as a word. It returns false if they are
// not aligned, as the processor cannot change unaligned words atomically.
func wordOf(b []byte) (*uint64, bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	return (*uint64)(p), uintptr(p)%8 == 0
}

// fetchAndAdd atomically adds n to the word and returns its old value. ok is
// false if the program has unmapped the memory.
func fetchAndAdd(word *uint64, n uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 { return old + n })
}

// compareAndSwap atomically sets the word to swap if it equals compare, and
// returns its old value. ok is false if the program has unmapped the memory.
func compareAndSwap(word *uint64, compare, swap uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 {
		if old == compare {
			return swap
		}
		return old
	})
}

// change replaces the value old of the word by f(old), and returns old. The
// change is atomic, also for atomic operations of the program on the word. ok
// is false if the program has unmapped the memory.
func change(word *uint64, f func(uint64) uint64) (old uint64, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			faultOf(r, nil) // panics again if r is not a fault
			ok = false
		}
	}()
	for {
		if old = load(word); detector.CompareAndSwap(word, old, f(old)) {
			return old, true
		}
	}
}

// load reads the word without an atomic operation. If the program changes the
// word meanwhile, load may return a mixture of two values; the call of
// CompareAndSwap that follows then fails.
//
//go:norace
func load(word *uint64) uint64 { return *word }
