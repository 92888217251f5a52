// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "time"

// turn waits for a turn at what holds a thread when connections are closed, and returns what ends the turn. A program that closes
// thousands of connections at once needs few threads for that. But a device may take a minute to destroy one queue pair, and nobody else
// should wait so long, so turn waits for a second at most.
func turn() (end func()) { return closings.begin() }

var closings = turns{make(chan struct{}, 16), time.Second}

type turns struct {
	places   chan struct{} // full while as many as may have a turn
	patience time.Duration // how long to wait for one
}

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
