// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

import (
	"runtime"
	"strings"
)

// callTry calls the poller's try. calledFromTry searches the stack for this
// function.
func (f *FD) callTry() (done bool, err error) { return f.turn.try() }

// calledFromTry reports whether the calling goroutine is in a try function. It
// is slow, and only Close uses it.
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
