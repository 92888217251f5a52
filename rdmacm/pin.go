// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"runtime"
	"unsafe"
)

// pinned pins Go memory in place while a struct passed to C points to it.
func pinned(p unsafe.Pointer) *runtime.Pinner {
	pinner := new(runtime.Pinner)
	if p != nil {
		pinner.Pin(p)
	}
	return pinner
}
