// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"
)

// wordOf returns the word that b is, if it lies where a processor can change it in one step.
func wordOf(b []byte) (*uint64, bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	return (*uint64)(p), uintptr(p)%8 == 0
}

// fetchAndAdd adds n to the word in one step and returns what it was. Ok is false if the
// program has unmapped it.
func fetchAndAdd(word *uint64, n uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 { return old + n })
}

// compareAndSwap is like fetchAndAdd: it sets the word to swap if it is compare.
func compareAndSwap(word *uint64, compare, swap uint64) (old uint64, ok bool) {
	return change(word, func(old uint64) uint64 {
		if old == compare {
			return swap
		}
		return old
	})
}

// change changes the word in one step, also as the program's own atomic operations see it.
func change(word *uint64, f func(uint64) uint64) (old uint64, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			faultOf(r, nil) // goes on panicking if it is no fault
			ok = false
		}
	}()
	for {
		if old = load(word); cas(word, old, f(old)) {
			return old, true
		}
	}
}

// load is not atomic, but if it reads what is not there, cas will notice.
//
//go:norace
func load(word *uint64) uint64 { return *word }
