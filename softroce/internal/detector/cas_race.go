// SPDX-License-Identifier: Apache-2.0

//go:build race

package detector

// CompareAndSwap is atomic.CompareAndSwapUint64 without the race detector,
// which would take the device's access for an access of the program. Moreover,
// a fault in the race detector's own function ends the process, and here
// debug.SetPanicOnFault makes it a panic.
//
//go:noescape
func CompareAndSwap(word *uint64, old, n uint64) bool
