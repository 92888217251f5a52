// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime/debug"
	"unsafe"
)

// fault says in whose memory a copy has failed.
type fault int

const (
	noFault     fault = iota
	sourceFault       // memory of the sender's payload; the packet counts as lost
	targetFault       // memory of the receiver
)

// scatter copies the bytes of src to dst, which must have room for them. It
// returns a fault if a program has unmapped some of the memory although it is
// registered. (Hardware could still access such memory, as it pins the pages.)
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
// must have room for it. Copy returns false if the program has unmapped some of
// the payload.
func Copy(dst []byte, payload [][]byte) bool {
	return scatter([][]byte{dst}, payload) == noFault
}

// faultOf returns whose memory a page fault, recovered as r, is about. dst is
// the receiver's memory. faultOf panics again if r is not a page fault.
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

// copyBytes copies src to dst, which has the same length. It copies from the
// first byte to the last, so that a program that sees the last byte of a
// message sees the others. The race detector must not see the copy, as the
// program may read the memory meanwhile. It would see the builtin copy even in
// a norace function.
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
