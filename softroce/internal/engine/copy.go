// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"
)

// A fault says which memory was not there.
type fault int

const (
	noFault     fault = iota
	sourceFault       // the sender's: its packet is as good as lost
	targetFault       // the receiver's
)

// scatter copies the bytes of src to dst, which has room for them. Programs may unmap memory that
// they have registered; where hardware would write to pages that it holds, scatter reports a
// fault.
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

// Copy copies a packet's payload, which is memory of a program's, to dst, which has room for it. It returns false if
// some of that memory was not there.
func Copy(dst []byte, payload [][]byte) bool {
	return scatter([][]byte{dst}, payload) == noFault
}

// faultOf tells whose memory a panic is about, and goes on panicking if it is about something
// else.
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

// copyBytes copies src to dst, of the same length, in rising order, so that a program
// that watches the last byte of a message sees the others. The program's memory belongs to the
// program while a device writes it, so that the race detector must not see this; it does see
// the builtin copy, also in a function that it is to leave alone.
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
