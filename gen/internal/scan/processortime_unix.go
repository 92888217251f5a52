// SPDX-License-Identifier: Apache-2.0

//go:build unix

package scan

import (
	"syscall"
	"time"
)

// processorTime returns how long this process has had processors.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it knows RUSAGE_SELF
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
