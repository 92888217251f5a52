// SPDX-License-Identifier: Apache-2.0

//go:build unix

package measure

import (
	"syscall"
	"time"
)

// cpuTime returns what this process has used, user and system.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
