// SPDX-License-Identifier: Apache-2.0

//go:build unix

package measure

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time, user and system, that this process has
// used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
