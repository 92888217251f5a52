// SPDX-License-Identifier: Apache-2.0

package verbs

import "syscall"

// rlimitMemlock is RLIMIT_MEMLOCK, which package syscall does not have.
const rlimitMemlock = 8

// enoughLocked is a limit of locked memory, in bytes, with which every check
// can be made.
const enoughLocked = 8 << 20

// lockedMemory returns the limit of locked memory, and whether checks may need
// more.
func lockedMemory() (limit uint64, low bool) {
	var l syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &l) != nil {
		return 0, false
	}
	return l.Cur, l.Cur < enoughLocked
}
