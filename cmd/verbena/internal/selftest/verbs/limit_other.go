// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package verbs

// lockedMemory returns the limit of locked memory, and whether checks may need
// more. Other systems than Linux have no devices.
func lockedMemory() (limit uint64, low bool) { return 0, false }
