// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

import (
	"runtime"
	"strings"
)

// callTry is a separate function for calledFromTry to find.
func (f *FD) callTry() (done bool, err error) { return f.turn.try() }

// calledFromTry reports whether a try function is on the calling goroutine's
// stack. It is slow; only Close uses it.
func calledFromTry() bool {
	var pcs [32]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for {
			frame, more := frames.Next()
			if strings.HasSuffix(frame.Function, "/internal/netpoll.(*FD).callTry") {
				return true
			}
			if !more {
				break
			}
		}
	}
}
