// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// watchEvery is the period of the checks. If no goroutine waits on a
// connection, its failure is noticed within this time.
const watchEvery = 250 * time.Millisecond

// watched checks all connections periodically. Some devices report a failed
// queue pair with an event, others only through the completions of posted
// requests.
var watched watch

// watch checks connections. It has a timer while there are connections.
type watch struct {
	mu    sync.Mutex
	ops   map[*operations]struct{}
	timer *time.Timer
}

func (w *watch) add(o *operations) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ops) == 0 {
		w.ops = map[*operations]struct{}{}
		w.timer = time.AfterFunc(watchEvery, w.checkAll)
	}
	w.ops[o] = struct{}{}
}

func (w *watch) remove(o *operations) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ops, o)
	if len(w.ops) == 0 && w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// checkAll hands out the completions that no goroutine waits for, and checks
// the queue pair and the handshake of each connection.
func (w *watch) checkAll() {
	w.mu.Lock()
	timer, all := w.timer, slices.Collect(maps.Keys(w.ops))
	w.mu.Unlock()
	for _, o := range all {
		_, _ = o.pollOnce() // the next goroutine to wait gets the error
		o.queues.checkQP()
		o.queues.checkHandshake()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if timer != nil && timer == w.timer {
		timer.Reset(watchEvery)
	}
}
