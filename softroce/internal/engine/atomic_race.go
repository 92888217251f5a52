// SPDX-License-Identifier: Apache-2.0

//go:build race && (amd64 || arm64)

package engine

// cas is atomic.CompareAndSwapUint64 without the race detector, which would
// take the device's access for an access of the program.
//
//go:noescape
func cas(word *uint64, old, n uint64) bool
