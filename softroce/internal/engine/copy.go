// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"
)

// A fault names the memory that a copy could not access.
type fault int

const (
	noFault     fault = iota
	sourceFault       // the sender's memory: the packet counts as lost
	targetFault       // the receiver's memory
)

// scatter copies the bytes of src to dst, which must have room for them. A
// program may unmap memory that it has registered. Hardware would then write to
// the pages that it still holds; scatter returns a fault.
func scatter(dst, src [][]byte) (f fault) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			f = faultOf(r, dst)
		}
	}()
	var to []byte
	rest := dst
	for _, from := range src {
		for len(from) > 0 {
			if len(to) == 0 {
				to, rest = rest[0], rest[1:]
				continue
			}
			n := min(len(to), len(from))
			copyBytes(to[:n], from[:n])
			to, from = to[n:], from[n:]
		}
	}
	return noFault
}

// Copy copies a packet's payload, which is memory of a program, to dst, which
// must have room for it. It returns false if some of that memory was unmapped.
func Copy(dst []byte, payload [][]byte) bool {
	return scatter([][]byte{dst}, payload) == noFault
}

// faultOf tells which side's memory a panic is about. It panics again if the
// panic is about something else.
func faultOf(r any, dst [][]byte) fault {
	e, ok := r.(interface{ Addr() uintptr })
	if !ok {
		panic(r)
	}
	for _, b := range dst {
		if len(b) > 0 && e.Addr()-uintptr(unsafe.Pointer(&b[0])) < uintptr(len(b)) {
			return targetFault
		}
	}
	return sourceFault
}

// copyBytes copies src to dst, of the same length, in rising order, so that a
// program that watches the last byte of a message sees the others. The race
// detector must not see the copy, since memory belongs to the program while a
// device writes it. It would see the builtin copy even in a norace function.
//
//go:norace
func copyBytes(dst, src []byte) {
	dst = dst[:len(src)]
	for ; len(src) >= 1024; dst, src = dst[1024:], src[1024:] {
		*(*[1024]byte)(dst) = *(*[1024]byte)(src)
	}
	for ; len(src) >= 64; dst, src = dst[64:], src[64:] {
		*(*[64]byte)(dst) = *(*[64]byte)(src)
	}
	for ; len(src) >= 8; dst, src = dst[8:], src[8:] {
		*(*[8]byte)(dst) = *(*[8]byte)(src)
	}
	for ; len(src) > 0; dst, src = dst[1:], src[1:] {
		dst[0] = src[0]
	}
}
