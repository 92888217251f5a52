package rdmacm

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// watchEvery is how long it may take until a failure is noticed that nobody waits
// for.
const watchEvery = 250 * time.Millisecond

// watched are the ends of all connections. They are looked at from time to time:
// of a queue pair that has failed some devices have an event, and others only the
// completions of what was posted.
var watched watch

// watch has a timer while there is something to watch.
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
		w.timer = time.AfterFunc(watchEvery, w.look)
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

// look takes the completions that nobody else takes.
func (w *watch) look() {
	w.mu.Lock()
	timer, all := w.timer, slices.Collect(maps.Keys(w.ops))
	w.mu.Unlock()
	for _, o := range all {
		_, _ = o.pollOnce() // who waits next has the error
		o.queues.look()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if timer != nil && timer == w.timer {
		timer.Reset(watchEvery)
	}
}
