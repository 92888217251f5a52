// SPDX-License-Identifier: Apache-2.0

//go:build race && (amd64 || arm64)

package engine

// cas is like atomic.CompareAndSwapUint64, but the race detector does not see
// it. It would take the device's write for one of the program's.
//
//go:noescape
func cas(word *uint64, old, n uint64) bool
