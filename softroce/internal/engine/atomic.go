// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"
)

// wordOf returns b as a word. It returns false if b is not aligned, so that a
// processor cannot change it atomically.
func wordOf(b []byte) (*uint64, bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	return (*uint64)(p), uintptr(p)%8 == 0
}

// fetchAndAdd adds n to the word atomically and returns its old value. It
// returns false if the program has unmapped the word.
func fetchAndAdd(word *uint64, n uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 { return old + n })
}

// compareAndSwap sets the word to swap if it equals compare. Otherwise it is
// like fetchAndAdd.
func compareAndSwap(word *uint64, compare, swap uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 {
		if old == compare {
			return swap
		}
		return old
	})
}

// change changes the word atomically with respect to the program's own atomic
// operations.
func change(word *uint64, f func(uint64) uint64) (old uint64, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			faultOf(r, nil) // panics again if r is not a fault
			ok = false
		}
	}()
	for {
		if old = load(word); cas(word, old, f(old)) {
			return old, true
		}
	}
}

// load is not atomic. If it reads a torn value, cas fails.
//
//go:norace
func load(word *uint64) uint64 { return *word }
