// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "time"

// turns lets a few callers at a time do what holds a thread.
type turns struct {
	places   chan struct{} // full while as many as may have a turn
	patience time.Duration // how long to wait for one
}

// destroying is for what C destroys when connections are closed: a program that closes thousands of them at once needs few threads for that.
// But a device may take a minute to destroy one queue pair, and nobody else should wait so long.
var destroying = turns{make(chan struct{}, 16), time.Second}

// begin waits for a turn, or until patience is over, and returns what ends it.
func (t *turns) begin() (end func()) {
	select {
	case t.places <- struct{}{}:
		return t.end
	default:
	}
	timer := time.NewTimer(t.patience)
	defer timer.Stop()
	select {
	case t.places <- struct{}{}:
		return t.end
	case <-timer.C:
		return func() {}
	}
}

func (t *turns) end() { <-t.places }
