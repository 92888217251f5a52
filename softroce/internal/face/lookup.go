// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import "unsafe"

/*
#include <stdlib.h>
#include "verbs_skeleton.h"
#include "cm_skeleton.h"
*/
import "C"

// Lookup returns the address of a function that libibverbs or librdmacm exports,
// nil if neither does. Names are unique in both together, and librdmacm's users find
// libibverbs' functions through it, as it is linked to that.
func Lookup(symbol string) unsafe.Pointer {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if f := C.soft_libibverbs_function(name); f != nil {
		return f
	}
	return C.soft_librdmacm_function(name)
}
