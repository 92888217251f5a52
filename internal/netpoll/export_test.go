// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

// Untouched reports whether earlier pollers have left nothing behind: neither a
// deadline nor a value in canceled. It must be called while no goroutine waits.
func (f *FD) Untouched() bool {
	return len(f.canceled) == 0 && f.raw.Read(func(uintptr) bool { return true }) == nil
}
