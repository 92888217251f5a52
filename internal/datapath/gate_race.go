// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && race && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

import "runtime"

// gate limits the calls of C that are in progress. While C calls Go, which it
// does in programs that are built with -race, a goroutine that waits for a
// processor has a thread for itself. Without the limit, there would be as many
// threads as goroutines that post and poll.
var gate = make(chan struct{}, 8)

// unseen returns a function that calls f. The race detector does not see what f
// does, for the reason that enter names.
func unseen(f func() bool) func() bool {
	return func() bool {
		runtime.RaceDisable()
		defer runtime.RaceEnable()
		return f()
	}
}

// enter waits until C may be called. The race detector does not see it: a
// program must not seem to be ordered by what happens only under the detector.
func enter() {
	runtime.RaceDisable()
	gate <- struct{}{}
	runtime.RaceEnable()
}

// leave ends a call of C that enter has permitted.
func leave() {
	runtime.RaceDisable()
	<-gate
	runtime.RaceEnable()
}
