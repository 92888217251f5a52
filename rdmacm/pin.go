package rdmacm

import (
	"runtime"
	"unsafe"
)

// pinned keeps memory of Go's heap in place while a struct that is passed to C
// points at it.
func pinned(p unsafe.Pointer) *runtime.Pinner {
	pinner := new(runtime.Pinner)
	if p != nil {
		pinner.Pin(p)
	}
	return pinner
}
