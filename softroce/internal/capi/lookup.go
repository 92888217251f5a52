// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import "unsafe"

// Lookup returns the address of a function that libibverbs or librdmacm
// exports, or nil if neither exports it. No function of one library has the
// name of a function of the other. So Lookup need not know in which library a
// program looks: programs also find libibverbs' functions through librdmacm,
// which is linked to it.
func Lookup(symbol string) unsafe.Pointer {
	if f := verbsFunction(symbol); f != nil {
		return f
	}
	return cmFunction(symbol)
}
