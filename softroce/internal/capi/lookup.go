// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import "unsafe"

// Lookup returns the address of a function that libibverbs or librdmacm
// exports, or nil if neither exports it. No function of one library has the
// name of a function of the other. So Lookup need not know in which library a
// program looks: programs also find libibverbs' functions through librdmacm,
// which is linked to it.
//
// Completion queues that Go creates are polled by Go, in calls of C that must
// not call Go. So Lookup returns another function for ibv_create_cq than C
// programs call, which marks the queue.
func Lookup(symbol string) unsafe.Pointer {
	if symbol == "ibv_create_cq" {
		return ownCreateCQ()
	}
	if f := verbsFunction(symbol); f != nil {
		return f
	}
	return cmFunction(symbol)
}

// SetRsockets sets the functions of rsocket(7), which are not in this package:
// set gets the table of librdmacm's functions. It must be called before the
// first call of a function.
func SetRsockets(set func(*CM)) { set(&cm) }
