// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

// Untouched reports whether nothing is left of the leaders that have been:
// neither a deadline nor word of a cancel. It must be called while no goroutine
// waits.
func (f *FD) Untouched() bool {
	return len(f.canceled) == 0 && f.raw.Read(func(uintptr) bool { return true }) == nil
}
