// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package scan

import "time"

var started = time.Now()

// processorTime returns the time since the program started, because package
// syscall does not tell that of processors here.
func processorTime() time.Duration { return time.Since(started) }
