// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package scan

import "time"

var started = time.Now()

// processorTime returns the time since the program started. On this system,
// package syscall does not have the processor time.
func processorTime() time.Duration { return time.Since(started) }
