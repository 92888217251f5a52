// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"runtime"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// copyOne makes the oldest copy that the devices have left and that is wanted,
// and reports whether there was one. It unlocks the mutex, which the caller
// holds, while it copies, so that threads copy at the same time. The caller
// then does a step. No function of the devices or of the program may be in
// progress below the call.
func (w *worker) copyOne(wanted func(*engine.LateCopy) bool) bool {
	n := w.n
	t := n.copies.Take(wanted)
	if t == nil {
		return false
	}
	woke := n.woke
	n.woke = false
	n.copying.Add(1)
	n.mu.Unlock()
	t.Make()
	n.copying.Done()
	n.lockSoon()
	n.woke = n.woke || woke
	t.Finish()
	return true
}

// copiesWait reports whether Take would return a copy.
func (w *worker) copiesWait() bool { return w.n.copies.Oldest() != 0 }

// anyCopy is for a thread that makes all copies.
func anyCopy(*engine.LateCopy) bool { return true }

// lockSoon locks the mutex. It tries for a short time before it parks, as other
// threads, which copy, hold the mutex only for a short time.
func (n *Node) lockSoon() {
	if runtime.GOMAXPROCS(0) > 1 {
		for began := time.Now(); time.Since(began) < maxTry; {
			for range 100 {
				if n.mu.TryLock() {
					return
				}
			}
		}
	}
	n.mu.Lock()
}

// maxTry limits the time for which lockSoon tries.
const maxTry = 50 * time.Microsecond
