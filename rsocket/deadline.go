// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"sync"
	"time"
)

// deadline closes a channel at the time that was set last, like the deadlines
// of net.Pipe.
type deadline struct {
	passed func() // called after the channel was closed; must not block

	mu     sync.Mutex
	timer  *time.Timer
	cancel chan struct{} // closed when the deadline has passed
}

// init sets the function passed. There is no deadline until set is called.
func (d *deadline) init(passed func()) {
	d.passed, d.cancel = passed, make(chan struct{})
}

// set sets the time. The zero time means that there is no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.cancel // the timer's function has started and closes it
	}
	d.timer = nil
	closed := fired(d.cancel)
	if t.IsZero() {
		if closed {
			d.cancel = make(chan struct{})
		}
		return
	}
	if wait := time.Until(t); wait > 0 {
		if closed {
			d.cancel = make(chan struct{})
		}
		cancel := d.cancel
		d.timer = time.AfterFunc(wait, func() {
			close(cancel)
			d.passed()
		})
		return
	}
	if !closed {
		close(d.cancel)
		d.passed()
	}
}

// wait returns the channel that is closed at the deadline. A later call of set
// may replace it.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cancel
}

// hasPassed reports whether the deadline has passed.
func (d *deadline) hasPassed() bool { return fired(d.wait()) }

// fired reports whether c is closed or has a value. It receives the value.
func fired(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
