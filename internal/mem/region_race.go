// SPDX-License-Identifier: Apache-2.0

//go:build race && unix

package mem

import (
	"runtime"
	"unsafe"
)

// maxKnown is the number of bytes up to which Region uses Go's heap. The race
// detector itself takes several times as much memory, also for bytes that the
// program never uses.
const maxKnown = 64 << 20

// Region returns n bytes of zeroed memory for a memory region, aligned to a
// page, and a function that frees them. In this build, up to 64 MiB come from
// Go's heap, as the race detector knows no other memory.
func Region(n int) (b []byte, free func(), err error) {
	if n <= 0 || n > maxKnown {
		return mapRegion(n)
	}
	b = Pages(n)
	p := new(runtime.Pinner)
	p.Pin(unsafe.SliceData(b))
	return b, func() { p.Unpin(); markFreed(b) }, nil
}

// markFreed makes the race detector report accesses to b that do not happen
// before the call: no access happens after the write of the goroutine, since
// the race detector does not see that markFreed waits for it.
func markFreed(b []byte) {
	done := make(chan struct{})
	go func() {
		Freed(b)
		close(done)
	}()
	runtime.RaceDisable()
	<-done
	runtime.RaceEnable()
}

// Freed writes memory of a region that was closed. Its name is in the reports
// of the race detector.
//
//go:noinline
func Freed(b []byte) { write(b) }

// write is called, rather than inlined, so that the race detector knows its
// caller.
//
//go:noinline
func write(b []byte) { runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
